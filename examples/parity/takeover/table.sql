CREATE TABLE outbox (
  id            uuid PRIMARY KEY,
  aggregatetype varchar(255) NOT NULL,
  aggregateid   varchar(255) NOT NULL,
  type          varchar(255) NOT NULL,
  payload       jsonb
);
CREATE PUBLICATION parity FOR TABLE outbox;
-- what the events are of; its lock lets one transaction at a time number the events of an aggregate
CREATE TABLE aggregate (id integer PRIMARY KEY, number bigint NOT NULL DEFAULT 0);
INSERT INTO aggregate (id) SELECT generate_series(1, 50);
