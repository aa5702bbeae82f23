INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'{"null": null, "a": 1}');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'{"only": null}');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', E'{"o": {"only": null}, "e": {}, "a": []}');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', E'{"empty": [], "a": 1}');
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', E'{"empty": {}, "a": 1}');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', E'{}');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', E'[]');
INSERT INTO outbox VALUES (n(22), 'order', '22', 'T', E'{"list": [null, null]}');
INSERT INTO outbox VALUES (n(23), 'order', '23', 'T', E'{"list": [null, 1, null]}');
INSERT INTO outbox VALUES (n(24), 'order', '24', 'T', E'{"list": [null, "x"]}');
INSERT INTO outbox VALUES (n(25), 'order', '25', 'T', E'{"list": [null, {"a": 1}]}');
INSERT INTO outbox VALUES (n(26), 'order', '26', 'T', E'{"list": [{"a": 1}, null, {"a": 2}]}');
INSERT INTO outbox VALUES (n(28), 'order', '28', 'T', E'{"list": [[], [1]]}');
INSERT INTO outbox VALUES (n(29), 'order', '29', 'T', E'{"list": [[1], []]}');
INSERT INTO outbox VALUES (n(31), 'order', '31', 'T', E'{"list": [[]]}');
INSERT INTO outbox VALUES (n(32), 'order', '32', 'T', E'{"list": [{}]}');
INSERT INTO outbox VALUES (n(36), 'order', '36', 'T', E'{"list": [true, false, null]}');
INSERT INTO outbox VALUES (n(45), 'order', '45', 'T', E'null');
INSERT INTO outbox VALUES (n(83), 'order', '83', 'T', E'{"a": "x", "b": 2, "a": null}');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', NULL);
