//! Whether the slot survives the loss of the primary, as far as the primary and the standbys in the URL can tell.
//!
//! From Postgres 17 on, a standby keeps a copy of a slot that has `failover` (Postgres manual, "Logical Decoding Concepts",
//! "Replication Slot Synchronization"). The standby is only sure to have everything the router has sent if the primary waits
//! for it (`synchronized_standby_slots`).

use pg_logical::connect::Startup;
use pg_logical::conninfo::{Host, TargetSessionAttrs};
use pg_logical::quoting::literal;
use pg_logical::session::Session;

use super::finding::Findings;
use crate::commands::connect;
use crate::commands::init::alter_failover;
use crate::commands::server::{FAILOVER_SLOTS, Server};
use crate::config::Config;
use crate::error::Error;
use crate::postgres::catalog::{Catalog, Slot};
use crate::postgres::standby_slots;

/// What the primary knows about its standbys.
#[derive(Debug, Default)]
struct Standbys {
    /// Physical slots that are being read.
    slots: Vec<String>,
    /// Whether a standby is streaming, with or without a slot.
    streaming: bool,
    /// The slots in `synchronized_standby_slots`, and whether each is being read.
    waited_for: Vec<(String, bool)>,
}

pub(super) async fn judge(
    session: &mut Session,
    config: &Config,
    server: &Server,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<(), Error> {
    // a connection to a standby already has a warning of its own
    let (false, Some(slot)) = (catalog.standby, &catalog.slot) else { return Ok(()) };
    let standbys = Standbys::look(session).await?;
    if config.postgres.conninfo.hosts.len() < 2 && standbys.slots.is_empty() && !standbys.streaming {
        findings.ok("failover", unneeded(server, slot));
        return Ok(());
    }
    let name = &config.postgres.slot;
    match slot.failover {
        None => findings.warning(
            "failover",
            "there are standbys, and before Postgres 17 none of them keeps a copy of a logical slot: after a promotion the \
             slot is missing, and the router stops (exit code 3)",
            "Upgrade Postgres to 17 or later. Until then be prepared, after a promotion, to compare the outbox table with the \
             topics and to run `outbox-router init` before applications write again",
        ),
        Some(false) => findings.warning(
            "failover",
            format!(
                "there are standbys, and the slot {name} was made without failover, so none of them keeps a copy: after a \
                 promotion the slot is missing, and the router stops (exit code 3)"
            ),
            format!(
                "Stop the router and run `outbox-router init`, or psql 'host=... dbname={} replication=database' -c '{}'",
                config.postgres.conninfo.dbname,
                alter_failover(name)
            ),
        ),
        Some(true) => {
            standbys.judge(findings);
            ask_standbys(config, findings).await;
        }
    }
    Ok(())
}

fn unneeded(server: &Server, slot: &Slot) -> &'static str {
    match slot.failover {
        Some(true) => "no standby is known; one may keep a copy of the slot",
        Some(false) => {
            "no standby is known; before there is one, stop the router and run `outbox-router init`, which lets it keep a copy \
             of the slot"
        }
        None if server.number < FAILOVER_SLOTS => {
            "no standby is known; before Postgres 17 none keeps a copy of the slot, and after a promotion the router would \
             stop (exit code 3)"
        }
        None => "no standby is known",
    }
}

impl Standbys {
    async fn look(session: &mut Session) -> Result<Self, Error> {
        let rows = session
            .query(
                "SELECT s.slot_name, s.active FROM pg_catalog.pg_replication_slots s WHERE s.slot_type = 'physical' \
                 ORDER BY s.slot_name",
            )
            .await?;
        let known: Vec<(String, bool)> =
            rows.iter().filter_map(|row| Some((row.get(0)?.to_owned(), row.get(1) == Some("t")))).collect();
        // a role without pg_monitor sees no states; then only the slots show standbys
        let streaming = session
            .query_one(
                "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_replication r WHERE r.state IN ('streaming', 'catchup') \
                 AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid \
                 AND s.slot_type = 'logical'))",
            )
            .await?;
        let waited_for =
            session.query_one("SELECT current_setting('synchronized_standby_slots', true)").await?;
        let waited_for = standby_slots::names(&waited_for.unwrap_or_default()).into_iter();
        Ok(Standbys {
            waited_for: waited_for
                .map(|name| {
                    let active = known.contains(&(name.clone(), true));
                    (name, active)
                })
                .collect(),
            slots: known.into_iter().filter(|(_, active)| *active).map(|(name, _)| name).collect(),
            streaming: streaming.as_deref() == Some("t"),
        })
    }

