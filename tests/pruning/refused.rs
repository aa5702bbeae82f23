//! What `prune` refuses, and who may call it.

use super::*;
use crate::situations::page::keep;

#[tokio::test]
async fn arguments_that_make_no_sense_are_refused() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 3).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    for (arguments, message) in [
        (&[][..], "--older-than <TIME>"),
        (&["--older-than", "soon"], "expected a time, such as 30d or 12h, of at most 36500d"),
        (&["--older-than", "-1d"], "--older-than"),
        (&["--older-than", "40000d"], "of at most 36500d"),
        (&["--older-than", "6d"], "--older-than is less than 7 days"),
        (&["--older-than", "30d", "--batch", "0"], "--batch"),
        (&["--older-than", "30d", "--table", "nowhere"], "--table public.nowhere: it is not an outbox table"),
        (&["--older-than", "30d", "--table", "a.b.c"], "more parts than a schema and a name"),
    ] {
        refused(&settings.run_async(&[&["prune"], arguments].concat()).await, 2, &[message]);
    }
    for (key, archive, message) in [
        ("retention.archive", "public.outbox", "it is the outbox table itself"),
        ("retention.archive", "a.b.c", "more parts than a schema and a name"),
    ] {
        refused(&prune(&settings.clone().set(key, archive), &[]).await, 2, &[message]);
    }
    assert_eq!(outbox.aggregates("outbox").await, "a 3");
    let forced = settings.run_async(&["prune", "--older-than", "6d", "--force"]).await;
    succeeded(forced, &["Deleted 3 rows"]);
}

#[tokio::test]
async fn nothing_is_deleted_unless_it_is_known_who_needs_it() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    let name = outbox.name.clone();
    outbox.insert_old("a", 3).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    let refuses = async |settings: &Settings, parts: &[&str]| {
        let ran = prune(settings, &[]).await;
        refused(&ran, 1, &[&["OBR-8206"], parts].concat());
        assert_eq!(outbox.aggregates("outbox").await, "a 3");
        ran
    };
    // of another number of shards
    let create =
        |shard: u32| format!("SELECT pg_create_logical_replication_slot('{name}_{shard}_of_2', 'pgoutput')");
    outbox.execute(&create(0)).await;
    refuses(&settings, &[&format!("a slot does not exist or is lost: {name}_1_of_2\n")]).await;
    outbox.execute(&create(1)).await;
    outbox.execute("DELETE FROM outbox").await;
    outbox.insert_old("a", 3).await;
    let router = Router::active(&settings).await;
    outbox.all_behind_slot().await;
    router.stop().await;
    succeeded(prune(&settings, &[]).await, &["No row", "3 rows are as old and stay"]);
    let drop =
        format!("SELECT pg_drop_replication_slot('{name}_' || n || '_of_2') FROM generate_series(0, 1) n");
    outbox.execute(&drop).await;
    succeeded(prune(&settings, &["--dry-run"]).await, &["Would delete 3 rows"]);
    // rows from before the slot
    let backfill = format!("INSERT INTO outbox_router.backfills (slot, begun_at) VALUES ('{name}', now())");
    outbox.execute(&backfill).await;
    refuses(&settings, &["still has to send rows of public.outbox from before its slot"]).await;
    outbox.execute("DELETE FROM outbox_router.backfills").await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
    let ran = refuses(&settings, &["a slot does not exist or is lost"]).await;
    keep(&ran.err, &[(&name, "NAME")]);
    outbox.execute("DROP FUNCTION outbox_router.count_prunable").await;
    refused(&prune(&settings, &[]).await, 1, &["count_prunable", "does not exist", "outbox-router init"]);
    outbox.execute("DELETE FROM outbox_router.retention").await;
    refuses(
        &settings,
        &["what is stored about the retention of public.outbox is not what this configuration says", "init"],
    )
    .await;
}

