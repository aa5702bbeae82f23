INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', 1);INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', '{}', 1);INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', '{}', 2);

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
