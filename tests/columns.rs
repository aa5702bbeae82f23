//! The outbox table is altered while the router runs.

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::Settings;

struct Setting {
    outbox: Outbox,
    kafka: Kafka,
    router: Router,
}

impl Setting {
    async fn new() -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let router = Router::active(&Settings::new(&outbox, &kafka)).await;
        outbox.insert("order", "a", "{\"n\": 1}").await;
        kafka.holds(&outbox.name, 1).await;
        Setting { outbox, kafka, router }
    }

    /// Waits until there are so many records and stops the router. Their texts in order.
    async fn texts(self, count: usize) -> Vec<String> {
        let records = self.kafka.records_when(&self.outbox.name, count).await;
        self.outbox.all_confirmed().await;
        self.router.stop().await;
        texts(&records)
    }

    /// The router ends and names the column; with `key` of its configuration set to `value` it goes on where it was.
    async fn goes_on_with(self, parts: &[&str], key: &str, value: &str, count: usize) -> Vec<String> {
        let Setting { outbox, kafka, router } = self;
        router.exits(3).await.says(parts);
        assert_eq!(kafka.count(&outbox.name).await, Ok(1));
        let settings = Settings::new(&outbox, &kafka).set(key, value);
        let router = Router::start(&settings);
        Setting { outbox, kafka, router }.texts(count).await
    }
}

fn texts(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.text().to_owned()).collect()
}

#[tokio::test]
async fn columns_that_are_added_and_dropped_do_not_matter() {
    let setting = Setting::new().await;
    setting.outbox.execute("ALTER TABLE outbox ADD COLUMN first text DEFAULT 'x'").await;
    setting.outbox.insert("order", "a", "{\"n\": 2}").await;
    setting.outbox.execute("ALTER TABLE outbox DROP COLUMN headers, DROP COLUMN created_at").await;
    setting.outbox.insert("order", "a", "{\"n\": 3}").await;
    setting.outbox.execute("ALTER TABLE outbox DROP COLUMN first").await;
    setting.outbox.insert("order", "a", "{\"n\": 4}").await;
    assert_eq!(setting.texts(4).await, ["{\"n\": 1}", "{\"n\": 2}", "{\"n\": 3}", "{\"n\": 4}"]);
}

/// A row is read by the columns that the table had when it was written, and a transaction may alter it in the middle.
#[tokio::test]
async fn columns_are_those_of_the_moment_of_each_row() {
    let setting = Setting::new().await;
    let insert = |n| {
        format!("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{n}');")
    };
    let altered = "ALTER TABLE outbox DROP COLUMN headers; ALTER TABLE outbox ADD COLUMN more int DEFAULT 7;";
    setting.outbox.execute(&[&insert(2), altered, &insert(3)].concat()).await;
    assert_eq!(setting.texts(3).await, ["{\"n\": 1}", "2", "3"]);
}

#[tokio::test]
async fn columns_that_change_their_type_are_read_as_what_they_are() {
    let setting = Setting::new().await;
    setting.outbox.execute("ALTER TABLE outbox ALTER payload TYPE json USING '{ }'").await;
    setting
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '[ 2]')")
        .await;
    setting.outbox.execute("ALTER TABLE outbox ALTER payload TYPE bytea USING ''").await;
    setting
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', 'three')")
        .await;
    setting
        .outbox
        .execute("ALTER TABLE outbox ALTER aggregate_type TYPE varchar(9), ALTER event_type TYPE char(9)")
        .await;
    setting
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', 'four')")
        .await;
    assert_eq!(setting.texts(4).await, ["{\"n\": 1}", "[ 2]", "three", "four"]);
}

#[tokio::test]
async fn columns_renamed_stop_the_router_which_goes_on_with_the_new_name() {
    let setting = Setting::new().await;
    setting.outbox.execute("ALTER TABLE outbox RENAME payload TO body").await;
    setting
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, body) VALUES ('order', 'a', '2')")
        .await;
    setting
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, body) VALUES ('order', 'a', '3')")
        .await;
    let texts =
        setting.goes_on_with(&["outbox", "no column \"payload\""], "outbox.columns.payload", "body", 3).await;
    assert_eq!(texts, ["{\"n\": 1}", "2", "3"]);
}

#[tokio::test]
async fn columns_dropped_stop_the_router_which_goes_on_with_another() {
    let setting = Setting::new().await;
    setting.outbox.execute("ALTER TABLE outbox DROP COLUMN event_type").await;
    setting.outbox.insert("order", "a", "2").await;
    let parts = ["outbox", "no column \"event_type\""];
    let texts = setting.goes_on_with(&parts, "outbox.columns.event_type", "aggregate_type", 2).await;
    assert_eq!(texts, ["{\"n\": 1}", "2"]);
}

#[tokio::test]
async fn columns_of_a_type_that_will_not_do_stop_the_router() {
    let setting = Setting::new().await;
    setting
        .outbox
        .execute(
            "ALTER TABLE outbox ALTER headers DROP DEFAULT, ALTER headers TYPE int USING 1, ADD COLUMN meta jsonb; \
             ALTER TABLE outbox ALTER headers SET DEFAULT 1",
        )
        .await;
    setting.outbox.insert("order", "a", "2").await;
    let texts =
        setting.goes_on_with(&["outbox", "column \"headers\""], "outbox.columns.headers", "meta", 2).await;
    assert_eq!(texts, ["{\"n\": 1}", "2"]);
}
