//! `init`: creates what is missing in Postgres, or prints how.
//!
//! It goes through a list of `objects`. Each has an expression that tells whether it exists, and the statements that create
//! it; the command runs them and the script prints them. They are ordered so that an interrupted run can be repeated.

mod acls;
mod backfill;
mod business_key;
mod consumer;
mod emit_message;
mod maker;
mod migrations;
mod object;
mod outbox_table;
mod partition_triggers;
mod partitions;
mod polling;
mod privileges;
mod publication;
mod retention;
mod router_schema;
mod script;
mod slot;

use pg_logical::conninfo::ConnInfo;
use pg_logical::quoting::literal;
use pg_logical::{Environment, quoting};
use tokio::signal::unix::SignalKind;

use super::server::Server;
use super::signals::cancelled_by;
use super::{connection_of, say_wait};
use crate::cli::init::InitArgs;
use crate::config::{Config, Outbox as OutboxConfig, TableName};
use crate::error::{Error, ErrorCode, with_config_file};
use crate::outbox::Outbox;
use crate::postgres::catalog::{
    Catalog, Columns, Missing, check_column_lists, check_shards, slots_of_other_shards,
};
use crate::postgres::partitions::{count_partitions, create_next};
use crate::postgres::polling::table::Found;
use crate::postgres::row_security::Restricted;
use crate::postgres::{backfills, slot_record};
use crate::routing::Router;
use crate::terminal;
use backfill::Backfill;
pub(super) use business_key::lacks as lacks_business_key;
pub(super) use emit_message::OPEN_TO_ALL;
use maker::{MAKE_TIMEOUT, Maker, cannot};
pub(super) use retention::is_stored;
pub(super) use slot::{alter_failover, say_wait as say_slot_wait};

/// Creates what is missing, or prints a script.
///
/// # Errors
/// Postgres cannot be reached or refuses, or an existing object cannot be used; that object is not altered. Objects created
/// before that stay, and the next run finds them.
pub async fn init(config: &Config, args: &InitArgs, env: &Environment) -> Result<(), Error> {
    check(args)?;
    if args.print_acls {
        return terminal::print(&acls::commands(config));
    }
    if args.partitioned.is_some() {
        partitions::check(config)?;
    }
    if args.print_sql {
        let role = args.role.as_deref().unwrap_or(&config.postgres.conninfo.user);
        return terminal::print(&script::script(config, role, args.partitioned));
    }
    if args.backfill {
        backfill::check(config)?;
    }
    let conninfo = match &args.url {
        None => config.postgres.conninfo.clone(),
        Some(url) => connection_of(url, config, env)?,
    };
    let outbox = Outbox::of(config, Router::of(config).extra_columns());
    let mut init = Init::connect(config, conninfo, args).await?;
    let mut performed = init.perform(&outbox).await;
    if init.slot_missing {
        performed = performed.map_err(Error::without_slot);
    }
    if performed.is_err() {
        init.maker.log_report();
    }
    init.maker.end().await;
    performed
}

/// `init --consumer`, which needs no configuration.
///
/// # Errors
/// The schema belongs to another role, or Postgres cannot be reached or refuses.
pub(super) async fn init_consumer(args: &InitArgs, env: &Environment) -> Result<(), Error> {
    consumer::install(args, env).await.map_err(Error::without_router)
}

/// Refuses a name that no role can have, and a server for the script, which needs none.
fn check(args: &InitArgs) -> Result<(), Error> {
    if args.print_sql && args.url.is_some() {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--print-sql connects to no server, so it takes no --url",
            "Leave out one of them",
        ));
    }
    let role = args.role.as_deref();
    if role.is_some_and(|role| role.is_empty() || role.len() > 63 || role.contains('\0')) {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--role is not a valid name",
            "Give a name of 1 to 63 bytes",
        ));
    }
    if role.is_some_and(|role| role.starts_with("pg_") || matches!(role, "public" | "none")) {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            "--role is a name that Postgres reserves",
            "Choose another name, without the prefix pg_",
        ));
    }
    Ok(())
}

