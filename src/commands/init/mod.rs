//! `init`: creates what is missing in Postgres, or prints how.
//!
//! It goes through a list of `objects`. Each has an expression that tells whether it exists, and the statements that create
//! it; the command runs them and the script prints them. They are ordered so that an interrupted run can be repeated.

mod acls;
mod emit_message;
mod object;
mod outbox_table;
mod partitions;
mod privileges;
mod publication;
mod router_schema;
mod script;
mod slot;

use std::time::Duration;

use pg_logical::QueryError;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::lock_wait::{LockWait, LockWatcher};
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use pg_logical::{Environment, quoting};
use tokio_postgres::error::SqlState;

use super::server::Server;
use super::{CONNECT_TIMEOUT, connection_of, say_wait};
use crate::advice::{self, LOCK_REMEDY, OrRemedy};
use crate::cli::InitArgs;
use crate::config::Config;
use crate::error::{Error, ErrorCode, Remedy};
use crate::outbox::Outbox;
use crate::postgres::administrator;
use crate::postgres::catalog::{
    Catalog, Columns, Missing, check_column_lists, check_shards, slots_of_other_shards,
};
use crate::postgres::slot_record;
use crate::routing::Router;
use crate::terminal;
pub(super) use emit_message::OPEN_TO_ALL;
use object::Object;
pub(super) use slot::{alter_failover, say_wait as say_slot_wait};

/// The `application_name` of its sessions.
const APPLICATION_NAME: &str = "outbox-router init";

/// How long Postgres may take to create something; it may have to wait for a lock.
const MAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a statement may wait for a lock, in milliseconds: applications that write to the table queue behind it.
const LOCK_TIMEOUT: &str = "5000";

/// The key of the advisory lock that serializes runs.
const LOCK: &str = "pg_catalog.hashtext('outbox-router init')";

/// Creates what is missing, or prints a script.
///
/// # Errors
/// Postgres cannot be reached or refuses, or an existing object cannot be used; that object is not altered. Objects created
/// before that stay, and the next run finds them.
pub async fn init(config: &Config, args: &InitArgs, env: &Environment) -> Result<(), Error> {
    if args.role.as_deref().is_some_and(|role| role.is_empty() || role.len() > 63 || role.contains('\0')) {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--role is not a valid name",
            "Give a name of 1 to 63 bytes",
        ));
    }
    if args.role.as_deref().is_some_and(|role| role.starts_with("pg_") || matches!(role, "public" | "none")) {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--role is a name that Postgres reserves",
            "Choose another name, without the prefix pg_",
        ));
    }
    if args.print_acls {
        return terminal::print(&acls::commands(config));
    }
    if args.print_sql {
        let role = args.role.as_deref().unwrap_or(&config.postgres.conninfo.user);
        return terminal::print(&script::script(config, role));
    }
    let conninfo = match &args.url {
        None => config.postgres.conninfo.clone(),
        Some(url) => connection_of(url, config, env)?,
    };
    let outbox = Outbox::of(config, Router::of(config).extra_columns());
    let mut init = Init::connect(config, conninfo, args.role.as_deref()).await?;
    let performed = init.perform(&outbox).await;
    init.end().await;
    performed
}

struct Init<'a> {
    config: &'a Config,
    conninfo: ConnInfo,
    /// How the router will connect.
    router: ConnInfo,
    session: Session,
    role: Option<&'a str>,
    changed: bool,
}

