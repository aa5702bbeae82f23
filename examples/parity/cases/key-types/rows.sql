INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_bool, c_int, c_real, c_double, c_numeric, c_money, c_char, c_uuid,
  c_jsonb, c_hstore, c_date, c_timestamp, c_timestamp3, c_timestamptz, c_time, c_timetz, c_interval, c_inet,
  c_bit1, c_enum, c_enum_array, c_hstore_array, c_int_array, c_text_array, c_double_array, c_oid,
  c_domain_num) VALUES (
  n(1), 'order', '1', '{}', true, 42, 1, 1, 1, '1.50', 'ab', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11',
  '{"a":  1}', 'a=>1, b=>NULL, "c d"=>"e\"f"', '2024-02-29', '2024-02-29 12:34:56.123456',
  '2024-02-29 12:34:56.1236', '2024-02-29 12:34:56.123456+02', '12:34:56.123456', '12:34:56.123456+02',
  '1 year 2 mons 3 days 04:05:06.789', '192.168.0.1', '1', 'happy', '{happy,sad}',
  ARRAY['a=>1, b=>NULL'::hstore, '', NULL], '{1,NULL,3}', '{a,"b \"q",NULL}',
  '{1,1.5,1e10}', 42, 1.5);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_bool, c_int, c_real, c_double, c_numeric, c_money, c_char, c_jsonb,
  c_hstore, c_date, c_timestamp, c_timestamp3, c_timestamptz, c_time, c_timetz, c_interval, c_inet, c_bit1,
  c_int_array, c_text_array, c_oid) VALUES (
  n(2), 'order', '2', '{}', false, -2147483648, 1.5, 1.5, 1.50, '-1234.56', 'abcde', '"x"', '', '1969-12-31',
  '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999', '2024-01-01 00:00:00+00', '00:00', '00:00:00-05:30',
  '1 day', '192.168.0.1/24', '0', '{}', '{}', 4294967295);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_numeric, c_jsonb, c_hstore, c_date, c_timestamp,
  c_timestamptz, c_time, c_timetz, c_interval, c_inet) VALUES (
  n(3), 'order', '3', '{}', 0.1, 1e10, -99999999.99, 'null',
  'z=>1, key=>2, name=>3, id=>4, Type=>5, "😀"=>"ü😀", a=>6, b=>7, c=>8, d=>9, e=>10, f=>11, g=>12, h=>13', '0001-01-01', '2024-01-01',
  '2024-01-01 00:00:00.1+00', '24:00:00', '12:34+00', '-1 month', '::1');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_numeric, c_date, c_timestamp, c_timestamptz,
  c_timetz, c_interval) VALUES (
  n(4), 'order', '4', '{}', 1e10, 1e-7, 0.00, '9999-12-31', '0001-01-01', '2024-01-01 00:00:00.120+00',
  '12:34:56.1+00', '0');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_numeric, c_date, c_timestamp, c_timestamptz) VALUES (
  n(5), 'order', '5', '{}', 1e-7, 123456789.123, 0.01, 'infinity', '9999-12-31 23:59:59',
  '2024-01-01 10:00:30+00');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_date, c_timestamp, c_timestamptz) VALUES (
  n(6), 'order', '6', '{}', 1234567.9, 'NaN', '-infinity', 'infinity', '0001-01-01 00:00:00+00');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_date, c_timestamp, c_timestamptz) VALUES (
  n(7), 'order', '7', '{}', 'NaN', 'Infinity', '0044-03-15 BC', '-infinity', 'infinity');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_timestamp, c_timestamptz) VALUES (
  n(8), 'order', '8', '{}', 'Infinity', '-Infinity', '0044-03-15 01:00:00 BC', '-infinity');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_timestamptz) VALUES (
  n(9), 'order', '9', '{}', '-Infinity', 0.1::float8+0.2::float8, '0044-03-15 01:00:00+00 BC');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_timestamptz) VALUES (
  n(10), 'order', '10', '{}', '-0', '-0', '10000-01-01 00:00:00+00');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double) VALUES (
  n(11), 'order', '11', '{}', 16777216, 1e7);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double) VALUES (
  n(12), 'order', '12', '{}', 3.4028235e38, 9999999);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double) VALUES (
  n(13), 'order', '13', '{}', 1.4e-45, 0.001);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double) VALUES (
  n(14), 'order', '14', '{}', 0.001, 0.0009);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double) VALUES (
  n(15), 'order', '15', '{}', 0.0001, 1e21);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double) VALUES (
  n(16), 'order', '16', '{}', 1234567, 1.7976931348623157e308);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double) VALUES (
  n(17), 'order', '17', '{}', 12345678, 5e-324);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_double) VALUES (
  n(18), 'order', '18', '{}', 2e-3);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_double) VALUES (
  n(19), 'order', '19', '{}', 100);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_double) VALUES (
  n(20), 'order', '20', '{}', 1e16);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_double) VALUES (
  n(21), 'order', '21', '{}', 123456789012345680);
-- nothing but NULL
INSERT INTO outbox (id, aggregatetype, aggregateid) VALUES (n(22), 'order', 'null');
INSERT INTO outbox (id, aggregatetype, aggregateid) VALUES ('ffffffff-ffff-ffff-ffff-ffffffffffff', 'order', 'last');