struct Init<'a> {
    config: &'a Config,
    args: &'a InitArgs,
    role: Option<&'a str>,
    /// How the router will connect.
    router: ConnInfo,
    maker: Maker,
    /// Whether a slot did not exist when this began.
    slot_missing: bool,
}

impl<'a> Init<'a> {
    async fn connect(config: &'a Config, conninfo: ConnInfo, args: &'a InitArgs) -> Result<Init<'a>, Error> {
        let role = args.role.as_deref();
        let mut router = config.postgres.conninfo.clone();
        if let Some(role) = role {
            role.clone_into(&mut router.user);
        }
        let maker = Maker::connect(conninfo, Some(router.clone()), args.json).await?;
        Ok(Init { config, args, role, router, maker, slot_missing: false })
    }

    async fn perform(&mut self, outbox: &Outbox) -> Result<(), Error> {
        // first, because the slot that another run is still creating is not fit for use yet
        self.maker.take_lock().await?;
        let config = self.config;
        let shards = if config.polling.is_none() { config.every_shard() } else { Vec::new() };
        let preconditions = slot::preconditions(&mut self.maker.session, &shards, &self.router);
        let (server, slot_missing) = preconditions.await?;
        self.slot_missing = slot_missing;
        self.maker.make(&object::router_schema()).await?;
        router_schema::MIGRATIONS.apply(&mut self.maker).await?;
        self.maker.make_all(&object::outbox_schemas(config)).await?;
        if polling::wakes(config) {
            self.maker.make(&polling::wake_function()).await?;
        }
        for name in &config.outbox.tables {
            let table = outbox_table::object(config, name, self.args.partitioned);
            let existed = self.maker.is_there(&table.name, &table.there).await?;
            if existed {
                outbox_table::verify(&mut self.maker.session, config, outbox, name).await?;
            } else {
                outbox_table::refuse_unknown_columns(config, outbox, name)?;
            }
            self.maker.make(&table).await?;
            if let (true, Some(polling)) = (existed, &config.polling) {
                Found::check_columns(&mut self.maker.session, &config.outbox, polling).await?;
            }
            if let (true, Some(period)) = (existed, self.args.partitioned) {
                self.maker.make(&partitions::registration(config, name, period)).await?;
            }
            let trigger = polling::trigger(name);
            if polling::wakes(config) && !self.maker.is_there(&trigger.name, &trigger.there).await? {
                self.maker.make(&trigger).await?;
            }
        }
        let managed = self.managed_tables().await?;
        if self.args.partitioned.is_some() && managed.is_empty() {
            return Err(partitions::refused(config));
        }
        self.maker.make_all(&emit_message::objects(&config.outbox)).await?;
        let mut emit_outbox = config.outbox.clone();
        if let [table] = emit_outbox.tables.as_slice()
            && self.maker.is_there("table", &business_key::is_partitioned(table)).await?
        {
            emit_outbox = partitions::without_keys(&emit_outbox);
        }
        if let Some(function) = business_key::object(&emit_outbox) {
            self.maker.make(&function).await?;
        }
        self.maker.make_all(&retention::objects(config)).await?;
        if let Some(first) = managed.first() {
            self.maker.make(&partitions::owner_of_functions(first)).await?;
        }
        for table in managed {
            self.create_partitions(table).await?;
        }
        let emit = self.make_emit(&emit_outbox).await?;
        let mut password = String::new();
        if let Some(role) = self.role {
            password = password_step(&mut self.maker, role).await?;
            self.maker.make_all(&privileges::objects(config, role)).await?;
        }
        let role = Some(self.router.user.as_str());
        Restricted::query(&mut self.maker.session, role, &[]).await?.refuse_own()?;
        if config.polling.is_some() {
            if self.maker.print_report()? {
                return Ok(());
            }
            return self.print_next_steps(&password, emit, &[], false);
        }
        // before publications are created, this checks what they would publish
        self.verify_shards(&shards).await?;
        for shard in &shards {
            let publication = publication::object(shard);
            if self.maker.is_there(&publication.name, &publication.there).await? {
                self.verify_publication(shard, outbox).await?;
            }
            self.maker.make(&publication).await?;
        }
        let (triggers, known) =
            (partition_triggers::object(config), partition_triggers::known_partitions(config));
        for object in [publication::guard(config), triggers, known].into_iter().flatten() {
            if !self.maker.is_there(&object.name, &object.there).await? {
                self.maker.make(&object).await?;
            }
        }
        self.verify_shards(&shards).await?;
        let mut backfill = None;
        if self.args.backfill {
            let session = &mut self.maker.session;
            let ours = config.slots_of_all_shards();
            backfill::no_other_shards(&slots_of_other_shards(session, config.base_slot(), &ours).await?)?;
            backfill = Some(Backfill::prepare(session, config, self.args).await?);
            let role = self.router.user.clone();
            self.maker.make_all(&backfill::privileges(config, &role)).await?;
        }
        for shard in &shards {
            self.make_slot(&server, shard, backfill.as_ref()).await?;
        }
        let open = match config.outbox.message_prefix {
            Some(_) => self.maker.session.query(OPEN_TO_ALL).await?,
            None => Vec::new(),
        };
        let open: Vec<&str> = open.iter().filter_map(|row| row.get(0)).collect();
        let ours = config.slots_of_all_shards();
        let others = slots_of_other_shards(&mut self.maker.session, config.base_slot(), &ours).await?;
        if self.maker.print_report()? {
            return Ok(());
        }
        self.print_next_steps(&password, emit, &open, !others.is_empty())
    }

    /// The tables whose partitions the router creates.
    async fn managed_tables(&mut self) -> Result<Vec<&'a TableName>, Error> {
        let mut managed = Vec::new();
        for table in &self.config.outbox.tables {
            if self.maker.is_there("table of partitions", &partitions::are_managed(table)).await? {
                managed.push(table);
            }
        }
        Ok(managed)
    }

    /// One transaction each, so that nobody waits for all of them.
    async fn create_partitions(&mut self, table: &TableName) -> Result<(), Error> {
        let what = partitions::name(table);
        let session = &mut self.maker.session;
        if !count_partitions(session, &table.in_sql(), 0).await?.missing {
            return self.maker.say(&what, "exist already");
        }
        while create_next(session, &table.in_sql()).await?.is_some() {}
        self.maker.say_change(&what, "created")
    }

    /// Whether there is such a function.
    async fn make_emit(&mut self, outbox: &OutboxConfig) -> Result<bool, Error> {
        let Some(emit) = outbox_table::emit(outbox) else {
            if !outbox.tables.is_empty() {
                let skipped = "left out: it supports only one outbox table";
                self.maker.say("function outbox_router.emit", skipped)?;
            }
            return Ok(false);
        };
        self.maker.make(&emit).await?;
        self.maker.is_there(&emit.name, &emit.there).await
    }

    async fn verify_shards(&mut self, shards: &[Config]) -> Result<(), Error> {
        if let [_] = shards {
            return Ok(());
        }
        let mut catalogs = Vec::new();
        for shard in shards {
            catalogs.push(Catalog::query(&mut self.maker.session, &shard.postgres, &shard.outbox).await?);
        }
        let found: Vec<_> = shards.iter().map(Config::source).zip(&catalogs).collect();
        check_shards(&mut self.maker.session, &found, Missing::AtStart).await.map(drop)
    }

    /// Checks that an existing publication publishes what is needed.
    async fn verify_publication(&mut self, config: &Config, outbox: &Outbox) -> Result<(), Error> {
        let catalog = Catalog::query(&mut self.maker.session, &config.postgres, &config.outbox).await?;
        catalog.check_publication(config.source(), Missing::AtStart)?;
        let columns = Columns::query(&mut self.maker.session, config.source(), &catalog.tables).await?;
        check_column_lists(outbox, config.source(), &columns, &catalog)
    }

    async fn make_slot(
        &mut self,
        server: &Server,
        config: &Config,
        backfill: Option<&Backfill>,
    ) -> Result<(), Error> {
        let name = format!("slot {}", config.postgres.slot);
        let (postgres, outbox) = (&config.postgres, &config.outbox);
        let catalog = Catalog::query(&mut self.maker.session, postgres, outbox).await?;
        let mut existing = catalog.slot.as_ref();
        if let Some(found) = existing {
            slot::usable(&catalog, config)?;
            let (session, confirmed) = (&mut self.maker.session, found.confirmed_flush_lsn);
            if backfill::begins_anew(session, &postgres.slot, confirmed, backfill.is_some()).await? {
                existing = None;
            }
        }
        if let Some(found) = existing {
            if found.failover != Some(false) {
                return self.maker.say(&name, "exists already");
            }
            return match slot::allow_failover(&self.maker.conninfo, found, &postgres.slot).await {
                Ok(()) => {
                    self.maker.say_change(&name, "altered: standbys may keep a copy of it (failover = true)")
                }
                Err(reason) => self
                    .maker
                    .say(&name, &format!("exists already; standbys can keep no copy of it, {reason}")),
            };
        }
        self.record(&slot_record::forget(&postgres.slot)).await?;
        if backfill.is_none() {
            backfill::refuse_to_forget(&mut self.maker.session, &postgres.slot).await?;
        }
        self.record(&backfills::forget(&postgres.slot)).await?;
        let stop = cancelled_by(&[SignalKind::interrupt(), SignalKind::terminate()])?;
        // slot creation waits for all open transactions
        self.maker.session.set_answer_timeout(None);
        self.maker.report_waits_with(slot::say_wait);
        let (from, rows) = match backfill {
            Some(backfill) => {
                let (from, rows) = backfill.create_slot(&mut self.maker, server, config, &stop).await?;
                (from, format!("; {rows}"))
            }
            None => {
                let (session, conninfo) = (&mut self.maker.session, &self.maker.conninfo);
                (slot::create(session, conninfo, server, &postgres.slot, &stop).await?, String::new())
            }
        };
        self.maker.session.set_answer_timeout(Some(MAKE_TIMEOUT));
        self.maker.report_waits_with(say_wait);
        // if interrupted before this, the router does not take the slot for new, which is safe
        self.record(&slot_record::created(&postgres.slot, &literal(&from))).await?;
        self.maker.say_change(&name, &format!("created; holds every change committed after {from}{rows}"))
    }

    async fn record(&mut self, sql: &str) -> Result<(), Error> {
        let written = self.maker.session.query(sql).await;
        written.map(drop).map_err(|error| self.maker.cannot("write", "record of the slot", error))
    }

    /// `password` is the step for the role; `emit` is whether the function `emit` exists; `open` are the functions with which every
    /// role can write messages, with any prefix; `others` is whether slots for another number of shards exist.
    fn print_next_steps(&self, password: &str, emit: bool, open: &[&str], others: bool) -> Result<(), Error> {
        let mut text =
            if self.maker.changed { String::new() } else { "Nothing had to be changed.\n".to_owned() };
        text.push_str("\nNext:\n");
        text += password;
        text += "  for your application's role:\n";
        for grant in grants(self.config, emit) {
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
        terminal::print(&with_config_file(text + "  outbox-router run\n"))
    }
}

/// The step that sets the password of a role that is about to be created; empty if it exists.
async fn password_step(maker: &mut Maker, role: &str) -> Result<String, Error> {
    if maker.is_there("role", &role_exists(role)).await? {
        return Ok(String::new());
    }
    let role = quoting::identifier(role);
    Ok(format!("  \\password {role}   in psql, unless the role logs in without one\n"))
}

/// A question to the server.
fn role_exists(role: &str) -> String {
    format!("EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = {})", literal(role))
}

/// The privileges that an application needs to write events, with the function `emit` too.
fn grants(config: &Config, emit: bool) -> Vec<String> {
    let mut grants = Vec::new();
    let tables: Vec<String> = config.outbox.tables.iter().map(|table| table.in_sql()).collect();
    if !tables.is_empty() {
        grants.push(format!("INSERT ON {}", tables.join(", ")));
    }
    if emit || config.outbox.message_prefix.is_some() {
        grants.push("USAGE ON SCHEMA outbox_router".to_owned());
    }
    if config.outbox.message_prefix.is_some() {
        grants.push(format!("EXECUTE ON FUNCTION {}", emit_message::signatures()));
    }
    grants
}
