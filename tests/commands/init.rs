//! `init`: what it creates, what it leaves unchanged, what it refuses.

use crate::support::place::{Place, Ran, psql};
use crate::support::process;

/// The objects that `init` creates, as the catalogues describe them.
fn objects(place: &Place) -> String {
    place.psql(
        "SELECT 'column', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid) \
           FROM pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum) \
          WHERE a.attrelid = 'outbox'::regclass AND a.attnum > 0 ORDER BY a.attnum;
         SELECT 'index', indexdef FROM pg_indexes WHERE tablename = 'outbox' ORDER BY 2;
         SELECT 'function', pg_get_functiondef(p.oid), proowner::regrole, proacl FROM pg_proc p \
          WHERE pronamespace = 'outbox_router'::regnamespace ORDER BY 2;
         SELECT 'schema', obj_description('outbox_router'::regnamespace);
         SELECT 'history', version, name, checksum FROM outbox_router.refinery_schema_history ORDER BY version;
         SELECT 'publication', p.*, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot \
           FROM pg_publication_tables p JOIN pg_publication USING (pubname);
         SELECT 'slot', slot_name, plugin, database, temporary FROM pg_replication_slots \
          WHERE database = current_database();
         SELECT 'role', rolname, rolcanlogin, rolreplication, rolsuper, rolcreatedb, rolcreaterole FROM pg_roles \
          WHERE rolname ~ ('^' || current_database() || '($|[^0-9])');
         SELECT 'privilege', datacl FROM pg_database WHERE datname = current_database();
         SELECT 'table privilege', relacl FROM pg_class WHERE relname = 'outbox'",
    )
}

fn init_with_role(place: &Place) -> Ran {
    place.run(&["init", "--role", &format!("{}_router", place.name)])
}

#[test]
fn creates_everything_in_an_empty_database_once() {
    let place = Place::new();
    let first = init_with_role(&place);
    assert_eq!(first.code, 0, "{first:?}");
    insta::assert_snapshot!(place.masked(&first.out));
    let before = objects(&place);
    let second = init_with_role(&place);
    assert_eq!(second.code, 0, "{second:?}");
    insta::assert_snapshot!("nothing_to_do", place.masked(&second.out));
    assert_eq!(objects(&place), before);
}

#[test]
fn concurrent_runs_do_not_conflict() {
    let place = Place::new();
    let started: Vec<_> = (0..4).map(|_| process::start(&mut place.command(&["init"]))).collect();
    let ended: Vec<Ran> = started.into_iter().map(|init| Ran::of(init.wait_with_output().unwrap())).collect();
    assert!(ended.iter().all(|ran| ran.code == 0), "{ended:?}");
    assert_eq!(
        ended.iter().filter(|ran| ran.out.contains("Nothing had to be changed")).count(),
        3,
        "{ended:?}"
    );
}

