//! The replication slot, from `pg_replication_slots`.

use pg_logical::Lsn;
use pg_logical::QueryError;
use pg_logical::quoting::with_suffix;
use pg_logical::session::Session;

use super::first_slot;
use super::own_publication::own_slot;
use super::recovery_sql;
use super::{Catalog, Unreadable, Values, flag, parsed};
use crate::config::{OutboxSource, Postgres};
use crate::error::{Effect, Error, ErrorCode, Peer, Remedy, Step, UNRETAINED};
use crate::postgres::{slot_functions, slot_invalidation, standby_slots};
use crate::shards;

/// One row of `pg_replication_slots`, and how much log it retains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// `plugin`; `None` for a physical slot.
    pub plugin: Option<String>,
    /// `database`; `None` for a physical slot.
    pub database: Option<String>,
    /// The database of this session.
    pub current_database: String,
    /// `active_pid`: the walsender that reads it.
    pub active_pid: Option<i32>,
    /// `restart_lsn`: the oldest log that it retains.
    pub restart_lsn: Option<Lsn>,
    /// `confirmed_flush_lsn`
    pub confirmed_flush_lsn: Option<Lsn>,
    /// `wal_status`: reserved, extended, unreserved or lost.
    pub wal_status: Option<String>,
    /// `safe_wal_size`: how many bytes may be written before the slot may be lost; `None`: there is no limit.
    pub safe_wal_size: Option<i64>,
    /// Whether `max_slot_wal_keep_size` is set.
    pub limited: bool,
    /// Bytes of log that it retains.
    pub retained_bytes: Option<u64>,
    /// `conflicting`, from 16 on.
    pub conflicting: bool,
    /// `invalidation_reason`, from 17 on.
    pub invalidation_reason: Option<String>,
    /// `catalog_xmin`: no transaction after the confirmed position has an older id.
    pub catalog_xmin: Option<u32>,
    /// `temporary`: a standby's copy of a failover slot is temporary until it is complete.
    pub temporary: bool,
    /// `two_phase`: transactions are decoded when they are prepared, with messages of a later protocol version.
    pub two_phase: bool,
    /// `failover`: whether standbys may keep a copy of it; `None` before 17.
    pub failover: Option<bool>,
    /// `synced`, from 17 on: it is such a copy, or was one before a promotion.
    pub synced: bool,
    /// Physical slots whose standbys must confirm a change before Postgres sends it for this slot: those in
    /// `synchronized_standby_slots`, if `failover` is set. For a copy of the slot, Postgres sends everything at once.
    pub waits_for: Vec<String>,
}

/// The end of this server's log. Also works on a standby, where `pg_current_wal_flush_lsn` fails.
pub const FLUSH_LSN: &str = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() \
     THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_flush_lsn() END";

pub(super) fn columns(version: u32) -> String {
    let conflicting = if version >= 160_000 { "s.conflicting" } else { "NULL" };
    let invalidation_reason = if version >= 170_000 { "s.invalidation_reason" } else { "NULL" };
    let failover = if version >= 170_000 {
        "s.failover, s.synced, CASE WHEN s.failover AND NOT pg_catalog.pg_is_in_recovery() \
         THEN pg_catalog.current_setting('synchronized_standby_slots') END"
    } else {
        "NULL, NULL, NULL"
    };
    let retained = format!("GREATEST(0, pg_catalog.pg_wal_lsn_diff(({FLUSH_LSN}), s.restart_lsn))");
    format!(
        "s.slot_name, s.plugin, s.database, pg_catalog.current_database(), s.active_pid, s.restart_lsn, \
         s.confirmed_flush_lsn, s.wal_status, s.safe_wal_size, current_setting('max_slot_wal_keep_size') <> '-1', {retained}, {conflicting}, {invalidation_reason}, \
         s.catalog_xmin, s.temporary, s.two_phase, {failover}"
    )
}

