INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{"a": 1}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'{"list": [{"a": 1}, {"a": "x"}]}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', NULL);
