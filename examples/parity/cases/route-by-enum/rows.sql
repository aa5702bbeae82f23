INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', 'bill');
INSERT INTO outbox VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{}', 'order');
