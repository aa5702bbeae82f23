INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', '{}', E'#Fri Feb 29 12:00:00 UTC 2024\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=congo=t61rcWkgMzE,rojo=00f067aa0ba902b7\n');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
