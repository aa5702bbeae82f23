INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '\x0001ff');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', NULL);
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', '');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', '{"a": 1}');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', ' ');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', '\xc3bc');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', 'x');
