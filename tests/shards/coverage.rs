//! The router and its commands detect shards that do not cover every aggregate exactly once.

use super::{
    MODES, all_confirmed, has_row_filters, outbox, outbox_and_kafka, refused, settings, slots, succeeded,
};
use crate::situations::page::keep;
use crate::support::kafka::Kafka;
use crate::support::router::Router;

#[tokio::test]
async fn shards_need_a_server_with_row_filters() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    if has_row_filters(&outbox).await {
        return;
    }
    let settings = settings(&outbox, &kafka, MODES[0], 2);
    refused(&settings.run(&["init"]), 1, &["shards need the row filters of 15", "nothing was changed"]);
    // `init` says why it creates none
    Router::start(&settings).exits(3).await.says(&["does not exist", "outbox-router init"]);
}

#[tokio::test]
async fn shards_that_do_not_cover_everything_exactly_once_are_refused() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let settings = settings(&outbox, &kafka, MODES[0], 2);
    succeeded(settings.run(&["init"]), &[]);
    succeeded(settings.run(&["check"]), &["each aggregate belongs to exactly one of 2 publications"]);
    let correct = "(hashtext(coalesce(aggregate_id, '')) & 2147483647) % 2 = 1";
    for (filter, says) in [
        // the remainder of a negative number is negative
        (Some("hashtext(coalesce(aggregate_id, '')) % 2 = 1"), "is not that of shard 1 of 2"),
        // NULL would be in no shard
        (Some("(hashtext(aggregate_id) & 2147483647) % 2 = 1"), "is not that of shard 1 of 2"),
        (Some("(hashtext(coalesce(aggregate_id, '')) & 2147483647) % 2 = 0"), "is not that of shard 1 of 2"),
        (
            Some("(hashtext(coalesce(aggregate_type, '')) & 2147483647) % 2 = 1"),
            "is not that of shard 1 of 2",
        ),
        (
            Some(
                "(hashtext(coalesce(aggregate_id, '')) & 2147483647) % 2 = 1 AND aggregate_id IS DISTINCT FROM 'vip'",
            ),
            "is not that of shard 1 of 2",
        ),
        (None, "has no row filter"),
        (Some(correct), ""),
    ] {
        let filter_sql = filter.map(|filter| format!("WHERE ({filter})")).unwrap_or_default();
        outbox
            .execute(&format!("ALTER PUBLICATION outbox_router_1_of_2 SET TABLE outbox {filter_sql}"))
            .await;
        let ran = settings.run(&["check"]);
        if says.is_empty() {
            succeeded(ran, &["each aggregate belongs to exactly one of"]);
            continue;
        }
        assert_eq!(ran.code, 1, "{}", ran.out);
        assert!(ran.out.contains(says), "{says}: {}", ran.out);
        let ended = Router::start(&settings).exits(1).await;
        ended.says(&[says, "outbox_router_1_of_2"]);
        if filter.is_none() {
            ended.shown(&outbox);
        }
        refused(&settings.run(&["init"]), 1, &[says]);
    }
}

#[tokio::test]
async fn shards_of_tables_with_different_ids_are_refused() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    outbox.execute("CREATE TABLE other (LIKE outbox INCLUDING ALL); ALTER TABLE other ALTER aggregate_id TYPE uuid USING NULL").await;
    let settings = settings(&outbox, &kafka, MODES[0], 2)
        .set("outbox.table", vec!["public.outbox".to_owned(), "public.other".to_owned()]);
    let ran = settings.run(&["init"]);
    refused(&ran, 1, &["texts", "UUIDs", "in two shards"]);
    keep(&ran.err, &[(&outbox.name, "NAME")]);
    assert!(slots(&outbox).await.is_empty());
}

#[tokio::test]
async fn shards_left_over_from_another_number_are_found() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let (two, three) = (settings(&outbox, &kafka, MODES[0], 2), settings(&outbox, &kafka, MODES[0], 3));
    succeeded(two.run(&["init"]), &[]);
    let router = Router::active(&two).await;
    outbox.insert("order", "a", "{}").await;
    kafka.holds(&outbox.name, 1).await;
    router.stop().await;
    succeeded(three.run(&["init"]), &[]);
    // `check` says what a start does
    let ran = succeeded(two.run(&["check"]), &["for another number of shards"]);
    assert!(!ran.out.contains("OBR-7005"), "{}", ran.out);
    let ran = three.run(&["check"]);
    assert!(ran.code == 1 && ran.out.contains("OBR-7005"), "{}", ran.out);
    // old shards still start until they hand over, and new ones do not start before that
    let router = Router::active(&two).await;
    router.stop().await;
    for shard in ["0", "1", "2"] {
        let ended = Router::with_arguments(&three, &["--shard", shard]).exits(3).await;
        ended.says(&["has not delivered from the slot", "_of_2", "shards change --from 2"]);
        if shard == "0" {
            ended.shown(&outbox);
        }
    }
}

#[tokio::test]
async fn shards_that_do_not_exist_cannot_be_selected() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    let two = settings(&outbox, &kafka, MODES[0], 2);
    for command in ["run", "tail", "slot list", "dead-letters list"] {
        let arguments: Vec<&str> = command.split(' ').chain(["--shard", "2"]).collect();
        refused(&two.run(&arguments), 2, &["there is no shard 2 of 2", "0 to 1"]);
    }
    let one = settings(&outbox, &kafka, MODES[0], 1);
    refused(&one.run(&["run", "--shard", "0"]), 2, &["there are no shards"]);
    for only in [vec![2_i64], vec![0, 0], vec![-1]] {
        refused(&two.clone().set("shards.only", only).run(&["check"]), 2, &["shards.only"]);
    }
}

