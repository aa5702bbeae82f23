INSERT INTO outbox VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{}', '2024-02-29 12:34:56.123956+02');
