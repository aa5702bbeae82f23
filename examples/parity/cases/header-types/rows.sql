INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_bool, c_smallint, c_int, c_bigint, c_real, c_double, c_numeric,
  c_numeric0, c_decimal, c_money, c_char, c_varchar, c_text, c_uuid, c_json, c_jsonb, c_xml, c_hstore,
  c_citext, c_ltree, c_date, c_timestamp, c_timestamp0, c_timestamp3, c_timestamp4, c_timestamptz,
  c_timestamptz3, c_time, c_time0, c_time3, c_timetz, c_interval, c_bytea, c_inet, c_cidr, c_macaddr,
  c_macaddr8, c_bit1, c_bit8, c_bit12, c_varbit, c_varbit5, c_enum, c_int_array, c_text_array, c_bool_array,
  c_double_array, c_numeric_array, c_uuid_array, c_date_array, c_ts_array, c_json_array, c_enum_array,
  c_citext_array, c_hstore_array, c_oid,
  c_domain_int, c_domain_text, c_domain_num, c_point, c_int4range, c_tstzrange, c_daterange, c_tsvector,
  c_name, c_pgchar) VALUES (
  n(1), 'order', '1', '{}', true, 7, 42, 42, 1, 1, 1, 1, 1, '1.50', 'ab', 'ab', 'ab',
  'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"a":  1}', '{"a":  1}', '<a b="1">x</a>',
  'a=>1, b=>NULL, "c d"=>"e\"f"', 'MiXed', 'a.b.c', '2024-02-29', '2024-02-29 12:34:56.123456',
  '2024-02-29 12:34:56.6', '2024-02-29 12:34:56.1236', '2024-02-29 12:34:56.12364',
  '2024-02-29 12:34:56.123456+02', '2024-02-29 12:34:56.123456+02', '12:34:56.123456', '12:34:56.6',
  '12:34:56.1236', '12:34:56.123456+02', '1 year 2 mons 3 days 04:05:06.789', '\x0001ff', '192.168.0.1',
  '192.168.0.0/24', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', '1', '10110000', '101100000001', '101',
  '101', 'happy', '{1,NULL,3}', '{a,"b \"q",NULL}', '{t,f}', '{1,1.5,1e10}', '{1,1.5}',
  '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', '{2024-02-29}', '{2024-02-29 12:00+00}', ARRAY['{"a":1}'::jsonb],
  '{happy,sad}', '{MiXed,"a b"}', ARRAY['a=>1, b=>NULL'::hstore, '', NULL], 42, 7, 'x', 1.5, '(1,2.5)',
  '[1,5)', '[2024-01-01 00:00+00,)', '[2024-01-01,2024-02-01)', 'a b',
  'nam', 'x');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_bool, c_smallint, c_int, c_bigint, c_real, c_double, c_numeric,
  c_numeric0, c_decimal, c_money, c_char, c_varchar, c_text, c_json, c_jsonb, c_hstore, c_date, c_timestamp,
  c_timestamp0, c_timestamp3, c_timestamptz, c_time, c_time3, c_timetz, c_interval, c_bytea, c_inet, c_bit1,
  c_bit8, c_varbit, c_int_array, c_text_array, c_enum_array, c_oid) VALUES (
  n(2), 'order', '2', '{}', false, -32768, -2147483648, 9223372036854775807, 1.5, 1.5, 1.50,
  12345678901234567890, 1.50, '-1234.56', 'abcde', 'ü "q" \ x', E'tab\t nl\n "q" \\ ', '"x"', '"x"', '',
  '1969-12-31', '1969-12-31 23:59:59.999999', 'infinity', '1969-12-31 23:59:59.999', '2024-01-01 00:00:00+00',
  '00:00', '24:00:00', '00:00:00-05:30', '1 day', '\x616263', '192.168.0.1/24', '0', '00000001', '', '{}',
  '{}', '{happy,NULL}', 4294967295);
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_numeric, c_decimal, c_varchar, c_text, c_jsonb,
  c_date, c_timestamp, c_timestamptz, c_time, c_timetz, c_interval, c_bytea, c_inet) VALUES (
  n(3), 'order', '3', '{}', 0.1, 1e10, -99999999.99, 1e10, '', '', 'null', '0001-01-01', '2024-01-01',
  '2024-01-01 00:00:00.1+00', '24:00:00', '12:34+00', '-1 month', '', '::1');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_numeric, c_decimal, c_text, c_date, c_timestamp,
  c_timestamptz, c_timetz, c_interval) VALUES (
  n(4), 'order', '4', '{}', 1e10, 1e-7, 0.00, 1e-7, ' 1 ', '9999-12-31', '0001-01-01',
  '2024-01-01 00:00:00.120+00', '12:34:56.1+00', '0');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_numeric, c_decimal, c_text, c_date, c_timestamp,
  c_timestamptz) VALUES (
  n(5), 'order', '5', '{}', 1e-7, 123456789.123, 0.01, 'NaN', '1', 'infinity', '9999-12-31 23:59:59',
  '2024-01-01 10:00:30+00');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_decimal, c_text, c_date, c_timestamp,
  c_timestamptz) VALUES (
  n(6), 'order', '6', '{}', 1234567.9, 'NaN', 12345678901234567890.123456789, 'true', '-infinity', 'infinity',
  '0001-01-01 00:00:00+00');
INSERT INTO outbox (id, aggregatetype, aggregateid, payload, c_real, c_double, c_decimal, c_text, c_date, c_timestamp,
  c_timestamptz) VALUES (
  n(7), 'order', '7', '{}', 'NaN', 'Infinity', -0.5, 'null', '0044-03-15 BC', '-infinity', 'infinity');
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
