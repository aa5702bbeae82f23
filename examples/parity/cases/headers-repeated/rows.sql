INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', 'acme', 7);
INSERT INTO outbox VALUES (n(2),'order','k',NULL,'{}',NULL,NULL), (n(3),'order','k','','{}','','0'), (n(4),'order','k','ü "q" \ 😀','{}',' 1 ',-1);

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
