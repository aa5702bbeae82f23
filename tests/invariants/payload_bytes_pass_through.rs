//! The consumer reads the bytes that the application wrote.

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// An outbox whose payload column has the type `payload`.
fn table(payload: &str) -> String {
    format!(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
         aggregate_id text, event_type text NOT NULL DEFAULT 'happened', payload {payload}, \
         headers jsonb NOT NULL DEFAULT '{{}}', created_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
}

/// Sends these payloads through a column of this type and returns their records in the same order.
async fn sent<T: tokio_postgres::types::ToSql + Sync>(column: &str, payloads: &[T]) -> Vec<Record> {
    let (outbox, kafka) = (Outbox::with_table(shared::postgres(), &table(column)).await, Kafka::shared());
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    let client = outbox.client().await;
    // a text parameter is parsed by the input function of the column's type
    let parameter = if column == "bytea" { "$1::bytea".to_owned() } else { format!("$1::text::{column}") };
    let insert = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', {parameter})"
    );
    for payload in payloads {
        client.execute(&insert, &[payload]).await.unwrap();
    }
    let mut records = kafka.records_when(&outbox.name, payloads.len()).await;
    router.stop().await;
    assert_eq!(records.len(), payloads.len());
    records.sort_by_key(|record| record.offset);
    records
}

#[tokio::test]
async fn payload_bytes_pass_through_from_json() {
    let payloads = [
        "{ \"b\":1,\n\t\"a\" : 1.50,  \"a\":\"\\u00e9\" }  ",
        "  [1,2 ,  3]",
        "\"text\"",
        "12345678901234567890.000",
        "null",
        "{\"euro\": \"€\", \"face\": \"😀\", \"slash\": \"\\/\"}",
    ];
    let records = sent("json", &payloads).await;
    let texts: Vec<_> = records.iter().map(Record::text).collect();
    assert_eq!(texts, payloads);
}

/// jsonb has the form in which Postgres stored it.
#[tokio::test]
async fn payload_bytes_pass_through_from_jsonb() {
    let records = sent("jsonb", &["{ \"b\":1.50,\"a\" : \"\\u00e9\" }", "null", "[]"]).await;
    let texts: Vec<_> = records.iter().map(Record::text).collect();
    assert_eq!(texts, ["{\"a\": \"é\", \"b\": 1.50}", "null", "[]"]);
}

#[tokio::test]
async fn payload_bytes_pass_through_from_text() {
    // not parsed, so it need not be JSON; the last one is nearly as large as the topic accepts
    let long = "0123456789".repeat(90_000);
    let payloads = ["{not json", "", " ", "\u{1}\r\n\t\u{7f}", "日本語 äöü 😀\u{feff}", &long];
    let records = sent("text", &payloads).await;
    for (record, payload) in records.iter().zip(payloads) {
        assert_eq!(record.text(), payload);
    }
}

#[tokio::test]
async fn payload_bytes_pass_through_from_varchar_and_other_types() {
    let records = sent("varchar(20)", &["{not json", "", " trailing  ", "日本語 😀"]).await;
    let texts: Vec<_> = records.iter().map(Record::text).collect();
    assert_eq!(texts, ["{not json", "", " trailing  ", "日本語 😀"]);
    // any other type has Postgres's text form
    let records = sent("numeric[]", &["{1.50,NULL}"]).await;
    assert_eq!(records[0].text(), "{1.50,NULL}");
}

#[tokio::test]
async fn payload_bytes_pass_through_from_bytea() {
    let every_byte: Vec<u8> = (0..=255).collect();
    let long = [0, 0x5c, 0x78, 0xff].repeat(200_000);
    let payloads = [every_byte, vec![], b"\\x00".to_vec(), vec![0], long];
    let records = sent("bytea", &payloads).await;
    for (record, payload) in records.iter().zip(payloads) {
        assert!(record.value.as_ref() == Some(&payload), "{} bytes were altered", payload.len());
    }
}

