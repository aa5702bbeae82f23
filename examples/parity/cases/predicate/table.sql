CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload jsonb);
CREATE SCHEMA billing;
CREATE TABLE billing.outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, payload jsonb);
CREATE TABLE customers (id integer PRIMARY KEY, name text);
CREATE PUBLICATION parity FOR TABLE outbox, billing.outbox, customers;
CREATE FUNCTION n(integer) RETURNS uuid LANGUAGE sql AS $$ SELECT lpad($1::text, 32, '0')::uuid $$;