/// The printed script creates the same as `init`. It can be repeated, and quotes the names that need it.
#[tokio::test]
async fn shards_are_created_by_the_printed_script_too() {
    let kafka = Kafka::shared();
    for sql_type in ["text", "uuid", "int"] {
        let outbox = outbox().await;
        if !has_row_filters(&outbox).await {
            return;
        }
        outbox
            .execute(&format!(
                "ALTER TABLE outbox RENAME TO \"Out'box\"; ALTER TABLE \"Out'box\" DROP aggregate_id; \
                 ALTER TABLE \"Out'box\" ADD \"Aggregate $$ id\" {sql_type}"
            ))
            .await;
        let settings = settings(&outbox, &kafka, MODES[0], 2)
            .set("outbox.table", "public.\"Out'box\"")
            .set("outbox.columns.aggregate_id", "Aggregate $$ id")
            .set("postgres.publication", "Publi'cation");
        let script = succeeded(settings.run(&["init", "--print-sql"]), &["_1_of_2"]).out;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("init.sql");
        std::fs::write(&file, script).unwrap();
        for _ in 0..2 {
            let arguments = ["-X", "-v", "ON_ERROR_STOP=1", "-f", file.to_str().unwrap()];
            succeeded(crate::support::place::psql(&outbox.url(), &arguments), &[]);
        }
        assert_eq!(slots(&outbox).await, ["_0_of_2", "_1_of_2"]);
        succeeded(settings.run(&["check"]), &["each aggregate belongs to exactly one of 2 publications"]);
        succeeded(settings.run(&["init"]), &["Nothing had to be changed"]);
    }
}

/// A handover is recorded in the positions topic.
#[tokio::test]
async fn shards_need_a_positions_topic() {
    let (outbox, kafka) = (outbox().await, Kafka::shared());
    let settings = settings(&outbox, &kafka, MODES[0], 2).set("delivery.positions_topic", "");
    refused(&settings.run(&["check"]), 2, &["positions_topic"]);
}

/// In a database that is not in UTF-8, rows can be divided between shards, but messages cannot.
#[tokio::test]
async fn shards_work_in_a_database_in_another_encoding_except_for_messages() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let name = format!("{}_latin", outbox.name);
    outbox
        .execute(&format!(
            "CREATE DATABASE {name} ENCODING 'WIN1251' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ))
        .await;
    let settings = settings(&outbox, &kafka, MODES[0], 2)
        .set("postgres.url", outbox.url().replace(&format!("/{}", outbox.name), &format!("/{name}")))
        .set("postgres.slot", name.as_str());
    refused(
        &settings.clone().set("outbox.message_prefix", "outbox").run(&["init"]),
        1,
        &["WIN1251", "UTF-8"],
    );
    succeeded(settings.run(&["init"]), &[]);
    succeeded(settings.run(&["check"]), &["each aggregate belongs to exactly one of"]);
    let slots = format!(
        "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE database = '{name}'"
    );
    outbox.query(&slots).await;
    outbox.execute(&format!("DROP DATABASE {name}")).await;
}

/// Row filters may not use user-defined collations.
#[tokio::test]
async fn shards_of_ids_with_a_user_defined_collation_are_refused() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    outbox
        .execute(
            "CREATE COLLATION own (provider = icu, locale = 'und', deterministic = false); \
             ALTER TABLE outbox ALTER aggregate_id TYPE text COLLATE own",
        )
        .await;
    let settings = settings(&outbox, &kafka, MODES[0], 2);
    refused(&settings.run(&["init"]), 1, &["collation", "COLLATE"]);
}

/// The other shards' rows are in the streams of other publications, so they are not missing.
#[tokio::test]
async fn shards_stop_after_an_alteration_only_if_rows_are_in_no_stream() {
    let Some((outbox, kafka)) = outbox_and_kafka().await else { return };
    let settings = settings(&outbox, &kafka, MODES[0], 2);
    succeeded(settings.run(&["init"]), &[]);
    let publication = "outbox_router_0_of_2";
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) SELECT 'order', i, '{}' FROM generate_series(1, 20) i";
    let router = Router::active(&settings).await;
    outbox.execute(insert).await;
    kafka.holds(&outbox.name, 20).await;
    router.stop().await;
    outbox.execute(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert')")).await;
    outbox.execute(insert).await;
    let router = Router::active(&settings).await;
    kafka.holds(&outbox.name, 40).await;
    all_confirmed(&outbox).await;
    router.stop().await;

    let filter = format!(
        "SELECT pg_get_expr(x.prqual, x.prrelid) FROM pg_publication_rel x JOIN pg_publication p ON p.oid = x.prpubid WHERE p.pubname = '{publication}'"
    );
    let filter = outbox.text(&filter).await;
    let of_shard = outbox.text(&format!("SELECT (count(*) / 2)::text FROM outbox WHERE {filter}")).await;
    outbox.execute(&format!("ALTER PUBLICATION {publication} DROP TABLE outbox")).await;
    outbox.execute(insert).await;
    outbox.execute(&format!("ALTER PUBLICATION {publication} ADD TABLE outbox WHERE ({filter})")).await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["OBR-3109", &format!("{of_shard} rows that were committed since are not in the stream")]);
}
