INSERT INTO outbox VALUES (n(1),'order','k','T', repeat('x', 200000)), (n(2),'order','k','T', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 5000) i));

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', 'x');
