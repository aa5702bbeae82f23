BEGIN;
INSERT INTO outbox VALUES (n(1), 'order', '1', '{"n": 1}');
INSERT INTO customers VALUES (1, 'Ann');
INSERT INTO billing.outbox VALUES (n(2), 'order', '1', '{"n": 2}');
INSERT INTO outbox VALUES (n(3), 'order', '1', '{"n": 3}');
COMMIT;
INSERT INTO outbox VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', '1', '{"last": true}');
