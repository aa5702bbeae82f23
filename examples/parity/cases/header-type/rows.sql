BEGIN;
INSERT INTO outbox VALUES
  (n(1), 'order', '1', 'Placed', '{"b": 1,   "a": [1, 2.50, 1e5, {"x": null}], "t": "ü€😀 \u0041 \n \" \\ /"}'),
  (n(2), 'order', '1', 'Paid', '{}'),
  (n(3), 'order', '2', 'Placed', '"text"');
INSERT INTO outbox VALUES (n(4), 'order', '1', 'Shipped', 'null');
COMMIT;
BEGIN;
INSERT INTO outbox VALUES
  (n(10), 'order', '2', 'Removed', NULL),
  (n(11), 'order', NULL, 'NoKey', '{"key": null}'),
  (n(12), 'order', '', 'EmptyKey', '[]'),
  (n(13), 'order', 'kö 🔑', NULL, '1.10'),
  (n(14), 'order', ' padded ', '', 'true');
COMMIT;
BEGIN;
INSERT INTO outbox VALUES
  (n(20), 'PurchaseOrder', '1', 'T', '{"n": 20}'),
  (n(21), 'purchase-order', '1', 'T', '{"n": 21}'),
  (n(22), 'eu.shop.order', '1', 'T', '{"n": 22}'),
  (n(23), 'UPPER_case', '1', 'T', '{"n": 23}');
ROLLBACK;
BEGIN;
INSERT INTO outbox VALUES
  (n(30), 'PurchaseOrder', '1', 'T', '{"n": 30}'),
  (n(31), 'purchase-order', '1', 'T', '{"n": 31}'),
  (n(32), 'eu.shop.order', '1', 'T', '{"n": 32}'),
  (n(33), 'UPPER_case', '1', 'T', '{"n": 33}');
SAVEPOINT s;
INSERT INTO outbox VALUES (n(34), 'order', '1', 'T', '{"n": 34}');
ROLLBACK TO s;
INSERT INTO outbox VALUES (n(35), 'order', '1', 'T', '{"n": 35}');
DELETE FROM outbox WHERE id = n(35);
COMMIT;

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
