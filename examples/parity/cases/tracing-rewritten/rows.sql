INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=bad state!!');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', '{}', E'traceparent=cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=a=1, b=2 ,c=3');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=a=1,a=2');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', '{}', E'traceparent=01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
