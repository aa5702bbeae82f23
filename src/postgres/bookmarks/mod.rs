//! Bookmarks: copies of the router's slot that do not move, so that the position can go back to them.
//!
//! Postgres cannot move a logical slot backwards, but a copy made in time holds the log from its position on. The copy's name
//! contains the router's slot, the bookmark's name, and when it was made:
//! `outbox_router_bookmark_before_import_20261121140500`.

mod known;
mod rolling;

use pg_logical::Lsn;
use pg_logical::QueryError;
use pg_logical::quoting::literal;
use pg_logical::session::Session;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

use super::catalog::FLUSH_LSN;
use super::{slot_functions, slot_invalidation};
use crate::advice::OrRemedy;
use crate::error::{Error, ErrorCode, Peer};
use crate::utc::Utc;

pub use known::KnownBookmarks;
pub use rolling::RollingBookmarks;

/// The longest name of a slot (Postgres manual, "NAMEDATALEN").
const MAX_LENGTH: usize = 63;

/// The length of `20261121140500`.
const STAMP: usize = 14;

/// A slot to go back to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmark {
    /// The name of the copy.
    pub slot: String,
    /// Its name; empty if the router made it by itself.
    pub name: String,
    /// When it was made, by the server's clock.
    pub made: OffsetDateTime,
    /// The position to go back to: `confirmed_flush_lsn`. `None`: it is lost.
    pub position: Option<Lsn>,
    /// Bytes of log that it retains.
    pub retained_bytes: u64,
    /// `wal_status`
    pub wal_status: String,
    /// `invalidation_reason`, from 17 on.
    pub invalidation_reason: Option<String>,
    /// `conflicting`, from 16 on.
    pub conflicting: bool,
    /// Whether `max_slot_wal_keep_size` is set.
    pub limited: bool,
}

impl Bookmark {
    /// Its name, or else the time when it was made.
    pub fn title(&self) -> String {
        if self.name.is_empty() { self.made() } else { self.name.clone() }
    }

    /// `2026-11-21T14:05:00.000Z`
    pub fn made(&self) -> String {
        Utc::from(self.made).to_string()
    }

    /// Whether Postgres has invalidated it, which is permanent.
    pub fn is_lost(&self) -> bool {
        let reason = self.invalidation_reason.as_deref();
        slot_invalidation::is_lost(self.position, Some(&self.wal_status), reason, self.conflicting)
    }

    /// Why it is lost, as far as the server says, and how to prevent that.
    pub fn cause(&self) -> (&str, &'static str) {
        slot_invalidation::cause(self.invalidation_reason.as_deref(), self.conflicting, self.limited)
    }
}

/// The bookmarks of a slot, oldest first.
pub async fn list(session: &mut Session, slot: &str) -> Result<Vec<Bookmark>, QueryError> {
    // as JSON, because not every version has these columns
    let sql = format!(
        "SELECT s.slot_name, s.confirmed_flush_lsn, s.wal_status, \
         GREATEST(0, pg_catalog.pg_wal_lsn_diff(({FLUSH_LSN}), s.restart_lsn))::bigint, \
         pg_catalog.to_jsonb(s) ->> 'invalidation_reason', pg_catalog.to_jsonb(s) ->> 'conflicting', \
         current_setting('max_slot_wal_keep_size') <> '-1' \
         FROM pg_catalog.pg_replication_slots s \
         WHERE s.database = pg_catalog.current_database() AND s.plugin = 'pgoutput' AND NOT s.temporary \
         AND pg_catalog.starts_with(s.slot_name, {})",
        literal(&prefix(slot))
    );
    let rows = session.query(&sql).await?;
    let mut bookmarks: Vec<Bookmark> = rows
        .iter()
        .filter_map(|row| {
            let (name, made) = parse(slot, row.get(0)?)?;
            Some(Bookmark {
                slot: row.get(0)?.to_owned(),
                name: name.to_owned(),
                made,
                position: row.get(1).and_then(|lsn| lsn.parse().ok()),
                wal_status: row.get(2).unwrap_or("lost").to_owned(),
                retained_bytes: row.get(3).and_then(|bytes| bytes.parse().ok()).unwrap_or_default(),
                invalidation_reason: row.get(4).map(str::to_owned),
                conflicting: row.get(5) == Some("true"),
                limited: row.get(6) == Some("t"),
            })
        })
        .collect();
    bookmarks.sort_by(|a, b| (a.made, &a.slot).cmp(&(b.made, &b.slot)));
    Ok(bookmarks)
}

/// The last bookmark that the router can go back to from `position`, as `slot reset --to` takes it.
pub async fn last_before(session: &mut Session, slot: &str, position: Lsn) -> Result<Option<String>, Error> {
    let known = list(session, slot).await?;
    let usable = known.iter().filter(|bookmark| {
        !bookmark.is_lost() && bookmark.position.is_some_and(|bookmarked| bookmarked <= position)
    });
    Ok(usable.max_by_key(|bookmark| bookmark.position).map(Bookmark::title))
}

