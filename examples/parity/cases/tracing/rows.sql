INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', '{}', E'#Fri Feb 29 12:00:00 UTC 2024\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=congo=t61rcWkgMzE,rojo=00f067aa0ba902b7\n');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', '{}', NULL);
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', '{}', E'traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', '{}', E'  traceparent   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00');
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', '{}', E'traceparent=00-0af7651916cd43dd\\\n  8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', '{}', E'trace\\u0070arent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', '{}', E'baggage=k=v\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(10), 'order', '10', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=k\\=v');
INSERT INTO outbox VALUES (n(11), 'order', '11', 'T', '{}', E'! c\r\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate=a=1');
INSERT INTO outbox VALUES (n(12), 'order', '12', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntraceparent=00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
