//! Bookmarks that the router makes by itself, at regular intervals beside the stream. It drops the oldest in time.

use std::time::Duration;

use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, Host};
use pg_logical::session::Session;
use time::OffsetDateTime;
use tokio::task::JoinHandle;

use super::{Bookmark, KnownBookmarks, drop_slot, list, make, parse_stamp, stamp};
use crate::config::Postgres;
use crate::config::bookmarks::Bookmarks;
use crate::error::{Effect, Error, ErrorCode, Peer};
use crate::quantity::bytes;

/// How often the log retained by the oldest is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How long a check may take before its session is abandoned.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes and drops bookmarks until it is dropped itself.
#[derive(Debug)]
pub struct RollingBookmarks(JoinHandle<()>);

impl RollingBookmarks {
    /// Starts for a router of this name and its slot, on the server that the stream comes from.
    pub fn start(
        name: &str,
        postgres: &Postgres,
        settings: Bookmarks,
        host: Host,
        seen: KnownBookmarks,
    ) -> Self {
        let mut conninfo = postgres.conninfo.clone();
        conninfo.hosts = vec![host];
        let (name, slot) = (name.to_owned(), postgres.slot.clone());
        let maker = Maker { name, slot, conninfo, settings, seen, failed: None };
        RollingBookmarks(tokio::spawn(maker.run()))
    }
}

impl Drop for RollingBookmarks {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Maker {
    /// The name of the router.
    name: String,
    slot: String,
    conninfo: ConnInfo,
    settings: Bookmarks,
    /// What the catalogue watch has seen too.
    seen: KnownBookmarks,
    /// The last failure, which is logged once.
    failed: Option<String>,
}

impl Maker {
    async fn run(mut self) {
        loop {
            let round = async {
                let mut session = self.connect().await?;
                self.make_and_drop(&mut session).await?;
                session.close().await;
                Ok::<(), Error>(())
            };
            let late = |_| Err(Error::transient(Peer::Postgres, "no answer"));
            match tokio::time::timeout(TIMEOUT, round).await.unwrap_or_else(late) {
                Ok(()) => self.failed = None,
                Err(error) => {
                    let reason = error.to_string();
                    if self.failed.as_ref() != Some(&reason) {
                        tracing::warn!(
                            peer = "postgres",
                            reason,
                            "no bookmark can be made; the router keeps trying"
                        );
                    }
                    self.failed = Some(reason);
                }
            }
            tokio::time::sleep(CHECK_INTERVAL.min(self.settings.every)).await;
        }
    }

    async fn connect(&self) -> Result<Session, Error> {
        let name = format!("{} bookmarks", self.name);
        let startup = Startup { application_name: &name, ..Startup::default() };
        Ok(Session::connect(&self.conninfo, &startup).await?)
    }

    async fn make_and_drop(&self, session: &mut Session) -> Result<(), Error> {
        let slot = &self.slot;
        let known = list(session, slot).await?;
        // before the lost ones are dropped
        self.seen.look(known.clone());
        let now = parse_stamp(&stamp(session).await?).unwrap_or_else(OffsetDateTime::now_utc);
        let plan = plan(&known, &self.settings, now);
        for bookmark in plan.dropped {
            self.seen.drops(bookmark);
            drop_slot(session, &bookmark.slot).await?;
            let kept = bytes(bookmark.retained_bytes);
            let why = if bookmark.is_lost() { "it is lost" } else { plan.why };
            tracing::info!(bookmark = bookmark.title(), kept, why, "bookmark dropped");
        }
        if plan.due {
            leave_room(session).await?;
            let made = make(session, slot, "").await?;
            tracing::debug!(slot = made, "bookmark made");
        }
        Ok(())
    }
}

/// Refuses to take the last free slot: a router whose slot has to be created again, a bulk read or a backup would find none.
async fn leave_room(session: &mut Session) -> Result<(), Error> {
    let sql = "SELECT current_setting('max_replication_slots'), \
               (SELECT count(*) FROM pg_catalog.pg_replication_slots)";
    let rows = session.query(sql).await?;
    let number = |column| rows.first().and_then(|row| row.get(column)?.parse().ok()).unwrap_or(0);
    may_take_slot(number(1), number(0))
}

/// Whether a bookmark may take a slot, if so many are in use.
fn may_take_slot(used: u32, max: u32) -> Result<(), Error> {
    if used.saturating_add(1) < max {
        return Ok(());
    }
    Err(Error::refused(
        ErrorCode::NoFreeSlot,
        format!("{used} of max_replication_slots = {max} are in use, and a bookmark leaves one free"),
        "Raise max_replication_slots and restart Postgres, or lower `[bookmarks] keep`; `outbox-router slot list` shows the bookmarks",
    )
    .meaning(Effect::None, ""))
}

/// What has to be done.
#[derive(Debug, PartialEq, Eq)]
struct Plan<'a> {
    dropped: Vec<&'a Bookmark>,
    why: &'static str,
    due: bool,
}

