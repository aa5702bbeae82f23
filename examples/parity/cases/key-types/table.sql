CREATE EXTENSION IF NOT EXISTS hstore; CREATE EXTENSION IF NOT EXISTS citext; CREATE EXTENSION IF NOT EXISTS ltree;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a integer, b text);
CREATE DOMAIN domain_int AS integer; CREATE DOMAIN domain_text AS text; CREATE DOMAIN domain_num AS numeric(6,2);
CREATE FUNCTION n(integer) RETURNS uuid LANGUAGE sql AS $$ SELECT lpad($1::text, 32, '0')::uuid $$;
CREATE TABLE outbox (
  id uuid PRIMARY KEY,
  aggregatetype text,
  aggregateid text,
  payload jsonb,
  c_bool boolean,
  c_int integer,
  c_real real,
  c_double double precision,
  c_numeric numeric(10,2),
  c_money money,
  c_char char(5),
  c_uuid uuid,
  c_jsonb jsonb,
  c_hstore hstore,
  c_date date,
  c_timestamp timestamp,
  c_timestamp3 timestamp(3),
  c_timestamptz timestamptz,
  c_time time,
  c_timetz timetz,
  c_interval interval,
  c_inet inet,
  c_bit1 bit(1),
  c_enum mood,
  c_enum_array mood[],
  c_hstore_array hstore[],
  c_int_array integer[],
  c_text_array text[],
  c_double_array double precision[],
  c_oid oid,
  c_domain_num domain_num
);
CREATE PUBLICATION parity FOR TABLE outbox;
