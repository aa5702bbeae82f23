INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', '2024-02-29 12:34:56.123956');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', '{}', '1970-01-01 00:00:00.001');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', '{}', '2024-02-29 12:34:56');
INSERT INTO outbox VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{}', '2024-02-29 12:34:56.123956');