/// Neither those of whoever ran init, nor those of the router's role.
#[tokio::test]
async fn code_of_the_tables_owner_has_no_rights_to_gain() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 3).await;
    outbox
        .execute(
            "UPDATE outbox SET status = 'PUBLISHED'; CREATE TABLE seen (role text, may text); GRANT INSERT ON seen TO PUBLIC; \
             CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO public.seen SELECT current_user, string_agg(c.oid::regclass::text || ' ' || p.name, ', ' ORDER BY c.oid::regclass::text COLLATE \"C\", p.name) \
             FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p (name) \
             WHERE c.relkind IN ('r', 'v') AND c.relnamespace IN ('public'::regnamespace, 'outbox_router'::regnamespace) \
             AND has_table_privilege(c.oid, p.name); RETURN OLD; END $$; \
             CREATE TRIGGER t BEFORE DELETE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION f()",
        )
        .await;
    succeeded(prune(&settings, &[]).await, &["Deleted 3 rows"]);
    let seen = outbox.text("SELECT concat(min(role), ': ', min(may)) FROM seen").await;
    let may = "outbox_router.backfills SELECT, outbox_router.partitioned SELECT, \
               outbox_router.partitions_seen SELECT, outbox_router.prunes INSERT, outbox_router.prunes SELECT, outbox_router.prunes UPDATE, \
               outbox_router.retention SELECT, \
               outbox_router.rows_not_in_log SELECT, outbox DELETE, outbox SELECT, seen INSERT";
    assert_eq!(seen.replace("public.", ""), format!("outbox_router_pruner: {may}"));
    let role = "SELECT concat(rolsuper, rolcanlogin, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls) FROM pg_roles WHERE rolname = 'outbox_router_pruner'";
    assert_eq!(outbox.text(role).await, "ffffff");
}

#[tokio::test]
async fn the_routers_role_may_prune_and_delete_nothing_else() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let role = format!("{}_role", outbox.name);
    let settings = settings.set("retention.archive", "kept");
    let url = outbox.url().replace("postgres@", &format!("{role}@"));
    let ran = prune(&settings, &["--url", &url]).await;
    refused(&ran, 1, &["role", "does not exist"]);
    succeeded(settings.run_async(&["init", "--role", &role]).await, &["to prune: granted"]);
    outbox.insert_old("a", 5).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED' WHERE payload->>'n' <> '3'").await;
    succeeded(prune(&settings, &["--url", &url]).await, &["Moved 4 rows", "1 row is as old and stays"]);
    for statement in [
        "DELETE FROM outbox",
        "DELETE FROM kept",
        "SELECT outbox_router.prune_condition('outbox')",
        "SELECT outbox_router.prune_from('outbox')",
        "UPDATE outbox_router.retention SET slot = ''",
    ] {
        let refusal = crate::support::place::psql(&url, &["-c", statement]);
        refused(&refusal, 1, &["permission denied"]);
    }
    // and somebody else may not
    let other = format!("{}_other", outbox.name);
    outbox
        .execute(&format!("CREATE ROLE {other} LOGIN; GRANT USAGE ON SCHEMA outbox_router TO {other}"))
        .await;
    let ran = prune(&settings, &["--url", &outbox.url().replace("postgres@", &format!("{other}@"))]).await;
    refused(&ran, 1, &["permission denied", "outbox-router init --role"]);
    outbox.execute(&format!("DROP OWNED BY {role}, {other}; DROP ROLE {role}, {other}")).await;
}

#[tokio::test]
async fn a_table_whose_rows_the_functions_may_not_see_or_delete_is_refused() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 5).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'").await;
    outbox.execute("REVOKE UPDATE, DELETE ON outbox FROM outbox_router_pruner").await;
    let ran = prune(&settings, &[]).await;
    let grant = "GRANT SELECT, DELETE, UPDATE (id) ON public.outbox TO outbox_router_pruner";
    refused(&ran, 1, &["OBR-8206: the role outbox_router_pruner lacks privileges on public.outbox", grant]);
    outbox.execute(grant).await;
    outbox.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY").await;
    let ran = prune(&settings, &[]).await;
    refused(&ran, 1, &["row-level security"]);
    outbox.execute("ALTER TABLE outbox DISABLE ROW LEVEL SECURITY").await;
    succeeded(prune(&settings, &[]).await, &["Deleted 5 rows"]);
}