impl<'a> Init<'a> {
    async fn connect(
        config: &'a Config,
        mut conninfo: ConnInfo,
        role: Option<&'a str>,
    ) -> Result<Init<'a>, Error> {
        conninfo.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
        let startup = Startup { application_name: APPLICATION_NAME, ..Startup::default() };
        let mut session = Session::connect(&conninfo, &startup).await?;
        session.set_answer_timeout(Some(MAKE_TIMEOUT));
        // Slot creation may take as long as it needs, but ends with this process.
        for setting in
            ["statement_timeout = 0", "lock_timeout = 0", "client_connection_check_interval = '1s'"]
        {
            match session.query(&format!("SET {setting}")).await {
                Ok(_) | Err(QueryError::Server { .. }) => {}
                Err(QueryError::Connection(error)) => return Err(error.into()),
            }
        }
        let mut router = config.postgres.conninfo.clone();
        if let Some(role) = role {
            role.clone_into(&mut router.user);
        }
        let mut init = Init { config, conninfo, router, session, role, changed: false };
        init.report_waits_with(say_wait);
        Ok(init)
    }

    fn report_waits_with(&mut self, say: fn(&LockWait)) {
        let watcher = LockWatcher::new(&self.conninfo, self.session.info(), APPLICATION_NAME)
            .describing_errors_with(advice::in_words);
        self.session.set_watcher(watcher.reporting_to(say));
    }

    async fn perform(&mut self, outbox: &Outbox) -> Result<(), Error> {
        let server = slot::preconditions(&mut self.session, &self.config.every_shard(), &self.router).await?;
        self.take_lock().await?;
        let config = self.config;
        self.make(&object::router_schema()).await?;
        self.apply_migrations().await?;
        self.make_all(&object::outbox_schemas(config)).await?;
        for name in &config.outbox.tables {
            let table = outbox_table::object(&config.outbox, name);
            if self.is_there(&table.name, &table.there).await? {
                outbox_table::verify(&mut self.session, config, outbox, name).await?;
            } else {
                outbox_table::refuse_unknown_columns(config, outbox, name)?;
            }
            self.make(&table).await?;
        }
        self.make_all(&emit_message::objects(&config.outbox)).await?;
        match outbox_table::emit(&config.outbox) {
            Some(emit) => self.make(&emit).await?,
            None if config.outbox.tables.is_empty() => {}
            None => {
                let skipped = "left out: it supports only one outbox table";
                say("function outbox_router.emit", skipped)?;
            }
        }
        if let Some(role) = self.role {
            self.make_all(&privileges::objects(config, role)).await?;
        }
        let shards = config.every_shard();
        // before publications are created, this checks what they would publish
        self.verify_shards(&shards).await?;
        for shard in &shards {
            let publication = publication::object(shard);
            if self.is_there(&publication.name, &publication.there).await? {
                self.verify_publication(shard, outbox).await?;
            }
            self.make(&publication).await?;
        }
        for object in [publication::guard(config), partitions::object(config)].into_iter().flatten() {
            if !self.is_there(&object.name, &object.there).await? {
                self.make(&object).await?;
            }
        }
        self.verify_shards(&shards).await?;
        for shard in &shards {
            self.make_slot(&server, shard).await?;
        }
        let open = match config.outbox.message_prefix {
            Some(_) => self.session.query(OPEN_TO_ALL).await?,
            None => Vec::new(),
        };
        let open: Vec<&str> = open.iter().filter_map(|row| row.get(0)).collect();
        let ours = config.slots_of_all_shards();
        let others = slots_of_other_shards(&mut self.session, config.base_slot(), &ours).await?;
        self.print_next_steps(&open, !others.is_empty())
    }

    /// Waits for other runs. Two at once, as containers may start them, would create the same objects and fail.
    async fn take_lock(&mut self) -> Result<(), Error> {
        let free = self.session.query_one(&format!("SELECT pg_catalog.pg_try_advisory_lock({LOCK})")).await?;
        if free.as_deref() != Some("t") {
            terminal::print("Waiting for another outbox-router init in this database.\n")?;
            self.session.set_answer_timeout(None);
            self.session.query(&format!("SELECT pg_catalog.pg_advisory_lock({LOCK})")).await?;
            self.session.set_answer_timeout(Some(MAKE_TIMEOUT));
        }
        Ok(())
    }

    /// Releases the lock explicitly, because the server notices a closed connection only a little later.
    async fn end(mut self) {
        // fails if the session is gone or the lock was never taken
        let _ = self.session.query(&format!("SELECT pg_catalog.pg_advisory_unlock({LOCK})")).await;
        self.session.close().await;
    }

    async fn is_there(&mut self, what: &str, question: &str) -> Result<bool, Error> {
        let answer = self.session.query_one(&format!("SELECT {question}")).await;
        Ok(answer.map_err(|error| self.cannot("look for", what, error))?.as_deref() == Some("t"))
    }

    async fn make_all(&mut self, objects: &[Object]) -> Result<(), Error> {
        for object in objects {
            self.make(object).await?;
        }
        Ok(())
    }

    async fn make(&mut self, object: &Object) -> Result<(), Error> {
        if self.is_there(&object.name, &object.there).await? {
            if let Some((question, otherwise)) = &object.as_wanted
                && !self.is_there(&object.name, question).await?
            {
                return say(&object.name, &format!("left unchanged: {otherwise}"));
            }
            return say(&object.name, "exists already");
        }
        if let Some((question, otherwise)) = &object.possible
            && !self.is_there(&object.name, question).await?
        {
            return say(&object.name, &format!("left out: {otherwise}"));
        }
        // in the same transaction as the statements
        let made =
            self.session.query(&format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT}; {}", object.make)).await;
        made.map_err(|error| match &object.remedy {
            Some(remedy) => cannot("create", &object.name, error, remedy),
            None => self.cannot("create", &object.name, error),
        })?;
        self.say_change(&object.name, object.done)
    }

    async fn apply_migrations(&mut self) -> Result<(), Error> {
        router_schema::forget_what_was_dropped(&mut self.session, &self.router).await?;
        let applied = router_schema::upgrade(&mut self.session, &self.router).await?;
        applied.iter().try_for_each(|migration| self.say_change(migration, "applied"))
    }

    async fn verify_shards(&mut self, shards: &[Config]) -> Result<(), Error> {
        if let [_] = shards {
            return Ok(());
        }
        let mut catalogs = Vec::new();
        for shard in shards {
            catalogs.push(Catalog::query(&mut self.session, &shard.postgres, &shard.outbox).await?);
        }
        let found: Vec<_> = shards.iter().map(Config::source).zip(&catalogs).collect();
        check_shards(&mut self.session, &found, Missing::AtStart).await.map(drop)
    }

    /// Checks that an existing publication publishes what is needed.
    async fn verify_publication(&mut self, config: &Config, outbox: &Outbox) -> Result<(), Error> {
        let catalog = Catalog::query(&mut self.session, &config.postgres, &config.outbox).await?;
        catalog.check_publication(config.source(), Missing::AtStart)?;
        let columns = Columns::query(&mut self.session, config.source(), &catalog.tables).await?;
        check_column_lists(outbox, config.source(), &columns, &catalog)
    }

    async fn make_slot(&mut self, server: &Server, config: &Config) -> Result<(), Error> {
        let name = format!("slot {}", config.postgres.slot);
        let (postgres, outbox) = (&config.postgres, &config.outbox);
        let catalog = Catalog::query(&mut self.session, postgres, outbox).await?;
        if let Some(found) = &catalog.slot {
            slot::usable(&catalog, found, config)?;
            if found.failover != Some(false) {
                return say(&name, "exists already");
            }
            return match slot::allow_failover(&self.conninfo, found, &postgres.slot).await {
                Ok(()) => self.say_change(&name, "altered: standbys may keep a copy of it (failover = true)"),
                Err(reason) => {
                    say(&name, &format!("exists already; standbys can keep no copy of it, {reason}"))
                }
            };
        }
        self.record(&slot_record::forget(&postgres.slot)).await?;
        // slot creation waits for all open transactions
        self.session.set_answer_timeout(None);
        self.report_waits_with(slot::say_wait);
        let from = slot::create(&mut self.session, &self.conninfo, server, &postgres.slot).await?;
        self.session.set_answer_timeout(Some(MAKE_TIMEOUT));
        self.report_waits_with(say_wait);
        // if interrupted before this, the router does not take the slot for new, which is safe
        self.record(&slot_record::created(&postgres.slot, &literal(&from))).await?;
        self.say_change(&name, &format!("created; holds every change committed after {from}"))
    }

    async fn record(&mut self, sql: &str) -> Result<(), Error> {
        let written = self.session.query(sql).await;
        written.map(drop).map_err(|error| self.cannot("write", "record of the slot", error))
    }

    fn cannot(&self, verb: &str, what: &str, error: QueryError) -> Error {
        let remedy = general_remedy(&error, &self.router);
        cannot(verb, what, error, remedy)
    }

    fn say_change(&mut self, what: &str, text: &str) -> Result<(), Error> {
        self.changed = true;
        say(what, text)
    }

    /// `open` are the functions with which every role can write messages, with any prefix; `others` is whether slots for
    /// another number of shards exist.
    fn print_next_steps(&self, open: &[&str], others: bool) -> Result<(), Error> {
        let mut text = if self.changed { String::new() } else { "Nothing had to be changed.\n".to_owned() };
        text.push_str("\nNext:\n");
        if let Some(role) = self.role {
            text += &format!(
                "  \\password {}   in psql, unless the role logs in without one\n",
                quoting::identifier(role)
            );
        }
        text += "  for your application's role:\n";
        for grant in grants(self.config) {
            text += &format!("    GRANT {grant} TO ...;\n");
        }
        if !open.is_empty() {
            text += "  to stop every role from writing messages without these functions, as a superuser:\n";
        }
        for function in open {
            text += &format!("    REVOKE EXECUTE ON FUNCTION pg_catalog.{function} FROM PUBLIC;\n");
        }
        text += if others {
            "  stop the routers with the other number of shards, and then\n  outbox-router shards change --from NUMBER\n"
        } else {
            "  outbox-router check\n"
        };
        terminal::print(&(text + "  outbox-router run\n"))
    }
}