impl Slot {
    /// Another router's slot must not be moved, copied or replaced.
    pub fn check_database(&self, name: &str) -> Result<(), Error> {
        let database = self.database.as_deref().unwrap_or_default();
        if database == self.current_database {
            return Ok(());
        }
        Err(Error::not_safe(
            ErrorCode::SlotOfAnotherDatabase,
            format!(
                "the replication slot {name} belongs to the database {database}, and the router is connected to {}",
                self.current_database
            ),
            "Correct the database in `[postgres] url` if it is wrong. If it is right, choose another name for `[postgres] slot`, \
             because slot names are unique in the whole cluster, and start the router, which says how to create that slot",
        ))
    }

    pub(super) fn read(next: &mut Values<'_>) -> Result<Option<Self>, Unreadable> {
        let name = next();
        let slot = Slot {
            plugin: next(),
            database: next(),
            current_database: next().unwrap_or_default(),
            active_pid: parsed(next())?,
            restart_lsn: parsed(next())?,
            confirmed_flush_lsn: parsed(next())?,
            wal_status: next(),
            safe_wal_size: parsed(next())?,
            limited: flag(next()),
            retained_bytes: parsed(next())?,
            conflicting: flag(next()),
            invalidation_reason: next(),
            catalog_xmin: parsed(next())?,
            temporary: flag(next()),
            two_phase: flag(next()),
            failover: next().map(|text| text == "t"),
            synced: flag(next()),
            waits_for: standby_slots::names(&next().unwrap_or_default()),
        };
        Ok(name.map(|_| slot))
    }
}

/// The client of a server process, as far as this role may see it.
pub async fn holder(session: &mut Session, pid: i32) -> Result<String, QueryError> {
    let sql = format!(
        "SELECT application_name, client_addr, usename FROM pg_catalog.pg_stat_activity WHERE pid = {pid}"
    );
    let rows = session.query(&sql).await?;
    let value = |index| rows.first().and_then(|row| row.get(index)).filter(|text| !text.is_empty());
    let mut text = format!("server process {pid}");
    for (what, value) in [("application_name", value(0)), ("client", value(1)), ("role", value(2))] {
        if let Some(value) = value {
            text.push_str(&format!(", {what} {value}"));
        }
    }
    Ok(text)
}

/// A standby may be promoted or be one of several hosts, so the router waits instead of stopping: it cannot read the
/// standby's copy of the slot until a promotion, and the copy may not exist yet. It can read a slot of the standby's own.
pub(super) fn check_on_standby(slot: Option<&Slot>, postgres: &Postgres) -> Result<(), Error> {
    let name = &postgres.slot;
    let why = match slot {
        Some(slot) if slot.synced || slot.temporary => {
            format!("its copy of the slot {name} can be read only once it is promoted")
        }
        Some(_) => return Ok(()),
        None => format!("it has no slot {name}"),
    };
    let what = format!(
        "the server is a standby, and {why}: waiting for its promotion, or for the primary at a host of `[postgres] url`"
    );
    Err(Error::transient(Peer::Postgres, what))
}