#[tokio::test]
async fn payload_bytes_pass_through_and_null_is_a_tombstone() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.execute("INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('order', 'a')").await;
    let records = kafka.records_when(&outbox.name, 1).await;
    router.stop().await;
    assert_eq!((records[0].key(), records[0].value.as_ref()), (Some("a"), None));
    assert_eq!(records[0].header("type"), Some("happened"));
}

#[tokio::test]
async fn headers_are_the_members_of_their_column_after_the_routers_own() {
    let (outbox, kafka) = (Outbox::with_table(shared::postgres(), &table("text")).await, Kafka::shared());
    // json, unlike jsonb, keeps the order of members and duplicate names
    outbox
        .execute("ALTER TABLE outbox ALTER headers DROP DEFAULT, ALTER headers TYPE json USING headers::json")
        .await;
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox
        .execute(
            r#"INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', 'a',
               'order/made é', '', '{"traceparent": "00-1-2", "id": "forged", "none": null, "count": 1.50,
               "nested": {"a": [1, "é"]}, "quoted": "a\"b\u20ac", "type": "forged", "": "empty", "flag": true}')"#,
        )
        .await;
    let records = kafka.records_when(&outbox.name, 1).await;
    let id: String = outbox.query("SELECT id::text FROM outbox").await[0].get(0);
    let headers: Vec<_> = records[0]
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_ref().map(|value| std::str::from_utf8(value).unwrap())))
        .collect();
    let expected = [
        ("id", Some(id.as_str())),
        ("type", Some("order/made é")),
        ("traceparent", Some("00-1-2")),
        ("none", None),
        ("count", Some("1.50")),
        ("nested", Some("{\"a\": [1, \"é\"]}")),
        ("quoted", Some("a\"b€")),
        ("", Some("empty")),
        ("flag", Some("true")),
    ];
    assert_eq!(headers, expected);
    router
        .shows("two headers were dropped", |status| (status["totals"]["headers_dropped"] == 2).then_some(()))
        .await;
    assert_counts(&router, "headers_dropped_total", 2).await;
    router.stop().await;
}

/// The key is the text of the column, whatever its type; these are the bytes that a Java producer would hash.
#[tokio::test]
async fn keys_are_the_text_of_aggregate_id_of_any_type() {
    for (column, values) in [
        ("text", vec!["a", "", " a b ", "日本語", "{\"json\": 1}"]),
        ("uuid", vec!["0b0e3f6c-9a8b-4c5d-8e7f-001122334455"]),
        ("bigint", vec!["-9223372036854775808", "0", "42"]),
        ("numeric", vec!["1.50"]),
    ] {
        let table = table("text").replace("aggregate_id text", &format!("aggregate_id {column}"));
        let (outbox, kafka) = (Outbox::with_table(shared::postgres(), &table).await, Kafka::shared());
        let router = Router::active(&Settings::new(&outbox, &kafka).set("topics.partitions", 7)).await;
        for value in &values {
            let insert =
                format!("INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('order', '{value}')");
            outbox.execute(&insert).await;
        }
        let records = kafka.records_when(&outbox.name, values.len()).await;
        router.stop().await;
        for value in values {
            let record = records.iter().find(|record| record.key() == Some(value));
            let record = record.unwrap_or_else(|| panic!("no {column} key {value:?} in {records:?}"));
            assert_eq!(record.partition, partition(value.as_bytes(), 7), "{value}");
        }
    }
}

