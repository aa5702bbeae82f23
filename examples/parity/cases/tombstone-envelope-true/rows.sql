INSERT INTO outbox VALUES (n(1), 'order', '1', 'T', E'');
INSERT INTO outbox VALUES (n(2), 'order', '2', 'T', E' ');
INSERT INTO outbox VALUES (n(3), 'order', '3', 'T', E'\t\n');
INSERT INTO outbox VALUES (n(4), 'order', '4', 'T', E'\r\n ');
INSERT INTO outbox VALUES (n(5), 'order', '5', 'T', E'');
INSERT INTO outbox VALUES (n(6), 'order', '6', 'T', E' ');
INSERT INTO outbox VALUES (n(7), 'order', '7', 'T', E' ');
INSERT INTO outbox VALUES (n(8), 'order', '8', 'T', E'　');
INSERT INTO outbox VALUES (n(9), 'order', '9', 'T', E'﻿');
INSERT INTO outbox VALUES (n(10), 'order', '10', 'T', E'​');
INSERT INTO outbox VALUES (n(11), 'order', '11', 'T', E'');
INSERT INTO outbox VALUES (n(12), 'order', '12', 'T', E'');
INSERT INTO outbox VALUES (n(13), 'order', '13', 'T', E' x ');
INSERT INTO outbox VALUES (n(14), 'order', '14', 'T', E'{}');
INSERT INTO outbox VALUES (n(15), 'order', '15', 'T', E'""');
INSERT INTO outbox VALUES (n(16), 'order', '16', 'T', NULL);

-- the last one
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last', 'Last', 'x');