pub(super) fn check(catalog: &Catalog, source: OutboxSource<'_>) -> Result<(), Error> {
    let name = &source.postgres.slot;
    let Some(slot) = &catalog.slot else {
        let what = format!("the replication slot {name} does not exist");
        if !catalog.slot_was_read {
            let text = "Create it, unless the router had a slot of another name: then set that as `[postgres] slot` again";
            let create = first_slot::create(catalog, source, text, &Remedy::default());
            return Err(
                Error::not_safe(ErrorCode::SlotMissing, what, create).meaning(Effect::Lost, UNRETAINED)
            );
        }
        return Err(Error::not_safe(ErrorCode::SlotMissing, what, missing(catalog, source)));
    };
    if slot.plugin.as_deref() != Some("pgoutput") {
        // before `init` there are no rows to save
        let saved = catalog.tables.iter().any(Option::is_some);
        let steps = saved.then(|| without_slot(catalog, source, Former::Foreign)).flatten();
        let create = Step::new(format!(
            "In the configuration set, under `[postgres]`, slot = \"{}\", and create that slot",
            own_slot(source)
        ))
        .typing(catalog.init(source));
        let remedy = match steps {
            Some(steps) => {
                Remedy::steps(steps).or("To go on without the rows that are in the table", [create])
            }
            None => Remedy::steps([create]),
        };
        return Err(Error::not_safe(
            ErrorCode::SlotOfAnotherPlugin,
            match &slot.plugin {
                Some(plugin) => format!("the replication slot {name} uses the plugin {plugin}, not pgoutput"),
                None => format!("the replication slot {name} is a physical slot"),
            },
            remedy,
        ));
    }
    slot.check_database(name)?;
    if slot.is_being_created()
        && let Some(pid) = slot.active_pid
    {
        // it waits for the transactions that are open; what is committed meanwhile is not in it
        return Err(Error::refused_for_now(
            ErrorCode::InitIncomplete,
            format!(
                "server process {pid} is still creating the slot {name}, which waits until all open transactions have ended"
            ),
            format!("Wait until they have, or cancel it with `SELECT pg_cancel_backend({pid})`"),
        ));
    }
    if slot.is_lost() {
        return Err(lost(slot, catalog, source));
    }
    if slot.two_phase {
        let committed = with_suffix(name, "_committed");
        return Err(Error::not_safe(
            ErrorCode::SlotTwoPhase,
            format!(
                "the replication slot {name} was made with two_phase = true: it delivers prepared transactions before they are \
                 committed, but the router sends only committed events"
            ),
            Remedy::steps([
                Step::new(format!(
                    "Copy the slot; the copy does not use two_phase. In the configuration set, under `[postgres]`, slot = \"{committed}\""
                ))
                .sql(slot_functions::copy(name, &committed, false)),
                Step::new(
                    "Start the router. If it stops with OBR-3102, run the --accept-gap command that it prints: no event is left out",
                )
                .typing(format!("outbox-router run{}", shards::argument(source.shard))),
                Step::new(
                    "If no subscription or other program reads the old slot, drop it, because it retains log",
                )
                .sql(slot_functions::drop(name)),
            ]),
        ));
    }
    Ok(())
}

/// What to do if there is no slot.
fn missing(catalog: &Catalog, source: OutboxSource<'_>) -> Remedy {
    let steps = without_slot(catalog, source, Former::Gone).unwrap_or_else(|| {
        vec![
            Step::new(
                "Logical messages are not stored in a table: the applications have to write them again. Create a new slot",
            )
            .typing(catalog.init(source)),
        ]
    });
    let look = Step::new(
        "Check whether the router had a slot of another name, which still has its events: then set that as `[postgres] slot` again",
    )
    .sql(
        "SELECT slot_name, active, confirmed_flush_lsn FROM pg_replication_slots WHERE plugin = 'pgoutput' AND database = current_database()",
    );
    let create = Step::new("Otherwise create it").typing(catalog.init(source));
    let shard = shards::argument(source.shard);
    let go_back = [
        Step::new("List the bookmarks").typing(format!("outbox-router slot list{shard}")),
        Step::new(
            "Create the slot again from one of them, with its name in the place of NAME; what was sent since the bookmark is sent again",
        )
        .typing(format!("outbox-router slot reset --to NAME{shard}")),
    ];
    Remedy::default()
        .or("If this router never had a slot of this name, or to go on without its events", [look, create])
        .or("If it was dropped, or did not survive a failover, and there is a bookmark", go_back)
        .or("If it was dropped, and there is no bookmark", steps)
}

impl Slot {
    /// Whether a server process is still creating it.
    pub fn is_being_created(&self) -> bool {
        self.plugin.is_some() && self.confirmed_flush_lsn.is_none() && self.active_pid.is_some()
    }

    /// Whether Postgres has invalidated it, which is permanent.
    fn is_lost(&self) -> bool {
        let (status, reason) = (self.wal_status.as_deref(), self.invalidation_reason.as_deref());
        slot_invalidation::is_lost(self.confirmed_flush_lsn, status, reason, self.conflicting)
    }
}