/// A second implementation of `org.apache.kafka.common.utils.Utils.murmur2`, independent of the router's.
fn murmur2(data: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ u32::try_from(data.len()).unwrap();
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let k = u32::from_le_bytes(*word).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (k ^ (k >> 24)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    (hash ^ (hash >> 15)).cast_signed()
}

/// `BuiltInPartitioner.partitionForKey`
fn partition(key: &[u8], partitions: i32) -> i32 {
    (murmur2(key) & i32::MAX) % partitions
}

/// Hashes of Kafka's own test (`UtilsTest.testMurmur2`).
const HASHES: [(&str, i32); 6] = [
    ("21", -973_932_308),
    ("foobar", -790_332_482),
    ("a-little-bit-long-string", -985_981_536),
    ("a-little-bit-longer-string", -1_486_304_829),
    ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
    ("abc", 479_470_107),
];

/// Enough keys that a wrong hash cannot match by chance.
#[tokio::test]
async fn keys_land_in_the_partition_that_a_java_producer_chooses() {
    const PARTITIONS: i32 = 12;
    for (key, hash) in HASHES {
        assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
    }
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("topics.partitions", PARTITIONS);
    let router = Router::active(&settings).await;
    for (key, _) in HASHES {
        outbox.insert("order", key, "{}").await;
    }
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id) \
             SELECT 'order', left(md5(n::text), n % 33) || n FROM generate_series(1, 200) n",
        )
        .await;
    let records = kafka.records_when(&outbox.name, HASHES.len() + 200).await;
    router.stop().await;
    for record in records {
        assert_eq!(record.partition, partition(record.key.as_ref().unwrap(), PARTITIONS), "{record:?}");
    }
}

async fn assert_counts(router: &Router, metric: &str, count: usize) {
    let (_, metrics) = router.get_now("/metrics").await;
    assert!(metrics.contains(&format!("\noutbox_router_{metric} {count}\n")), "{metrics}");
}

/// Values of `created_at` that Kafka or the topic would refuse as a record's timestamp.
const REPLACED: [(&str, &str); 5] = [
    ("ahead", "clock_timestamp() + interval '2 hours'"),
    ("long ago", "clock_timestamp() - interval '2 days'"),
    ("before 1970", "'1969-12-31 23:59:59+00'"),
    ("never", "'infinity'"),
    ("before Christ", "'0044-03-15 12:00:00+00 BC'"),
];

#[tokio::test]
async fn the_timestamp_is_the_commits_or_the_columns() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let insert = |key: &str, created_at: &str| {
        format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, created_at) \
             VALUES ('order', '{key}', clock_timestamp() + interval '{created_at}')"
        )
    };
    let millis = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let now = async || outbox.query(millis).await[0].get::<_, i64>(0);

    let router = Router::active(&settings).await;
    let before = now().await;
    outbox.execute(&insert("commit", "-1 hour")).await;
    let after = now().await;
    let records = kafka.records_when(&outbox.name, 1).await;
    let timestamp = records[0].timestamp.unwrap();
    assert!((before..=after).contains(&timestamp), "{before} <= {timestamp} <= {after}");
    router.stop().await;

    // Kafka refuses timestamps more than an hour ahead by default; the topic sets how old one may be
    let bounds = [("message.timestamp.before.max.ms", "86400000")];
    kafka.alter_topic(&outbox.topic("order"), &bounds).await;
    let mut router = Router::active(&settings.set("route.timestamp", "created_at")).await;
    outbox.execute(&insert("column", "-1 hour")).await;
    for (key, created_at) in REPLACED {
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, created_at) VALUES ('order', '{key}', {created_at})"
            ))
            .await;
    }
    let records = kafka.records_when(&outbox.name, 2 + REPLACED.len()).await;
    let timestamp = |key| records.iter().find(|record| record.key() == Some(key)).unwrap().timestamp.unwrap();
    let column = "SELECT floor(extract(epoch FROM created_at) * 1000)::bigint FROM outbox WHERE aggregate_id = 'column'";
    let column: i64 = outbox.query(column).await[0].get(0);
    assert!((timestamp("column") - column).abs() <= 1, "{} is not {column}", timestamp("column"));
    let latest = now().await;
    for (key, _) in REPLACED {
        let replaced = timestamp(key);
        assert!((after..=latest).contains(&replaced), "{key}: {after} <= {replaced} <= {latest}");
    }
    router
        .shows("timestamps were replaced", |status| {
            (status["totals"]["timestamps_replaced"] == REPLACED.len()).then_some(())
        })
        .await;
    assert_counts(&router, "timestamps_replaced_total", REPLACED.len()).await;
    router.stop().await;
}
