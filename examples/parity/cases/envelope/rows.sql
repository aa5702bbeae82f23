INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"a":  1}', 0);
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'"text"', 1);
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'null', NULL);
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'[]', 3);
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', NULL, 4);
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', E'1.10', 5);
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', E'{"b": "ü \\" \\u0001"}', 6);

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
