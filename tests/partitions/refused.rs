//! What cannot be partitioned, and who may do it.

use super::*;
use crate::pruning::prune;
use crate::situations::page::keep;
use crate::support::place::{psql, refused};

const DAY: [&str; 3] = ["init", "--partitioned", "day"];

#[tokio::test]
async fn a_configuration_that_fits_no_partitioned_table_is_refused() {
    let kafka = Kafka::shared();
    let outbox = Outbox::bare(shared::postgres()).await;
    let settings = || Settings::new(&outbox, &kafka);
    let cases = [
        (Settings::polling(&outbox, &kafka), "only a table without partitions can be polled"),
        (settings().set("outbox.columns.created_at", false), "the time of the insert decides"),
        (
            settings().set("outbox.columns.idempotency_key", "key"),
            "Postgres cannot keep a key unique across partitions",
        ),
        (
            settings().set("outbox.table", Vec::<String>::new()).set("outbox.message_prefix", "outbox"),
            "no outbox table is configured",
        ),
    ];
    for (settings, message) in cases {
        for more in [&[][..], &["--print-sql"]] {
            let ran = settings.run_async(&[&DAY, more].concat()).await;
            refused(&ran, 2, &["--partitioned: ", message]);
        }
    }
    assert_eq!(
        outbox.text("SELECT count(*)::text FROM pg_namespace WHERE nspname = 'outbox_router'").await,
        "0"
    );
    refused(&settings().run_async(&["init", "--partitioned", "year"]).await, 2, &["day, week, month"]);
}

#[tokio::test]
async fn a_table_that_exists_is_left_as_it_is() {
    let kafka = Kafka::shared();
    let create = |rest: &str| {
        format!(
            "CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb, \
             created_at timestamptz, place text) {rest}"
        )
    };
    for rest in [
        "",
        "PARTITION BY LIST (place)",
        "PARTITION BY RANGE (created_at, place)",
        "PARTITION BY RANGE ((place))",
    ] {
        let outbox = Outbox::bare(shared::postgres()).await;
        outbox.execute(&create(rest)).await;
        let settings = Settings::new(&outbox, &kafka);
        let ran = settings.run_async(&DAY).await;
        refused(&ran, 1, &["OBR-8209: public.outbox exists, and is not partitioned by the time of its rows"]);
        if rest.is_empty() {
            keep(&ran.err, &[]);
        }
        assert_eq!(outbox.text("SELECT count(*)::text FROM outbox_router.partitioned").await, "0");
        assert_eq!(outbox.text("SELECT count(*)::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relkind = 'r'").await, "0");
    }
}

/// Functions of the table's owner would otherwise run with the rights of a superuser, and the owner could not alter the table.
#[tokio::test]
async fn partitions_belong_to_the_owner_of_the_table_and_so_do_the_functions() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let owner = format!("{}_owner", outbox.name);
    let all = outbox.partitions().await;
    outbox
        .execute(&format!(
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {owner} LOGIN; DROP TABLE {}; \
             DO $$ DECLARE t regclass; BEGIN FOR t IN SELECT relid FROM pg_partition_tree('outbox') LOOP EXECUTE format('ALTER TABLE %s OWNER TO {owner}', t); \
             END LOOP; END $$",
            all[7]
        ))
        .await;
    let ran = settings.run_async(&["init"]).await;
    refused(
        &ran,
        1,
        &[
            "OBR-8209: the role",
            "may not create partitions of public.outbox",
            "GRANT CREATE ON SCHEMA public TO",
        ],
    );
    outbox.execute(&format!("GRANT CREATE ON SCHEMA public TO {owner}")).await;
    succeeded(settings.run_async(&["init"]).await, &["partitions of \"public\".\"outbox\": created"]);
    let again = settings.run_async(&["init"]).await;
    succeeded(again, &["Nothing had to be changed"]);
    let owners = "SELECT concat((SELECT string_agg(DISTINCT relowner::regrole::text, ' ') FROM pg_class WHERE oid IN (SELECT relid FROM pg_partition_tree('outbox'))), ' ', \
                  (SELECT string_agg(DISTINCT proowner::regrole::text, ' ') FROM pg_proc WHERE proname IN ('create_partition', 'drop_partition', 'next_partition')), ' ', \
                  has_schema_privilege((SELECT relowner FROM pg_class WHERE oid = 'outbox'::regclass), 'outbox_router', 'CREATE'))";
    assert_eq!(outbox.text(owners).await, format!("{owner} {owner} f"));
    outbox.partition_of(40).await;
    outbox.execute(&format!("ALTER TABLE outbox_40_days_ago OWNER TO {owner}")).await;
    outbox.insert_ago("old", 3, 40).await;
    let url = outbox.url().replace("postgres@", &format!("{owner}@"));
    let alter = "ALTER TABLE outbox ADD COLUMN note text; CREATE INDEX ON outbox (lower(aggregate_id))";
    succeeded(psql(&url, &["-c", alter]), &[]);
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    succeeded(prune(&settings, &[]).await, &["Deleted 3 rows", "Dropped 1 partition"]);
    outbox
        .execute(&format!("REASSIGN OWNED BY {owner} TO postgres; DROP OWNED BY {owner}; DROP ROLE {owner}"))
        .await;
}

#[tokio::test]
async fn a_router_says_why_it_creates_no_partitions_and_delivers_on() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let owner = format!("{}_owner", outbox.name);
    let all = outbox.partitions().await;
    let drop = format!("DROP TABLE {}", all[7]);
    outbox
        .execute(&format!(
            "{drop}; CREATE ROLE {owner}; \
             DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname ~ 'partition' AND pronamespace = 'outbox_router'::regnamespace AND proowner = 'postgres'::regrole LOOP \
             EXECUTE format('ALTER FUNCTION %s OWNER TO {owner}', f); END LOOP; END $$; GRANT USAGE ON SCHEMA outbox_router TO {owner}"
        ))
        .await;
    let mut router = Router::active(&settings).await;
    router.logs("partitions of the outbox are not created: the functions that create and drop partitions belong to the role").await;
    outbox.insert_ago("young", 3, 0).await;
    kafka.holds(&outbox.name, 3).await;
    router.stop().await;
    let check = settings.run_async(&["check"]).await;
    assert!(check.out.contains("which is not the owner of public.outbox"), "{}", check.out);
    // as the message says
    succeeded(
        settings.run_async(&["init"]).await,
        &[
            "functions of partitions: given to the owner of the table",
            "partitions of \"public\".\"outbox\": created",
        ],
    );
    assert_eq!(outbox.partitions().await, all);
    outbox.execute(&format!("DROP OWNED BY {owner}; DROP ROLE {owner}")).await;
}

/// Keys are not unique across partitions, so there is no column for them.
#[tokio::test]
async fn emit_fills_a_partitioned_table_and_takes_no_business_key() {
    let kafka = Kafka::shared();
    let (outbox, settings) = by_day(&kafka).await;
    let ran = settings.run_async(&["init"]).await;
    succeeded(ran, &["function outbox_router.emit: exists already", "Nothing had to be changed"]);
    outbox.execute("SELECT outbox_router.emit('order', 'a', 'placed', '{\"n\": 1}')").await;
    assert_eq!(outbox.places("a").await, outbox.partitions().await[0]);
    let keyed = "SELECT outbox_router.emit('order', 'a', 'placed', '{}', idempotency_key => 'k')";
    let error = outbox.client().await.batch_execute(keyed).await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("does not exist"), "{error:?}");
}
