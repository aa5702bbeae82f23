INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"b": 1.0, "a": "x", "l": [1,2], "o": {"p": null, "q": true}}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'"text"');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'[1]');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'{}');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', NULL);

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