/// Makes a bookmark at the slot's current position; `name` may be empty. Returns the name of the copy.
pub async fn make(session: &mut Session, slot: &str, name: &str) -> Result<String, Error> {
    let bookmark = slot_name(slot, name, &stamp(session).await?)?;
    copy(session, slot, &bookmark, false).await?;
    Ok(bookmark)
}

/// The server's time, which is part of the names of bookmarks. Other clocks may be hours off.
async fn stamp(session: &mut Session) -> Result<String, Error> {
    let sql = "SELECT pg_catalog.to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISS')";
    let now = session.query_one(sql).await?;
    now.ok_or_else(|| Error::transient(Peer::Postgres, "the server did not return its time"))
}

/// Copies a slot with the log that it retains.
pub async fn copy(session: &mut Session, from: &str, to: &str, temporary: bool) -> Result<(), Error> {
    session.query(&slot_functions::copy(from, to, temporary)).await.map(drop).map_err(not_copied)
}

/// Replaces the slot by a copy of a bookmark; `exists` tells whether there is a slot. Both statements are in one message, so
/// the server completes them even if this process is killed, and no start finds the slot missing in between.
pub async fn restore(session: &mut Session, bookmark: &str, slot: &str, exists: bool) -> Result<(), Error> {
    let drop_first = if exists { slot_functions::drop(slot) + "; " } else { String::new() };
    let sql = drop_first + &slot_functions::copy(bookmark, slot, false);
    session.query(&sql).await.map(drop).map_err(not_copied)
}

fn not_copied(error: QueryError) -> Error {
    match error.code().map(|code| code.code().to_owned()).as_deref() {
        Some("53400") => Error::refused(
            ErrorCode::NoFreeSlot,
            format!("Postgres has no room for another replication slot: {error}"),
            "Raise max_replication_slots and restart Postgres, or drop a slot: `outbox-router slot list` shows bookmarks",
        ),
        _ => error.or_remedy(REPLICATION),
    }
}

/// Drops a slot.
pub async fn drop_slot(session: &mut Session, slot: &str) -> Result<(), Error> {
    session.query(&slot_functions::drop(slot)).await.map(drop).map_err(|error| error.or_remedy(REPLICATION))
}

/// What to do if the role may not work with slots.
pub const REPLICATION: &str = "The role needs the attribute REPLICATION, and a slot must be complete and not in use: `outbox-router check` looks at these";

/// The bookmark of this name, or the last one made by this time of day, or date and time, in UTC.
pub fn find<'a>(bookmarks: &'a [Bookmark], text: &str, now: OffsetDateTime) -> Option<&'a Bookmark> {
    let named = bookmarks.iter().rfind(|bookmark| !bookmark.name.is_empty() && bookmark.name == text);
    named.or_else(|| {
        let time = parse_time(text, now).filter(|time| !is_in_future(*time, now))?;
        bookmarks.iter().rfind(|bookmark| bookmark.made <= time && !bookmark.is_lost())
    })
}

/// Whether a time is later than any bookmark can have been made. Without seconds it is the end of a minute, and clocks differ.
pub fn is_in_future(time: OffsetDateTime, now: OffsetDateTime) -> bool {
    time - now > time::Duration::MINUTE
}

/// `14:05`, `14:05:30`, `2026-11-21T14:05`, with or without seconds and `Z`. A time of day is its last occurrence.
pub fn parse_time(text: &str, now: OffsetDateTime) -> Option<OffsetDateTime> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let number = |digits: &str| -> Option<u16> {
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let small = |digits: &str| u8::try_from(number(digits)?).ok();
    let (date, clock) = match text.split_once(['T', ' ']) {
        Some((date, clock)) => (Some(date), clock),
        None => (None, text),
    };
    let mut parts = clock.split(':');
    let (hour, minute) = (small(parts.next()?)?, small(parts.next()?)?);
    // without seconds, the whole minute counts
    let second = parts.next().map_or(Some(59), |second| small(second.split('.').next()?))?;
    let time = Time::from_hms(hour, minute, second).ok().filter(|_| parts.next().is_none())?;
    match date {
        Some(date) => {
            let mut parts = date.split('-');
            let (year, month, day) = (number(parts.next()?)?, small(parts.next()?)?, small(parts.next()?)?);
            let date = Date::from_calendar_date(year.into(), Month::try_from(month).ok()?, day).ok()?;
            Some(PrimitiveDateTime::new(date, time).assume_utc())
        }
        None => {
            let today = now.replace_time(time);
            let started = today.replace_second(0).unwrap_or(today);
            if started <= now { Some(today) } else { today.checked_sub(time::Duration::DAY) }
        }
    }
}

fn prefix(slot: &str) -> String {
    format!("{slot}_bookmark_")
}