    fn judge(&self, findings: &mut Findings) {
        for (name, _) in self.waited_for.iter().filter(|(_, active)| !active) {
            findings.error(
                "failover",
                format!("synchronized_standby_slots names {name}, and no standby reads that slot: events wait until one does"),
                format!(
                    "Bring the standby back, whose primary_slot_name is {name}, or take it out of synchronized_standby_slots \
                     and SELECT pg_reload_conf()"
                ),
            );
        }
        if self.waited_for.iter().any(|(_, active)| !active) {
            return;
        }
        if self.slots.is_empty() {
            findings.warning(
                "failover",
                "no standby reads a physical slot, and only one that does keeps a copy of the router's slot",
                "Here SELECT pg_create_physical_replication_slot('standby', true), and on the standby \
                 primary_slot_name = 'standby'",
            );
        } else if self.waited_for.is_empty() {
            let names = self.slots.join(", ");
            findings.warning(
                "failover",
                format!(
                    "no standby is waited for (slots: {names}): one that is promoted may lack what the router has sent, and \
                     then the router stops (exit code 3)"
                ),
                format!(
                    "ALTER SYSTEM SET synchronized_standby_slots = {}; SELECT pg_reload_conf(). Then an event is sent only when \
                     these have it, and waits while one of them is away",
                    literal(&names)
                ),
            );
        } else {
            let names: Vec<&str> = self.waited_for.iter().map(|(name, _)| name.as_str()).collect();
            findings.ok("failover", format!("events are sent when these have them: {}", names.join(", ")));
        }
    }
}

/// Asks the standbys among the hosts. If there are none, the finding explains what to look at.
async fn ask_standbys(config: &Config, findings: &mut Findings) {
    let hosts = &config.postgres.conninfo.hosts;
    let mut known = false;
    for host in hosts.iter().filter(|_| hosts.len() > 1) {
        known |= ask(config, host, findings).await.unwrap_or_else(|error| {
            findings.skipped("failover_standby", format!("a host cannot be asked: {error}"));
            true
        });
    }
    if !known {
        findings.skipped(
            "failover_standby",
            format!(
                "no host of `[postgres] url` is a standby that could be asked. Each needs sync_replication_slots = on, \
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
    let is_standby = judge_standby(&mut session, &config, findings).await;
    session.close().await;
    is_standby
}

/// Judges the copy of the slot, if the server is a standby.
async fn judge_standby(
    session: &mut Session,
    config: &Config,
    findings: &mut Findings,
) -> Result<bool, Error> {
    let catalog = Catalog::query(session, &config.postgres, &config.outbox).await?;
    if !catalog.standby {
        return Ok(false);
    }
    let wrong = wrong_settings(session).await?;
    judge_copy(&session.info().place, &config.postgres.slot, catalog.slot.as_ref(), &wrong, findings);
    Ok(true)
}

/// Settings of a standby that prevent a copy.
async fn wrong_settings(session: &mut Session) -> Result<Vec<&'static str>, Error> {
    // primary_conninfo may hold a password, so it is evaluated on the server. A role that may not read it gets no answer
    // about it
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

fn judge_copy(place: &str, name: &str, slot: Option<&Slot>, wrong: &[&str], findings: &mut Findings) {
    if !wrong.is_empty() {
        findings.warning(
            "failover_standby",
            format!("the standby {place} keeps no copy of the slot {name}: its settings do not let it"),
            format!("Set there {}, and SELECT pg_reload_conf()", wrong.join(", and ")),
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
            format!("the standby {place} is still making its copy of the slot {name}, and would lose it if promoted now"),
            "It is ready once the router has confirmed past what the standby keeps: let the router run, and check again",
        ),
        Some(_) => findings.warning(
            "failover_standby",
            format!("the standby {place} has a slot {name} of its own, so it keeps no copy of the primary's"),
            format!("There SELECT pg_drop_replication_slot({})", literal(name)),
        ),
        None => findings.warning(
            "failover_standby",
            format!("the standby {place} has no copy of the slot {name} yet"),
            "It makes one within half a minute: check again, and look for \"slot sync\" in its log",
        ),
    }
}
