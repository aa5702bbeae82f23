//! `init --consumer`: what it installs where, for whom, and what it refuses.

use std::process::Command;

use crate::support::place::{Place, Ran, psql, refused, succeeded};
use crate::support::process;

/// Everything that it creates, as the catalogues describe it.
const OBJECTS: &str = "SELECT c.relname, c.relkind, c.relacl, a.attname, a.atttypid::regtype, a.attnotnull FROM pg_class c \
       LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND c.relkind = 'r' \
       WHERE c.relnamespace = 'outbox_router'::regnamespace ORDER BY 1, a.attnum;
     SELECT p.oid::regprocedure, md5(p.prosrc), p.prosecdef, p.proconfig, \
       has_function_privilege('public', p.oid, 'EXECUTE'), array_length(p.proacl, 1) FROM pg_proc p \
       WHERE p.pronamespace = 'outbox_router'::regnamespace ORDER BY 1;
     SELECT version, name, checksum FROM outbox_router.consumer_schema_history ORDER BY 1;
     SELECT rolname, rolcanlogin, rolsuper, rolreplication FROM pg_roles WHERE rolname ~ ('^' || current_database() || '($|[^0-9])')";

fn role(place: &Place) -> String {
    format!("{}_shipping", place.name)
}

/// The command, without any configuration.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(&["init", "--consumer"]);
    command.args(arguments).env_clear();
    command
}

fn install(place: &Place) -> Ran {
    let (url, role) = (place.url("postgres"), role(place));
    Ran::of(process::output(&mut command(place, &["--url", &url, "--role", &role])))
}

/// Runs what is printed.
fn run_script(place: &Place, user: &str) -> Ran {
    let script = process::output(&mut command(place, &["--print-sql", "--role", &role(place)]));
    let file = place.folder().join("consumer.sql");
    std::fs::write(&file, script.stdout).unwrap();
    psql(&place.url(user), &["-f", file.to_str().unwrap()])
}

#[test]
fn it_installs_once_without_a_configuration() {
    let place = Place::new();
    succeeded(install(&place), &["step 1 (inbox): applied", "privileges of"]);
    let before = place.psql(OBJECTS);
    assert!(before.contains("inbox_claim(text,text[])|"), "{before}");
    succeeded(install(&place), &["Nothing had to be changed"]);
    assert_eq!(place.psql(OBJECTS), before);
}

