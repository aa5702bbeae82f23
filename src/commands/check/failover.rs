//! Whether the slot survives the loss of the primary, as far as the primary and the standbys in the URL show.
//!
//! From Postgres 17 on, a standby keeps a copy of a slot that has `failover` (Postgres manual, "Logical Decoding Concepts",
//! "Replication Slot Synchronization"). The standby only has everything that the router has sent if the primary waits for the
//! standby (`synchronized_standby_slots`).

use std::time::Duration;

use pg_logical::Lsn;
use pg_logical::connect::Startup;
use pg_logical::conninfo::{Host, TargetSessionAttrs};
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use tokio::time::{Instant, sleep};

use super::finding::Findings;
use crate::commands::connect;
use crate::commands::init::alter_failover;
use crate::commands::server::{FAILOVER_SLOTS, Server};
use crate::config::Config;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::postgres::catalog::{Catalog, Slot};
use crate::postgres::standby_slots::{self, STANDBY_GRACE, Unconfirmed};

/// How often to ask whether a standby has confirmed.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What the primary knows about its standbys.
#[derive(Debug, Default)]
struct Standbys {
    /// Active physical slots.
    slots: Vec<String>,
    /// Whether a standby is streaming, with or without a slot.
    streaming: bool,
    /// The slots in `synchronized_standby_slots`, and whether each is active.
    synchronized: Vec<(String, bool)>,
}

pub(super) async fn check(
    session: &mut Session,
    config: &Config,
    server: &Server,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<(), Error> {
    // check_version warns if the server is a standby
    let (false, Some(slot)) = (catalog.standby, &catalog.slot) else { return Ok(()) };
    let standbys = Standbys::query(session).await?;
    let waits = slot.failover == Some(true) && !standbys.synchronized.is_empty();
    if config.postgres.conninfo.hosts.len() < 2 && standbys.slots.is_empty() && !standbys.streaming && !waits
    {
        findings.ok("failover", unneeded(server, slot));
        return Ok(());
    }
    let name = &config.postgres.slot;
    match slot.failover {
        None => findings.warning(
            "failover",
            "there are standbys, and before Postgres 17 none of them keeps a copy of a logical slot: after a promotion the \
             slot is missing, and the router stops (exit code 3)",
            "Upgrade Postgres to 17 or later. Until then, after a promotion, start the router before applications write again: it stops with \
             OBR-3001 and prints the steps",
        ),
        Some(false) => findings.warning(
            "failover",
            format!(
                "there are standbys, and the slot {name} was created without failover, so none of them keeps a copy: after a \
                 promotion the slot is missing, and the router stops (exit code 3)"
            ),
            format!(
                "Stop the router and run `outbox-router init`, or psql 'host=... dbname={} replication=database' -c '{}'",
                config.postgres.conninfo.dbname,
                alter_failover(name)
            ),
        ),
        Some(true) => {
            standbys.check(session, findings).await?;
            ask_standbys(config, findings).await;
        }
    }
    Ok(())
}

fn unneeded(server: &Server, slot: &Slot) -> &'static str {
    match slot.failover {
        Some(true) => "no standby is known; one may keep a copy of the slot",
        Some(false) => {
            "no standby is known; before you add one, stop the router and run `outbox-router init`, so that the standby keeps a \
             copy of the slot"
        }
        None if server.number < FAILOVER_SLOTS => {
            "no standby is known; before Postgres 17 a standby keeps no copy of the slot, and after a promotion the router \
             would stop (exit code 3)"
        }
        None => "no standby is known",
    }
}

