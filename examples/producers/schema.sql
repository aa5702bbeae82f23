-- The application's own table, and its role, which may only insert into the outbox.
CREATE TABLE orders (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer text NOT NULL,
  total numeric(12, 2) NOT NULL
);
CREATE ROLE shop LOGIN;
GRANT SELECT, INSERT, UPDATE ON orders TO shop;
GRANT INSERT ON outbox TO shop;