fn slot_name(slot: &str, name: &str, stamp: &str) -> Result<String, Error> {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !name.bytes().all(legal) {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            format!("{name:?} cannot be the name of a bookmark"),
            "Use lower-case letters, digits and underscores, as for a slot",
        ));
    }
    let separator = if name.is_empty() { "" } else { "_" };
    let full = format!("{}{name}{separator}{stamp}", prefix(slot));
    if full.len() > MAX_LENGTH {
        return Err(Error::usage(
            ErrorCode::CommandLine,
            format!(
                "the bookmark {name:?} would be a slot {full} of {} characters, and Postgres takes {MAX_LENGTH}",
                full.len()
            ),
            format!(
                "Use a name of at most {} characters",
                (MAX_LENGTH + name.len()).saturating_sub(full.len())
            ),
        ));
    }
    Ok(full)
}

/// Name and time of a bookmark of `slot`, from the name of the copy.
fn parse<'a>(slot: &str, bookmark: &'a str) -> Option<(&'a str, OffsetDateTime)> {
    let rest = bookmark.strip_prefix(&prefix(slot))?;
    let (name, stamp) = rest.split_at_checked(rest.len().checked_sub(STAMP)?)?;
    let name = if name.is_empty() { "" } else { name.strip_suffix('_')? };
    Some((name, parse_stamp(stamp)?))
}

fn parse_stamp(stamp: &str) -> Option<OffsetDateTime> {
    let number = |from: usize, to: usize| stamp.get(from..to)?.parse::<u16>().ok();
    let small = |from, to| u8::try_from(number(from, to)?).ok();
    let month = Month::try_from(small(4, 6)?).ok()?;
    let date = Date::from_calendar_date(number(0, 4)?.into(), month, small(6, 8)?).ok()?;
    let time = Time::from_hms(small(8, 10)?, small(10, 12)?, small(12, 14)?).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> OffsetDateTime {
        parse_time(text, OffsetDateTime::UNIX_EPOCH).unwrap()
    }

    pub(super) fn bookmark(slot: &str) -> Bookmark {
        let (name, made) = parse("shop", slot).unwrap();
        Bookmark {
            slot: slot.into(),
            name: name.into(),
            made,
            position: Some(Lsn(1)),
            retained_bytes: 0,
            wal_status: "reserved".into(),
            invalidation_reason: None,
            conflicting: false,
            limited: false,
        }
    }

    #[test]
    fn slot_names_contain_the_bookmark_and_its_time() {
        for name in ["", "before_import", "7"] {
            let slot = slot_name("shop", name, "20261121140509").unwrap();
            assert_eq!(parse("shop", &slot), Some((name, at("2026-11-21T14:05:09"))), "{slot}");
            assert_eq!(parse("sho", &slot), None);
        }
        for other in [
            "shop",
            "shop_bookmark_",
            "shop_bookmark_x",
            "shop_bookmark_x20261121140509",
            "shop_bookmark_20261321140509",
        ] {
            assert_eq!(parse("shop", other), None, "{other}");
        }
    }

    #[test]
    fn invalid_bookmark_names_are_refused_with_the_rule() {
        let refused = |name: &str| slot_name("shop", name, "20261121140509").unwrap_err().to_string();
        assert!(refused("Before").contains("lower-case"));
        assert!(refused("x y").contains("lower-case"));
        let longest = "x".repeat(MAX_LENGTH - "shop_bookmark__20261121140509".len());
        assert_eq!(
            slot_name("shop", &longest, "20261121140509").map(|name| name.len()).ok(),
            Some(MAX_LENGTH)
        );
        let error = refused(&format!("{longest}x"));
        assert!(error.contains(&format!("at most {} characters", longest.len())), "{error}");
    }

    #[test]
    fn a_bookmark_is_found_by_its_name_or_as_the_last_one_by_a_time() {
        let all = [
            bookmark("shop_bookmark_20261120140500"),
            bookmark("shop_bookmark_before_import_20261121100000"),
            bookmark("shop_bookmark_20261121140500"),
            bookmark("shop_bookmark_20261121150500"),
        ];
        let now = at("2026-11-21T15:30:00");
        for (text, expected) in [
            ("before_import", Some(1)),
            ("14:05", Some(2)),
            ("14:04:59Z", Some(1)),
            ("15:30", Some(3)),
            // yesterday's
            ("15:31", Some(0)),
            ("2026-11-21T14:05Z", Some(2)),
            ("2026-11-21 14:04", Some(1)),
            ("2026-11-21T15:05:00.000Z", Some(3)),
            ("2026-11-20T14:04", None),
            ("2026-11-21T15:30", Some(3)),
            ("2026-11-21T15:32", None),
            ("2027-01-01T00:00", None),
            ("other", None),
            ("25:00", None),
            ("14:05:00:00", None),
        ] {
            assert_eq!(find(&all, text, now), expected.map(|n: usize| &all[n]), "{text}");
        }
    }
}
