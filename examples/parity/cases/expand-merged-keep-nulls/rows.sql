INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"list": [{"a": 1, "b": null}, {"a": null, "b": 2}]}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'{"list": [{}, {"a": 1}]}');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'{"list": [{"a": []}, {"a": [1]}]}');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'{"list":[{"a":null},{"a":1}]}');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', E'{"list":[{"a":1},{"a":null}]}');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', E'{"list":[{"a":null},{"a":"x"},{"b":null}]}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', NULL);
