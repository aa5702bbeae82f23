INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"b": 1.0, "a": 1e5, "list": [{"a": 1}, {"a": 2}], "t": "ü 😀 \\\\u0001"}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'"text"');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'1');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'null');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', NULL);
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', E'[]');
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', E'{}');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', E'{"bb": 1, "a": 1}');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', E'{"e": 1e-7}');
INSERT INTO outbox VALUES (n(10), 'order', '10', 'T', E'{"n": 1.10, "m": 100, "z": 123456789012.5}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