fn lost(slot: &Slot, catalog: &Catalog, source: OutboxSource<'_>) -> Error {
    let name = &source.postgres.slot;
    let (reason, prevention) =
        slot_invalidation::cause(slot.invalidation_reason.as_deref(), slot.conflicting, slot.limited);
    let confirmed = slot.confirmed_flush_lsn.map_or("unknown".to_owned(), |lsn| lsn.to_string());
    let what = format!(
        "Postgres has invalidated the replication slot {name} ({reason}); it was confirmed up to {confirmed}"
    );
    let (drop, run) =
        (slot_functions::drop(name), format!("outbox-router run{}", shards::argument(source.shard)));
    let steps = without_slot(catalog, source, Former::Invalidated { catalog_xmin: slot.catalog_xmin }).unwrap_or_else(|| {
        vec![
            Step::new(
                "The events are in no table: the applications have to write them again. Replace the slot, and start the router, which says \
                 how it goes on",
            )
            .sql(drop.clone())
            .typing(catalog.init(source))
            .typing(run.clone()),
        ]
    });
    let go_on = Step::new(
        "Drop the invalidated slot, create a new one, and start the router. If it stops and prints an --accept-gap command, run that",
    )
    .sql(drop)
    .typing(catalog.init(source))
    .typing(run);
    let open = catalog.held_by.as_ref().map(|open| {
        Step::new(format!("Leave no transaction open: {open}, makes slots retain log. {}", open.remedy))
    });
    let prevent = open.into_iter().chain([Step::new(prevention)]);
    let remedy = Remedy::steps(steps)
        .or("To go on without the events that may be missing", [go_on])
        .or("To prevent this in future", prevent);
    Error::not_safe(ErrorCode::SlotLost, what, remedy)
}

/// The slot that a new one replaces.
#[derive(Clone, Copy)]
enum Former {
    Gone,
    /// The `catalog_xmin` of an invalidated slot survives.
    Invalidated {
        catalog_xmin: Option<u32>,
    },
    /// It belongs to another program, and stays.
    Foreign,
}

