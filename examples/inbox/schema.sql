-- The application's tables, besides those of producers/schema.sql. They have no unique constraint, so that a
-- second effect would be seen. Have one where you can.
CREATE TABLE shipments (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id bigint NOT NULL,
  customer text NOT NULL
);
CREATE TABLE payments (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id bigint NOT NULL
);
CREATE TABLE charges (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id bigint NOT NULL,
  charge text NOT NULL
);
GRANT SELECT, INSERT ON shipments, payments, charges TO shop;