/// The privileges that an application needs to write events.
fn grants(config: &Config) -> Vec<String> {
    let mut grants = Vec::new();
    let tables: Vec<String> = config.outbox.tables.iter().map(|table| table.in_sql()).collect();
    if !tables.is_empty() {
        grants.push(format!("INSERT ON {}", tables.join(", ")));
    }
    grants.push("USAGE ON SCHEMA outbox_router".to_owned());
    if config.outbox.message_prefix.is_some() {
        grants.push(format!("EXECUTE ON FUNCTION {}", emit_message::signatures()));
    }
    grants
}

fn say(what: &str, text: &str) -> Result<(), Error> {
    terminal::print(&format!("{what}: {text}\n"))
}

/// The server's error, preceded by what could not be done. `remedy` is used unless a lock is in the way.
fn cannot(verb: &str, what: &str, error: QueryError, remedy: impl Into<Remedy>) -> Error {
    if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return Error::refused(
            ErrorCode::InitIncomplete,
            format!("cannot {verb} the {what}: {error}"),
            format!("{}, and run init again", LOCK_REMEDY),
        );
    }
    match error.or_remedy(remedy) {
        Error::Definite(mut definite) => {
            definite.what = format!("cannot {verb} the {what}: {}", definite.what);
            Error::Definite(definite)
        }
        transient @ Error::Transient(_) => transient,
    }
}

/// What to do about an error that `init` did not expect. `router` has the role that the router will have.
fn general_remedy(error: &QueryError, router: &ConnInfo) -> Remedy {
    match error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        true => administrator::init_remedy("Run init again", router),
        false => "Connect as an administrator with --url, or have one run what `outbox-router init --print-sql` prints".into(),
    }
}