impl Standbys {
    async fn query(session: &mut Session) -> Result<Self, Error> {
        let rows = session
            .query(
                "SELECT s.slot_name, s.active FROM pg_catalog.pg_replication_slots s WHERE s.slot_type = 'physical' \
                 ORDER BY s.slot_name",
            )
            .await?;
        let known: Vec<(String, bool)> =
            rows.iter().filter_map(|row| Some((row.get(0)?.to_owned(), row.get(1) == Some("t")))).collect();
        // A role without pg_monitor sees no states, so then only slots show that there are standbys. The reader of a logical slot is in
        // a database; whether it has its slot at this moment does not matter.
        let streaming = session
            .query_one(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_replication r JOIN pg_catalog.pg_stat_activity a ON a.pid = r.pid \
                 WHERE r.state IN ('streaming', 'catchup') AND a.datid IS NULL)",
            )
            .await?;
        let synchronized =
            session.query_one("SELECT current_setting('synchronized_standby_slots', true)").await?;
        let synchronized = standby_slots::names(&synchronized.unwrap_or_default()).into_iter();
        Ok(Standbys {
            synchronized: synchronized
                .map(|name| {
                    let active = known.contains(&(name.clone(), true));
                    (name, active)
                })
                .collect(),
            slots: known.into_iter().filter(|(_, active)| *active).map(|(name, _)| name).collect(),
            streaming: streaming.as_deref() == Some("t"),
        })
    }

    async fn check(&self, session: &mut Session, findings: &mut Findings) -> Result<(), Error> {
        for (name, _) in self.synchronized.iter().filter(|(_, active)| !active) {
            findings.error(
                "failover",
                ErrorCode::StandbyAway,
                format!("synchronized_standby_slots names {name}, and no standby reads that slot: events wait until one does"),
                format!(
                    "Start the standby whose primary_slot_name is {name}, or remove the slot from synchronized_standby_slots and \
                     SELECT pg_reload_conf()"
                ),
            );
        }
        if self.synchronized.iter().any(|(_, active)| !active) {
            return Ok(());
        }
        let behind = self.behind(session).await?;
        if !behind.is_empty() {
            let what = standby_slots::reason(&behind);
            findings.error("failover", ErrorCode::StandbyAway, what, standby_slots::REMEDY);
            return Ok(());
        }
        if self.slots.is_empty() {
            findings.warning(
                "failover",
                "no standby reads a physical slot, and only a standby that does can keep a copy of the router's slot",
                "Run SELECT pg_create_physical_replication_slot('standby', true) here, and set primary_slot_name = 'standby' on \
                 the standby",
            );
        } else if self.synchronized.is_empty() {
            let names = self.slots.join(", ");
            findings.warning(
                "failover",
                format!(
                    "the primary does not wait for standbys (slots: {names}): a promoted standby may lack events that the router \
                     has sent, and then the router stops (exit code 3)"
                ),
                format!(
                    "ALTER SYSTEM SET synchronized_standby_slots = {}; SELECT pg_reload_conf(). Then an event is sent only once \
                     these standbys have it, and waits while one of them is down",
                    literal(&names)
                ),
            );
        } else {
            let names: Vec<&str> = self.synchronized.iter().map(|(name, _)| name.as_str()).collect();
            findings.ok(
                "failover",
                format!("events are sent once these standbys have them: {}", names.join(", ")),
            );
        }
        Ok(())
    }

    /// The standbys that Postgres waits for, if they do not soon have what is in its log now.
    async fn behind(&self, session: &mut Session) -> Result<Vec<Unconfirmed>, Error> {
        let names: Vec<String> = self.synchronized.iter().map(|(name, _)| name.clone()).collect();
        let log_end = session.query_one("SELECT pg_catalog.pg_current_wal_flush_lsn()").await?;
        let log_end = log_end.and_then(|lsn| lsn.parse().ok()).unwrap_or(Lsn::INVALID);
        let deadline = Instant::now() + STANDBY_GRACE;
        loop {
            let behind = standby_slots::unconfirmed(session, &names, log_end).await?;
            if behind.is_empty() || Instant::now() >= deadline {
                return Ok(behind);
            }
            sleep(ASK_AGAIN).await;
        }
    }
}

/// Checks the standbys among the hosts. If there are none, the finding explains what to check by hand.
async fn ask_standbys(config: &Config, findings: &mut Findings) {
    let hosts = &config.postgres.conninfo.hosts;
    let mut known = false;
    for host in hosts.iter().filter(|_| hosts.len() > 1) {
        known |= ask(config, host, findings).await.unwrap_or_else(|error| {
            findings.skipped("failover_standby", format!("a host could not be checked: {error}"));
            true
        });
    }
    if !known {
        findings.skipped(
            "failover_standby",
            format!(
                "no host of `[postgres] url` is a standby that could be checked. Each needs sync_replication_slots = on, \
                 hot_standby_feedback = on, primary_slot_name, and dbname=... in primary_conninfo; then SELECT synced, \
                 temporary FROM pg_replication_slots WHERE slot_name = {} shows t and f there",
                literal(&config.postgres.slot)
            ),
        );
    }
}

