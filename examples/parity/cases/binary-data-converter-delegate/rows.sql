INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}');INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', NULL);

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', 'x');
