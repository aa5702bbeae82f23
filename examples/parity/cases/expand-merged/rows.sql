INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"list": [{"a": 1}, {"b": 2}]}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'{"list": [{"a": 1, "b": null}, {"a": null, "b": 2}]}');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'{"list": [{}, {"a": 1}]}');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'{"list":[{"b":1,"a":2},{"c":3,"a":4}]}');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', E'{"list":[{"z":1},{"y":1},{"x":1},{"w":1}]}');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', E'{"list":[{"a":[1]},{"a":null}]}');
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', E'{"list":[{"a":[]},{"b":1}]}');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', E'{"list":[{"a":1,"b":{"c":1}},{"a":2,"b":{"c":2}},{"d":[1]}]}');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', E'{"list":[[{"a":1},{"b":2}],[{"a":3}]]}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', NULL);