/// Returns whether the host is a standby.
async fn ask(config: &Config, host: &Host, findings: &mut Findings) -> Result<bool, Error> {
    let mut config = config.clone();
    config.postgres.conninfo.hosts = vec![host.clone()];
    config.postgres.conninfo.target_session_attrs = TargetSessionAttrs::Any;
    let mut session = connect(&config, "check", Startup::default()).await?;
    let is_standby = check_standby(&mut session, &config, findings).await;
    session.close().await;
    is_standby
}

/// Checks the copy of the slot, if the server is a standby.
async fn check_standby(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<bool, Error> {
    let catalog = Catalog::query(session, &config.postgres, &config.outbox).await?;
    if !catalog.standby {
        return Ok(false);
    }
    let wrong = wrong_settings(session).await?;
    check_copy(&session.info().place, &config.postgres.slot, catalog.slot.as_ref(), &wrong, findings);
    Ok(true)
}

/// The settings that a standby lacks to keep a copy.
async fn wrong_settings(session: &mut Session) -> Result<Vec<&'static str>, Error> {
    // primary_conninfo may contain a password, so the server evaluates it. For a role that may not read it, this setting passes
    let questions = [
        (
            "sync_replication_slots = on",
            "coalesce(current_setting('sync_replication_slots', true), '') <> 'on'",
        ),
        ("hot_standby_feedback = on", "current_setting('hot_standby_feedback') <> 'on'"),
        ("primary_slot_name, a slot of the primary", "current_setting('primary_slot_name') = ''"),
        (
            "dbname=... in primary_conninfo",
            "EXISTS (SELECT FROM pg_catalog.pg_settings s WHERE s.name = 'primary_conninfo' \
             AND s.setting !~ '(dbname *=|^postgres(ql)?://[^/]*/[^?])')",
        ),
    ];
    let mut wrong = Vec::new();
    for (setting, question) in questions {
        if session.query_one(&format!("SELECT {question}")).await?.as_deref() == Some("t") {
            wrong.push(setting);
        }
    }
    Ok(wrong)
}

fn check_copy(place: &str, name: &str, slot: Option<&Slot>, wrong: &[&str], findings: &mut Findings) {
    if !wrong.is_empty() {
        findings.warning(
            "failover_standby",
            format!("the standby {place} keeps no copy of the slot {name}, because its settings prevent it"),
            format!("On the standby set {}, and SELECT pg_reload_conf()", wrong.join(", and ")),
        );
        return;
    }
    match slot {
        Some(slot) if slot.synced && !slot.temporary && slot.invalidation_reason.is_none() => {
            let confirmed = slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()).unwrap_or_default();
            findings.ok(
                "failover_standby",
                format!("the standby {place} keeps a copy of the slot, confirmed up to {confirmed}"),
            );
        }
        Some(slot) if slot.synced => findings.warning(
            "failover_standby",
            format!("the standby {place} is still creating its copy of the slot {name}, and would lose it if promoted now"),
            "The copy is ready once the router has confirmed past the log that the standby retains: let the router run, and check again",
        ),
        Some(_) => findings.warning(
            "failover_standby",
            format!("the standby {place} has a slot {name} of its own, so it keeps no copy of the primary's"),
            Remedy::steps([Step::new(
                "If nobody reads the standby's own slot, drop it, on the standby: whoever reads it loses what it has not read yet",
            )
            .sql(format!("SELECT pg_drop_replication_slot({})", literal(name)))]),
        ),
        None => findings.warning(
            "failover_standby",
            format!("the standby {place} has no copy of the slot {name} yet"),
            "The standby creates one within half a minute: check again, and search its log for \"slot sync\"",
        ),
    }
}