#[test]
fn the_printed_script_creates_the_same() {
    let (by_init, by_psql) = (Place::new(), Place::new());
    assert_eq!(init_with_role(&by_init).code, 0);
    let role = format!("{}_router", by_psql.name);
    let script = by_psql.run(&["init", "--print-sql", "--role", &role]);
    assert_eq!(script.code, 0, "{script:?}");
    insta::assert_snapshot!("script", by_psql.masked(&script.out));
    let file = by_psql.folder().join("init.sql");
    std::fs::write(&file, &script.out).unwrap();
    // twice, because the script is as idempotent as init
    for _ in 0..2 {
        let ran = psql(&by_psql.url("postgres"), &["-f", file.to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(by_psql.masked(&objects(&by_psql)), by_init.masked(&objects(&by_init)));
    let again = init_with_role(&by_psql);
    assert!(
        again.out.contains("Nothing had to be changed") && !again.out.contains("left unchanged"),
        "{again:?}"
    );
    // the script changes nothing after init
    let before = objects(&by_init);
    let script = by_init.run(&["init", "--print-sql", "--role", &format!("{}_router", by_init.name)]);
    std::fs::write(&file, &script.out).unwrap();
    let ran = psql(&by_init.url("postgres"), &["-f", file.to_str().unwrap()]);
    assert_eq!((ran.code, objects(&by_init)), (0, before), "{ran:?}");
}

/// Without this it would have to be created by hand, because the migration history says that it exists.
#[test]
fn a_dropped_dead_letter_table_is_created_again() {
    let place = Place::new().with("DEAD_LETTERS__POLICY", "park");
    let role = format!("{}_router", place.name);
    let init = || place.run(&["init", "--role", &role]);
    let made = init();
    assert_eq!(made.code, 0, "{made:?}");
    let table = "SELECT attname, atttypid::regtype, attnotnull FROM pg_attribute WHERE attnum > 0 \
                 AND attrelid = 'outbox_router.dead_letters'::regclass ORDER BY attnum; \
                 SELECT indexdef FROM pg_indexes WHERE tablename = 'dead_letters' ORDER BY 1; \
                 SELECT relacl FROM pg_class WHERE oid = 'outbox_router.dead_letters'::regclass; \
                 SELECT version, name, checksum FROM outbox_router.refinery_schema_history ORDER BY 1";
    let before = place.psql(table);
    let drop = || place.psql("DROP TABLE outbox_router.dead_letters");
    drop();
    let again = init();
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.out.contains("step 2 (dead letters): applied"), "{again:?}");
    assert_eq!(place.psql(table), before);
    drop();
    let script = place.run(&["init", "--print-sql", "--role", &role]);
    let file = place.folder().join("init.sql");
    std::fs::write(&file, &script.out).unwrap();
    let ran = psql(&place.url("postgres"), &["-f", file.to_str().unwrap()]);
    assert_eq!((ran.code, place.psql(table)), (0, before), "{ran:?}");
    let last = init();
    assert!(last.out.contains("Nothing had to be changed"), "{last:?}");
}

#[test]
fn a_reserved_role_name_is_a_usage_error() {
    let ran = Place::new().run(&["init", "--role", "pg_router"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("Choose another"), "{ran:?}");
}

#[test]
fn printing_needs_no_server() {
    let place = Place::new()
        .with("POSTGRES__URL", "postgres://router@127.0.0.1:1/shop")
        .with("KAFKA__BOOTSTRAP_SERVERS", "kafka:9092");
    assert_eq!(place.run(&["init", "--print-sql"]).code, 0);
    assert_eq!(place.run(&["init", "--print-acls"]).code, 0);
}

#[test]
fn it_asks_for_no_brokers() {
    let place = Place::new();
    let mut init = place.command(&["init"]);
    let ran = Ran::of(process::output(init.env_remove("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS")));
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_table_of_the_users_own_is_left_alone() {
    let place = Place::new()
        .with("OUTBOX__TABLE", "shop.messages")
        .with("OUTBOX__COLUMNS__AGGREGATE_TYPE", "kind")
        .with("OUTBOX__COLUMNS__AGGREGATE_ID", "entity")
        .with("OUTBOX__COLUMNS__EVENT_TYPE", "what")
        .with("OUTBOX__COLUMNS__PAYLOAD", "body");
    let table = "CREATE SCHEMA shop; CREATE TABLE shop.messages (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, \
                 kind text, entity bigint, what text, body bytea)";
    place.psql(table);
    let describe = "SELECT attname, atttypid::regtype, attnotnull FROM pg_attribute \
                    WHERE attrelid = 'shop.messages'::regclass; SELECT indexdef FROM pg_indexes WHERE schemaname = 'shop'";
    let before = place.psql(describe);
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    insta::assert_snapshot!(place.masked(&ran.out));
    assert_eq!(place.psql(describe), before);
    assert_eq!(place.psql("SELECT tablename FROM pg_publication_tables"), "messages\n");
}

#[test]
fn hostile_names_are_quoted_everywhere() {
    let mut place = Place::new().with("OUTBOX__TABLE", r#""My $$ Schema"."Out""b'\ox""#);
    let publication = format!("{}-$q1$ '\"\\", place.name);
    place.set("POSTGRES__PUBLICATION", &publication);
    place.set("OUTBOX__COLUMNS__PAYLOAD", "order");
    place.set("OUTBOX__COLUMNS__ID", "the \"id\"");
    let role = format!("{}-R$$o'l\"e\\", place.name);
    let ran = place.run(&["init", "--role", &role]);
    assert_eq!(ran.code, 0, "{ran:?}");
    insta::assert_snapshot!(place.masked(&ran.out));
    let id = place.psql("SELECT outbox_router.emit('order', '1', 'placed', '{\"a\": 1}')");
    let row = place.psql(
        r#"SELECT "the ""id""", aggregate_type, aggregate_id, event_type, "order", headers FROM "My $$ Schema"."Out""b'\ox""#,
    );
    assert_eq!(row, format!("{}|order|1|placed|{{\"a\": 1}}|{{}}\n", id.trim()));
    let arguments = place.psql(
        "SELECT string_agg(name || ' ' || format_type(type, NULL), ', ' ORDER BY n) FROM pg_proc p, \
         unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY AS of_type (name, type, n) WHERE p.proname = 'emit'",
    );
    let page = include_str!("../../docs/sql-functions.md")
        .replace(['[', ']'], "")
        .replace(" = {}", "")
        .replace(" = error", "");
    assert!(page.contains(&format!("| `emit({})` | `uuid` |", arguments.trim())), "{arguments}");
    // the same with the script, after which init must find nothing to do
    let other = Place::new()
        .with("OUTBOX__TABLE", r#""My $$ Schema"."Out""b'\ox""#)
        .with("POSTGRES__PUBLICATION", &publication);
    let other = other.with("OUTBOX__COLUMNS__PAYLOAD", "order").with("OUTBOX__COLUMNS__ID", "the \"id\"");
    let script = other.run(&["init", "--print-sql", "--role", &role]);
    let file = other.folder().join("init.sql");
    std::fs::write(&file, &script.out).unwrap();
    let ran = psql(&other.url("postgres"), &["-f", file.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = other.run(&["init", "--role", &role]);
    assert!(ran.out.contains("Nothing had to be changed") && !ran.out.contains("left unchanged"), "{ran:?}");
    assert_eq!(other.run(&["check"]).code, 0);
    other.psql(&format!("REVOKE ALL ON DATABASE {} FROM \"{}\"", other.name, role.replace('"', "\"\"")));
}

#[test]
fn emit_runs_with_the_rights_of_its_caller_and_needs_no_select() {
    let place = Place::new();
    assert_eq!(place.run(&["init"]).code, 0);
    let app = format!("{}_app", place.name);
    place.psql(&format!("CREATE ROLE {app} LOGIN; GRANT USAGE ON SCHEMA outbox_router TO {app}"));
    let emit = "SELECT outbox_router.emit('order', '1', 'placed', NULL, NULL)";
    let refused = psql(&place.url(&app), &["-c", emit]);
    assert!(refused.err.contains("permission denied for table outbox"), "{refused:?}");
    place.psql(&format!("GRANT INSERT ON outbox TO {app}"));
    // a temporary table of the caller must not take the outbox's place
    let ran = psql(&place.url(&app), &["-c", "CREATE TEMP TABLE outbox (x int)", "-c", emit]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(place.psql("SELECT payload IS NULL, headers FROM outbox"), "t|{}\n");
}

#[test]
fn emit_for_another_table_is_left_alone_and_reported() {
    let place = Place::new();
    assert_eq!(place.run(&["init"]).code, 0);
    let place = place.with("OUTBOX__TABLE", "public.outbox_2");
    let ran = place.run(&["init"]);
    // the publication publishes the first table only
    assert_eq!(ran.code, 1, "{ran:?}");
    insta::assert_snapshot!(place.masked(&(ran.out + &ran.err)));
}

/// Earlier versions wrote `INSERT INTO public.outbox`, this one quotes each name.
#[test]
fn emit_of_an_earlier_version_is_left_alone() {
    let place = Place::new();
    assert_eq!(place.run(&["init"]).code, 0);
    place.psql(
        "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('outbox_router.emit'::regproc), '\"', ''); END $$",
    );
    let body = place.psql("SELECT prosrc FROM pg_proc WHERE proname = 'emit'");
    assert!(body.contains("INSERT INTO public.outbox (id, "), "{body}");
    let ran = place.run(&["init"]);
    assert!(ran.code == 0 && ran.out.contains("function outbox_router.emit: exists already"), "{ran:?}");
}

/// Runs `init`, which must exit with 1, and returns its error.
fn refused(place: &Place) -> String {
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    place.masked(&ran.err)
}

fn nothing_was_created(place: &Place) {
    assert_eq!(place.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox_router'"), "0\n");
}

#[test]
fn a_missing_column_is_refused_before_anything_is_published() {
    let place = Place::new();
    place.psql(
        "CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text, event_type text, body jsonb)",
    );
    insta::assert_snapshot!(refused(&place));
    assert_eq!(place.psql("SELECT count(*) FROM pg_publication"), "0\n");
}

#[test]
fn a_template_with_a_column_that_the_new_table_would_not_have() {
    let place = Place::new().with("ROUTE__TOPIC", "events.${tenant}");
    insta::assert_snapshot!(refused(&place));
}

#[test]
fn a_header_with_a_column_that_the_new_table_would_not_have() {
    let place = Place::new().with("ROUTE__HEADERS__REGION", "${region}");
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("`[route.headers]` names the column \"region\""), "{ran:?}");
}

#[test]
fn a_view_is_refused() {
    let place = Place::new();
    place.psql("CREATE VIEW outbox AS SELECT 1 AS id");
    insta::assert_snapshot!(refused(&place));
}

#[test]
fn an_unlogged_table_is_refused() {
    let place = Place::new();
    place.psql(
        "CREATE UNLOGGED TABLE outbox (id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb)",
    );
    insta::assert_snapshot!(refused(&place));
}

#[test]
fn a_publication_that_does_not_publish_inserts_is_refused_and_not_altered() {
    let place = Place::new();
    assert_eq!(place.run(&["init"]).code, 0);
    place.psql(&format!("ALTER PUBLICATION {} SET (publish = 'update')", place.name));
    insta::assert_snapshot!(refused(&place));
    assert_eq!(place.psql("SELECT pubinsert FROM pg_publication"), "f\n");
}

#[test]
fn a_publication_of_another_table_is_refused() {
    let place = Place::new();
    place.psql(&format!("CREATE TABLE other (i int); CREATE PUBLICATION {} FOR TABLE other", place.name));
    insta::assert_snapshot!(refused(&place));
}

#[test]
fn a_slot_of_another_plugin_is_refused() {
    let place = Place::new();
    place.psql(&format!("SELECT pg_create_logical_replication_slot('{}', 'test_decoding')", place.name));
    insta::assert_snapshot!(refused(&place));
    nothing_was_created(&place);
}

#[test]
fn a_slot_in_another_database_is_refused() {
    let (place, other) = (Place::new(), Place::new());
    other.psql(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", place.name));
    let text = refused(&place).replace(&other.name, "OTHER");
    nothing_was_created(&place);
    let script = place.run(&["init", "--print-sql"]).out;
    let file = place.folder().join("init.sql");
    std::fs::write(&file, script).unwrap();
    let ran = psql(&place.url("postgres"), &["-f", file.to_str().unwrap()]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.contains("belongs to another database or plugin; nothing was changed"), "{ran:?}");
    nothing_was_created(&place);
    other.psql(&format!("SELECT pg_drop_replication_slot('{}')", place.name));
    insta::assert_snapshot!(text);
}

#[test]
fn a_role_without_create_privilege_is_refused() {
    let place = Place::new();
    let poor = format!("{}_poor", place.name);
    place.psql(&format!("CREATE ROLE {poor} LOGIN"));
    let place = {
        let url = place.url(&poor);
        place.with("POSTGRES__URL", &url)
    };
    insta::assert_snapshot!(refused(&place));
}

#[test]
fn a_role_without_replication_is_refused() {
    let place = Place::new();
    let owner = format!("{}_owner", place.name);
    place.psql(&format!(
        "CREATE ROLE {owner} LOGIN; GRANT CREATE ON DATABASE {} TO {owner}; GRANT CREATE ON SCHEMA public TO {owner}",
        place.name
    ));
    let place = {
        let url = place.url(&owner);
        place.with("POSTGRES__URL", &url)
    };
    insta::assert_snapshot!(refused(&place));
    nothing_was_created(&place);
    place.psql(&format!("DROP OWNED BY {owner}"));
}

#[test]
fn an_administrators_url_to_another_database_is_a_usage_error() {
    let place = Place::new();
    let ran = place.run(&["init", "--url", "postgres://postgres:hunter2@127.0.0.1/postgres"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
    insta::assert_snapshot!(place.masked(&ran.err));
}
