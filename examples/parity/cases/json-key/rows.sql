INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"a":  1}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', NULL);
INSERT INTO outbox VALUES (n(9),'order',NULL,'T','{}'), (n(10),'order','ü"','T','{}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', NULL);
