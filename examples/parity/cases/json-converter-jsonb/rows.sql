INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"a":  1}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'"x"');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'null');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', NULL);
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', E'1');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', NULL);
