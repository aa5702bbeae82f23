INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', E'tracestate=a=b');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', '{}', E'garbage');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', '{}', E'');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', '{}', E'  traceparent   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01  ');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', '{}', E'traceparent=00-00000000000000000000000000000000-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', '{}', E'traceparent=ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', '{}', E'Traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', '{}', E'traceparent=00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra');
INSERT INTO outbox VALUES (n(10), 'order', '10', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01');
INSERT INTO outbox VALUES (n(11), 'order', '11', 'T', '{}', E'traceparent=');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
