CREATE TABLE outbox (id uuid PRIMARY KEY, "aggregateType" text, "aggregateId" text, "eventType" text, payload jsonb);
CREATE PUBLICATION parity FOR TABLE outbox;
CREATE FUNCTION n(integer) RETURNS uuid LANGUAGE sql AS $$ SELECT lpad($1::text, 32, '0')::uuid $$;