#[tokio::test]
async fn a_table_that_nobody_cleans_up_is_a_finding_of_check() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.execute("UPDATE pg_class SET reltuples = 12345678 WHERE oid = 'outbox'::regclass").await;
    let check = settings.run_async(&["check"]).await;
    let message = "public.outbox has about 12 million rows, and nobody deletes old ones";
    assert!(check.out.contains(message) && check.out.contains("outbox-router"), "{}", check.out);
    let check = settings.set("retention.keep", "30d").run_async(&["check"]).await;
    assert!(!check.out.contains("nobody deletes"), "{}", check.out);
}

#[tokio::test]
async fn an_administrator_who_is_no_superuser_can_prepare_it_or_is_told_who_can() {
    let kafka = Kafka::shared();
    let outbox = Outbox::bare(crate::support::shared::postgres()).await;
    let administrator = format!("{}_admin", outbox.name);
    outbox
        .execute(&format!(
            "CREATE ROLE {administrator} LOGIN CREATEROLE; ALTER DATABASE {} OWNER TO {administrator}",
            outbox.name
        ))
        .await;
    let url = outbox.url().replace("postgres@", &format!("{administrator}@"));
    let settings =
        Settings::polling(&outbox, &kafka).set("postgres.url", url).set("outbox.table", "mine.outbox");
    let ran = settings.run_async(&["init"]).await;
    // on a server without the role, the administrator creates it
    let ran = if outbox.server_version().await < 160_000 || ran.out.contains("functions of prune: given") {
        ran
    } else {
        succeeded(ran, &["functions of prune: left out: a superuser has to run init once"]);
        outbox.execute(&format!("GRANT outbox_router_pruner TO {administrator} WITH ADMIN OPTION")).await;
        settings.run_async(&["init"]).await
    };
    succeeded(ran, &["functions of prune: given to this role"]);
    outbox
        .execute(&format!(
            "INSERT INTO mine.outbox (aggregate_type, aggregate_id, event_type, status, created_at) \
             SELECT 'order', 'a', 'happened', 'PUBLISHED', {LONG_AGO} FROM generate_series(1, 5)"
        ))
        .await;
    succeeded(prune(&settings, &[]).await, &["Deleted 5 rows of mine.outbox"]);
    outbox.execute(&format!("REASSIGN OWNED BY {administrator} TO postgres; DROP OWNED BY {administrator}; DROP ROLE {administrator}")).await;
}

/// The others need not wait for its lease.
#[tokio::test]
async fn a_prune_that_fails_lets_the_next_one_begin() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 3).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'; CREATE TABLE notes (event uuid REFERENCES outbox); INSERT INTO notes SELECT id FROM outbox LIMIT 1").await;
    for _ in 0..2 {
        let ran = prune(&settings, &[]).await;
        refused(&ran, 1, &["violates foreign key constraint", "Correct what the message names"]);
    }
    outbox.execute("DROP TABLE notes").await;
    succeeded(prune(&settings, &[]).await, &["Deleted 3 rows"]);
}

/// Deleting a delivered row would delete one that is not.
#[tokio::test]
async fn a_table_whose_rows_delete_each_other_is_refused() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.insert_old("a", 3).await;
    outbox.execute("UPDATE outbox SET status = 'PUBLISHED'; ALTER TABLE outbox ADD cause uuid REFERENCES outbox ON DELETE CASCADE").await;
    refused(
        &prune(&settings, &[]).await,
        1,
        &["a foreign key of public.outbox deletes other rows of it", "Drop its ON DELETE CASCADE"],
    );
    assert_eq!(outbox.aggregates("outbox").await, "a 3");
}
