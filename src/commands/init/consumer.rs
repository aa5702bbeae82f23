//! `init --consumer`: inbox and idempotency keys, in any database.
//!
//! The schema may also hold a router's objects. The functions run with the rights of whoever runs this.

use pg_logical::Environment;
use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::maker::Maker;
use super::migrations::{Migrations, migration};
use super::object::{self, Object};
use super::{check, password_step, role_exists, script};
use crate::advice;
use crate::cli::init::InitArgs;
use crate::error::{Error, ErrorCode};
use crate::terminal;

const MIGRATIONS: Migrations = Migrations {
    what: "consumer's schema",
    title: "consumer's part of schema outbox_router",
    history: "outbox_router.consumer_schema_history",
    tables: &[],
    files: &[
        migration!("consumer/", 1, "inbox"),
        migration!("consumer/", 2, "inbox_queue"),
        migration!("consumer/", 3, "idempotency_keys"),
    ],
};

/// What a consumer calls. The other functions are called by these, or are for operators.
const FUNCTIONS: [&str; 19] = [
    "inbox_claim",
    "inbox_claimed_by",
    "inbox_result",
    "inbox_body_key",
    "inbox_start",
    "inbox_extend",
    "inbox_finish",
    "inbox_put",
    "inbox_next",
    "inbox_done",
    "inbox_fail",
    "inbox_waiting",
    "inbox_newer",
    "inbox_expire",
    "inbox_status",
    "idempotency_begin",
    "idempotency_finish",
    "idempotency_expire",
    "consumer_counters",
];

/// The owner of the schema, if it is neither the current role nor a superuser.
const FOREIGN_OWNER: &str = "SELECT r.rolname FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner\n  \
     WHERE n.nspname = 'outbox_router' AND r.rolname <> current_user AND NOT r.rolsuper";

const FOREIGN_OWNER_REMEDY: &str = "Connect as its owner, or have a superuser run ALTER SCHEMA outbox_router OWNER TO CURRENT_USER: the owner of a schema can \
     replace the functions in it, which run with the rights of whoever created them";

/// Installs the functions, or prints a script that does.
pub(super) async fn install(args: &InitArgs, env: &Environment) -> Result<(), Error> {
    let role = args.role.as_deref();
    check(args)?;
    if args.print_sql {
        return terminal::print(&script(role));
    }
    let Some(url) = &args.url else {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--consumer needs --url",
            "Give the database of the consumer, as an administrator; or use --print-sql",
        ));
    };
    let conninfo = advice::connection_string(url.reveal(), env)?.prefer_primary();
    let mut maker = Maker::connect(conninfo, None, args.json).await?;
    let performed = perform(&mut maker, role).await;
    if performed.is_err() {
        maker.log_report();
    }
    maker.end().await;
    performed
}

async fn perform(maker: &mut Maker, role: Option<&str>) -> Result<(), Error> {
    maker.take_lock().await?;
    if let Some(owner) = maker.session.query_one(FOREIGN_OWNER).await? {
        return Err(Error::refused(
            ErrorCode::InitIncomplete,
            format!(
                "the schema outbox_router belongs to the role {}; nothing was changed",
                quoting::identifier(&owner)
            ),
            FOREIGN_OWNER_REMEDY,
        ));
    }
    maker.make(&object::router_schema()).await?;
    MIGRATIONS.apply(maker).await?;
    let mut password = String::new();
    if let Some(role) = role {
        password = password_step(maker, role).await?;
        maker.make_all(&privileges(role)).await?;
    }
    if maker.print_report()? {
        return Ok(());
    }
    let unchanged = if maker.changed { "" } else { "Nothing had to be changed.\n" };
    terminal::print(&format!(
        "{unchanged}\nNext:\n{password}  SELECT * FROM outbox_router.inbox_claim('my-consumer', 'event-id');\n"
    ))
}

/// A role that may call the functions, and has no right on a table.
fn privileges(role: &str) -> Vec<Object> {
    let (name, text) = (quoting::identifier(role), literal(role));
    let names = FUNCTIONS.map(literal).join(", ");
    let functions = format!(
        "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace\n    \
         WHERE n.nspname = 'outbox_router' AND p.proname IN ({names})"
    );
    let grant = format!(
        "\nDECLARE\n  called record;\nBEGIN\n  FOR called IN SELECT p.oid::regprocedure AS signature {functions} LOOP\n    \
         EXECUTE 'GRANT EXECUTE ON FUNCTION ' || called.signature || {};\n  END LOOP;\nEND\n",
        literal(&format!(" TO {name}"))
    );
    vec![
        Object {
            name: format!("role {name}"),
            purpose: "The role of a consumer".to_owned(),
            there: role_exists(role),
            make: format!("CREATE ROLE {name} LOGIN;"),
            ..Object::default()
        },
        Object {
            name: format!("privileges of {name}"),
            purpose: "It may call the functions; no table is granted to it".to_owned(),
            // the script creates the role earlier, but it does not exist yet when the script is parsed
            there: format!(
                "EXISTS (SELECT FROM pg_catalog.pg_roles r, pg_catalog.pg_namespace n WHERE r.rolname = {text}\n    \
                 AND n.nspname = 'outbox_router' AND pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE')\n    \
                 AND NOT EXISTS (SELECT {functions}\n    \
                 AND NOT pg_catalog.has_function_privilege(r.oid, p.oid, 'EXECUTE')))"
            ),
            make: format!(
                "GRANT USAGE ON SCHEMA outbox_router TO {name};\nDO {};",
                quoting::dollar_quoted(&grant)
            ),
            done: "granted",
            ..Object::default()
        },
    ]
}

fn script(role: Option<&str>) -> String {
    let mut text = format!(
        "-- Inbox and idempotency keys of outbox-router {}, for any database.\n\
         -- Run it as an administrator: psql -X -v ON_ERROR_STOP=1 -d DATABASE -f FILE\n\
         -- Existing objects are left unchanged, so it can be run again.\n",
        env!("CARGO_PKG_VERSION"),
    );
    let mut add = |purpose: &str, statements: &str| {
        text.push_str(&format!("\n-- {}.\n{statements}\n", script::one_line(purpose)));
    };
    let check = format!(
        "\nDECLARE\n  owner text := ({FOREIGN_OWNER});\nBEGIN\n  IF owner IS NOT NULL THEN\n    \
         RAISE 'the schema outbox_router belongs to the role %; nothing was changed', owner\n      \
         USING HINT = {};\n  END IF;\nEND\n",
        literal(FOREIGN_OWNER_REMEDY)
    );
    add("Checks first who owns the schema", &format!("DO {};", quoting::dollar_quoted(&check)));
    let schema = object::router_schema();
    add("The schema of the functions", &script::guarded(&schema));
    for (purpose, statements) in MIGRATIONS.script() {
        add(&purpose, &statements);
    }
    for object in role.map(privileges).unwrap_or_default() {
        add(&object.purpose, &script::guarded(&object));
    }
    text
}