/// Bookmarks made by a person are left alone. `known` is sorted by age.
fn plan<'a>(known: &'a [Bookmark], settings: &Bookmarks, now: OffsetDateTime) -> Plan<'a> {
    let own: Vec<&Bookmark> = known.iter().filter(|bookmark| bookmark.name.is_empty()).collect();
    let due = own.last().is_none_or(|last| now - last.made >= settings.every);
    let beyond = (own.len() + usize::from(due)).saturating_sub(settings.keep);
    let over = |bookmark: &Bookmark| {
        bookmark.is_lost() || settings.max_retained_wal.is_some_and(|most| bookmark.retained_bytes > most)
    };
    let expensive = own.iter().take_while(|bookmark| over(bookmark)).count();
    let why = if expensive > beyond { "it holds back more than max_retained_wal" } else { "keep" };
    Plan { dropped: own.into_iter().take(beyond.max(expensive)).collect(), why, due }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_logical::Lsn;

    fn bookmark(minute: i64, retained: u64, name: &str) -> Bookmark {
        Bookmark {
            slot: format!("shop_bookmark_{name}{minute}"),
            name: name.into(),
            made: OffsetDateTime::UNIX_EPOCH + time::Duration::minutes(minute),
            position: Some(Lsn(1)),
            retained_bytes: retained,
            wal_status: "reserved".into(),
            invalidation_reason: None,
            conflicting: false,
            limited: false,
        }
    }

    fn planned(known: &[Bookmark], keep: usize, most: Option<u64>, minute: i64) -> (Vec<String>, bool) {
        let settings = Bookmarks { every: Duration::from_secs(600), keep, max_retained_wal: most };
        let plan = plan(known, &settings, OffsetDateTime::UNIX_EPOCH + time::Duration::minutes(minute));
        (plan.dropped.iter().map(|bookmark| bookmark.slot.clone()).collect(), plan.due)
    }

    #[test]
    fn the_last_free_slot_is_left() {
        for (used, max, may) in
            [(0, 10, true), (8, 10, true), (9, 10, false), (10, 10, false), (12, 10, false)]
        {
            assert_eq!(may_take_slot(used, max).is_ok(), may, "{used} of {max}");
        }
    }

    #[test]
    fn the_oldest_goes_first_by_number_and_by_what_it_keeps() {
        let known =
            [bookmark(0, 900, ""), bookmark(5, 800, "mine"), bookmark(10, 500, ""), bookmark(20, 100, "")];
        let slot = |minute: i64| format!("shop_bookmark_{minute}");
        assert_eq!(planned(&[], 3, None, 0), (vec![], true));
        assert_eq!(planned(&known, 3, None, 25), (vec![], false));
        assert_eq!(planned(&known, 3, None, 30), (vec![slot(0)], true));
        assert_eq!(planned(&known, 1, None, 30), (vec![slot(0), slot(10), slot(20)], true));
        assert_eq!(planned(&known, 9, Some(500), 25), (vec![slot(0)], false));
        assert_eq!(planned(&known, 9, Some(99), 25), (vec![slot(0), slot(10), slot(20)], false));
        for lost in [
            Bookmark { position: None, ..bookmark(0, 0, "") },
            Bookmark { wal_status: "lost".into(), ..bookmark(0, 0, "") },
            Bookmark { invalidation_reason: Some("idle_timeout".into()), ..bookmark(0, 0, "") },
            Bookmark { conflicting: true, ..bookmark(0, 0, "") },
        ] {
            assert_eq!(planned(&[lost, bookmark(10, 500, "")], 9, None, 15), (vec![slot(0)], false));
        }
    }
}
