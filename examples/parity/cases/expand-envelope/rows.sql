INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'{"a": 1, "n": null}');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E'{"list": [1, "x"]}');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'text');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', E' ');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', NULL);
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', E'{}');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', E'1');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', E'{"a": 1, "a": 2}');
INSERT INTO outbox VALUES (n(10), 'order', '10', 'T', E'{"only": null}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', NULL);
