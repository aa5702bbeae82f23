CREATE TABLE outbox (
  id            uuid PRIMARY KEY,
  aggregatetype varchar(255),
  aggregateid   varchar(255),
  type          varchar(255),
  payload       jsonb
);
CREATE PUBLICATION parity FOR TABLE outbox;
-- n(7): an id that ends with 7
CREATE FUNCTION n(integer) RETURNS uuid LANGUAGE sql AS $$ SELECT lpad($1::text, 32, '0')::uuid $$;
