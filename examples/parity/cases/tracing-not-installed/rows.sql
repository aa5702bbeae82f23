INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', '{}', E'#Fri Feb 29 12:00:00 UTC 2024\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=congo=t61rcWkgMzE,rojo=00f067aa0ba902b7\n');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', '{}', E'tracestate=a=b');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', '{}', E'garbage');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', '{}', E'');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', '{}', NULL);
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', '{}', E'traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', '{}', E'  traceparent   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01  ');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00');
INSERT INTO outbox VALUES (n(10), 'order', '10', 'T', '{}', E'traceparent=00-00000000000000000000000000000000-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(11), 'order', '11', 'T', '{}', E'traceparent=ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(12), 'order', '12', 'T', '{}', E'traceparent=00-0af7651916cd43dd\\\n  8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(13), 'order', '13', 'T', '{}', E'trace\\u0070arent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(14), 'order', '14', 'T', '{}', E'baggage=k=v\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(15), 'order', '15', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=k\\=v');
INSERT INTO outbox VALUES (n(16), 'order', '16', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=bad state!!');
INSERT INTO outbox VALUES (n(17), 'order', '17', 'T', '{}', E'Traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO outbox VALUES (n(18), 'order', '18', 'T', '{}', E'\\u00zz');
INSERT INTO outbox VALUES (n(19), 'order', '19', 'T', '{}', E'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=');
INSERT INTO outbox VALUES (n(20), 'order', '20', 'T', '{}', E'traceparent=cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra');
INSERT INTO outbox VALUES (n(21), 'order', '21', 'T', '{}', E'traceparent=00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01');

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', '{"last": true}');