#[test]
fn the_printed_script_installs_the_same() {
    let (by_init, by_psql) = (Place::new(), Place::new());
    succeeded(install(&by_init), &[]);
    for _ in 0..2 {
        let ran = run_script(&by_psql, "postgres");
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(by_psql.masked(&by_psql.psql(OBJECTS)), by_init.masked(&by_init.psql(OBJECTS)));
    succeeded(install(&by_psql), &["Nothing had to be changed"]);
}

#[test]
fn the_role_may_call_the_functions_and_nothing_else() {
    let place = Place::new();
    succeeded(install(&place), &[]);
    let url = place.url(&role(&place));
    for call in [
        "SELECT outcome FROM outbox_router.inbox_claim('c', 'e')",
        "SELECT outbox_router.inbox_claim('c', ARRAY['e'])",
        "SELECT outbox_router.inbox_put('c', 'q', 'x', 'a', 1)",
        "BEGIN; SELECT FROM outbox_router.inbox_next('c'); SELECT outbox_router.inbox_done('c', 'q'); COMMIT",
        "SELECT outbox_router.inbox_newer('c', 'a', 1), outbox_router.inbox_expire(), outbox_router.idempotency_expire()",
        "SELECT FROM outbox_router.inbox_start('c', 'f', '1 min'), outbox_router.inbox_status(), outbox_router.consumer_counters()",
        "SELECT outbox_router.idempotency_finish('u', 'k', token, 200) FROM outbox_router.idempotency_begin('u', 'k', sha256('x'))",
    ] {
        let ran = psql(&url, &["-c", call]);
        assert_eq!(ran.code, 0, "{call}: {ran:?}");
    }
    let tables = "SELECT 'TABLE ' || oid::regclass FROM pg_class \
                  WHERE relnamespace = 'outbox_router'::regnamespace AND relkind IN ('r', 'S')";
    let tables = place.psql(tables);
    let operators = [
        "SELECT outbox_router.inbox_decide('c', 'e', 'clear', 'x')",
        "SELECT outbox_router.inbox_configure('c', '30 days')",
        "SELECT outbox_router.inbox_forget_sequences('c')",
        "SELECT outbox_router.inbox_check('c', 'e')",
        "SELECT outbox_router.inbox_taken('c', 'e', NULL)",
        "CREATE TABLE outbox_router.mine ()",
    ];
    for denied in tables.lines().chain(operators) {
        let ran = psql(&url, &["-c", denied]);
        assert!(ran.err.contains("permission denied"), "{denied}: {ran:?}");
    }
}

/// A caller's schemas come first in its search path.
#[test]
fn functions_of_the_caller_are_not_called() {
    let place = Place::new();
    succeeded(install(&place), &[]);
    let role = role(&place);
    place.psql(&format!("CREATE SCHEMA {role} AUTHORIZATION {role}"));
    let hostile = format!(
        "SET search_path = {role}, pg_catalog; \
         CREATE FUNCTION length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'called as %', current_user; END $$; \
         CREATE FUNCTION nextval(regclass) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'called as %', current_user; END $$; \
         SELECT outcome FROM outbox_router.inbox_claim('c', 'e')"
    );
    succeeded(psql(&place.url(&role), &["-c", &hostile]), &["fresh"]);
}

#[test]
fn it_shares_the_schema_with_a_router() {
    let (before, after) = (Place::new(), Place::new());
    succeeded(before.run(&["init"]), &[]);
    succeeded(install(&before), &[]);
    succeeded(before.run(&["init"]), &["Nothing had to be changed"]);
    succeeded(install(&after), &[]);
    succeeded(after.run(&["init"]), &[]);
    succeeded(install(&after), &["Nothing had to be changed"]);
    for place in [before, after] {
        let claim = "SELECT outcome FROM outbox_router.inbox_claim('c', 'e')";
        assert_eq!(place.psql(claim).trim(), "fresh");
    }
}

/// Its owner could replace functions that run with the rights of another role.
#[test]
fn the_schema_of_another_role_is_refused() {
    let place = Place::new();
    let owner = format!("{}_owner", place.name);
    place.psql(&format!("CREATE ROLE {owner} LOGIN; CREATE SCHEMA outbox_router AUTHORIZATION {owner}"));
    refused(&install(&place), 1, &["belongs to the role", &owner, "ALTER SCHEMA outbox_router OWNER"]);
    refused(&run_script(&place, "postgres"), 3, &["belongs to the role", &owner, "HINT"]);
    let functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox_router'::regnamespace";
    assert_eq!(place.psql(functions).trim(), "0");
}

#[test]
fn usage_errors_say_what_to_give() {
    let place = Place::new();
    let run = |arguments: &[&str]| Ran::of(process::output(&mut command(&place, arguments)));
    refused(&run(&[]), 2, &["--consumer needs --url"]);
    refused(&run(&["--print-sql", "--role", "pg_mine"]), 2, &["Choose another name"]);
    refused(&run(&["--print-sql", "--url", "postgres:///x"]), 2, &["it takes no --url"]);
    refused(&run(&["--print-acls"]), 2, &["--print-acls"]);
    refused(&place.run(&["init", "--print-sql", "--url", &place.url("postgres")]), 2, &["--print-sql"]);
}

/// The functions that somebody outside may call, as the reference writes them: arguments with their defaults, and what they return.
const SIGNATURES: &str = r"
    SELECT format('| `%s(%s)` | `%s` |', p.proname, arguments.list, coalesce(results.list, pg_get_function_result(p.oid)))
    FROM pg_proc p,
      LATERAL (SELECT string_agg(
          CASE WHEN value IS NULL THEN one
            ELSE format('[%s]', one || coalesce(' = ' || replace(nullif(value, 'NULL'), '''', ''), '')) END, ', ' ORDER BY n) AS list
        FROM (SELECT n, p.proargnames[n] || ' ' || format_type(type, NULL) AS one,
            split_part(pg_get_function_arg_default(p.oid, n::integer), '::', 1) AS value
          FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes) WITH ORDINALITY AS of_type (type, mode, n)
          WHERE mode IS NULL OR mode IN ('i', 'b')) each) arguments,
      LATERAL (SELECT string_agg(p.proargnames[n] || ' ' || format_type(type, NULL), ', ' ORDER BY n) AS list
        FROM unnest(p.proallargtypes, p.proargmodes) WITH ORDINALITY AS of_type (type, mode, n) WHERE mode IN ('o', 'b', 't')) results
    WHERE p.pronamespace = 'outbox_router'::regnamespace AND (has_function_privilege(current_database() || '_shipping', p.oid, 'EXECUTE')
      OR p.proname IN ('inbox_configure', 'inbox_forget_sequences', 'inbox_decide'))";

#[test]
fn the_reference_has_every_function_with_its_arguments_and_results() {
    let place = Place::new();
    succeeded(install(&place), &[]);
    let page = include_str!("../../docs/sql-functions.md");
    let (_, page) = page.split_once("## Inbox").unwrap();
    let mut documented: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let installed = place.psql(SIGNATURES);
    let installed: Vec<&str> = installed.lines().collect();
    assert!(installed.len() > 20, "{installed:?}");
    for signature in installed {
        let found = documented.iter().position(|line| line.starts_with(signature));
        let found = found.unwrap_or_else(|| panic!("docs/sql-functions.md lacks {signature}"));
        documented.remove(found);
    }
    assert!(documented.is_empty(), "docs/sql-functions.md has what is not installed: {documented:?}");
}