/// How a new slot replaces a former one, and how the rows that neither of them has are found and sent. The new slot is created
/// before the rows are read, so that none is committed in between. `None`: there is no table.
fn without_slot(catalog: &Catalog, source: OutboxSource<'_>, former: Former) -> Option<Vec<Step>> {
    let catalog_xmin = match former {
        Former::Invalidated { catalog_xmin } => catalog_xmin,
        Former::Gone | Former::Foreign => None,
    };
    let create = match former {
        Former::Foreign => format!(
            "In the configuration set, under `[postgres]`, slot = \"{}\", and create that slot",
            own_slot(source)
        ),
        Former::Gone => "Create a new slot".to_owned(),
        Former::Invalidated { .. } => "Drop the invalidated slot, and create a new one".to_owned(),
    };
    let saved = match catalog_xmin {
        Some(_) => {
            "the rows committed after the old slot's position, a few that were sent shortly before it, and those committed since the new \
             slot exists"
        }
        None => "all rows of the table, since Postgres does not know which of them were sent without a slot",
    };
    let mut save = Step::new(format!(
        "{create}. It has what is committed from then on. At once, as an administrator, save what it lacks: {saved}. Rows deleted since, and \
         logical messages, cannot be recovered like this"
    ));
    if let Former::Invalidated { .. } = former {
        save = save.sql(slot_functions::drop(&source.postgres.slot));
    }
    let save = save.typing(catalog.init(source));
    recovery_sql::send_from_table(source, &catalog.named, catalog_xmin, save, "")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::load::load;
    use crate::error::Exit;
    use crate::postgres::open_transaction::tests::transaction;
    use pg_logical::Environment;

    pub(crate) fn slot() -> Slot {
        Slot {
            plugin: Some("pgoutput".into()),
            database: Some("shop".into()),
            current_database: "shop".into(),
            active_pid: None,
            restart_lsn: Some(Lsn(1)),
            confirmed_flush_lsn: Some(Lsn(2)),
            wal_status: Some("reserved".into()),
            safe_wal_size: None,
            limited: true,
            retained_bytes: Some(10),
            conflicting: false,
            invalidation_reason: None,
            catalog_xmin: Some(7),
            temporary: false,
            two_phase: false,
            failover: Some(false),
            synced: false,
            waits_for: Vec::new(),
        }
    }

    fn with(slot: Option<&Slot>) -> Catalog {
        Catalog { slot: slot.cloned(), superuser: true, ..Catalog::default() }
    }

    fn refused(slot: Option<&Slot>) -> String {
        match check(&with(slot), config().source()) {
            Err(Error::Definite(definite)) if definite.exit == Exit::Unsafe => definite.to_string(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn config() -> Config {
        let env = Environment::empty()
            .with_variable("OUTBOX_ROUTER_POSTGRES__URL", "postgres://router@db/shop")
            .with_variable("OUTBOX_ROUTER_KAFKA__BOOTSTRAP_SERVERS", "kafka:9092");
        load(None, &env).unwrap().config
    }

    #[test]
    fn a_slot_of_ours_is_taken_once_it_is_complete() {
        assert_eq!(check(&with(Some(&slot())), config().source()), Ok(()));
        let being_made = Slot { confirmed_flush_lsn: None, active_pid: Some(7), ..slot() };
        let waits = check(&with(Some(&being_made)), config().source());
        assert!(matches!(&waits, Err(Error::Transient(_))), "{waits:?}");
    }

    #[test]
    fn no_guessing_about_a_slot_that_is_missing_foreign_or_lost() {
        assert!(refused(None).contains("does not exist"));
        assert!(refused(Some(&Slot { plugin: None, ..slot() })).contains("physical"));
        let other_plugin = Slot { plugin: Some("test_decoding".into()), ..slot() };
        assert!(refused(Some(&other_plugin)).contains("test_decoding"));
        let other_database = Slot { database: Some("crm".into()), ..slot() };
        assert!(refused(Some(&other_database)).contains("the database crm"));
        for lost in [
            Slot { wal_status: Some("lost".into()), ..slot() },
            Slot { conflicting: true, ..slot() },
            Slot { invalidation_reason: Some("wal_removed".into()), ..slot() },
        ] {
            assert!(refused(Some(&lost)).contains("invalidated"));
        }
    }

    #[test]
    fn a_two_phase_slot_is_refused_with_a_remedy() {
        let text = refused(Some(&Slot { two_phase: true, ..slot() }));
        assert!(
            text.contains(
                "pg_copy_logical_replication_slot('outbox_router', 'outbox_router_committed', false)"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_standby_is_waited_for_unless_the_slot_is_its_own() {
        let on_a_standby = |slot: Option<&Slot>| check_on_standby(slot, &config().postgres);
        assert_eq!(on_a_standby(Some(&slot())), Ok(()));
        let synced = Slot { synced: true, ..slot() };
        let being_made = Slot { temporary: true, ..slot() };
        for slot in [None, Some(&synced), Some(&being_made)] {
            let Err(Error::Transient(waiting)) = on_a_standby(slot) else { panic!("{slot:?}") };
            assert!(waiting.what.contains("is a standby"), "{waiting}");
        }
    }

    #[test]
    fn a_slot_that_is_lost_says_why_and_how_to_find_what_is_missing() {
        for (reason, part) in [
            ("wal_removed", "Raise max_slot_wal_keep_size"),
            ("idle_timeout", "idle_replication_slot_timeout = 0"),
            ("rows_removed", "hot_standby_feedback = on"),
            ("wal_level_insufficient", "wal_level = logical"),
            ("a_later_one", "in the manual"),
        ] {
            let text = refused(Some(&Slot { invalidation_reason: Some(reason.into()), ..slot() }));
            assert!(text.contains(reason) && text.contains(part) && text.contains("up to 0/2"), "{text}");
            assert!(text.contains("WHERE age(xmin) <= age('7'::xid);`"), "{text}");
        }
        let lost = Slot { wal_status: Some("lost".into()), ..slot() };
        let untold = refused(Some(&lost));
        assert!(untold.contains("wal_removed"), "{untold}");
        let unlimited = refused(Some(&Slot { limited: false, ..lost.clone() }));
        assert!(unlimited.contains("does not say why") && !unlimited.contains("Raise"), "{unlimited}");
        let held_by = Some(transaction(["", "tx1", "", "billing", "app", "", "10800"]));
        let held =
            check(&Catalog { held_by, ..with(Some(&lost)) }, config().source()).unwrap_err().to_string();
        assert!(
            held.contains("tx1 (database billing, role app), open for 3 hours")
                && held.contains("ROLLBACK PREPARED 'tx1'"),
            "{held}"
        );
    }
}
