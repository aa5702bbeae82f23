//! The table `outbox_router.replays`: which rows somebody has asked to send again, and how far that has come.

pub mod lease;

use pg_logical::quoting::literal;
use pg_logical::session::{Row, Session};
use serde::{Deserialize, Serialize};

use crate::advice::OrRemedy;
use crate::error::{Error, ErrorCode};
use crate::outbox::Cursor;
use crate::postgres::rows::{micros_of, read_only, stored_cursor};

/// What to do if the table cannot be used.
const REMEDY: &str = "Give --url of a role that may read the outbox table and write outbox_router.replays, such as the one that ran \
                      `outbox-router init`; init creates what is missing";

/// Which rows are sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Only those of these types; empty: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Only those of these aggregates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregates: Vec<String>,
    /// Only those of aggregates of these types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregate_types: Vec<String>,
    /// Only those with these ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// The archive that has them, as in SQL; `None`: the outbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// The archive file that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A replay, as somebody has asked for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The outbox table, as in SQL.
    pub outbox: String,
    /// The time of the first inserts, in microseconds since 1970.
    pub since: Option<i64>,
    /// The time before which the inserts were.
    pub until: i64,
    /// Which rows.
    pub selection: Selection,
    /// The topic for all of them, instead of their own.
    pub topic: Option<String>,
    /// Events a second.
    pub rate: Option<f64>,
    /// The value of the header that marks them.
    pub mark: String,
    /// Which rows were delivered: a transaction id, or a time in microseconds since 1970 for a table that is polled.
    pub horizon: String,
    /// What orders rows of the same time.
    pub order_by: String,
    /// How many rows were counted.
    pub rows: u64,
    /// How many of them are events that can be sent.
    pub events: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How far a replay has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// How many rows are acknowledged or left out.
    pub rows: u64,
    /// How many of them cannot be sent.
    pub left_out: u64,
    /// The last of them.
    pub last: Option<Cursor>,
}

/// A replay that was begun.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Its number.
    pub id: u64,
    /// What was asked for.
    pub request: Request,
    /// When, in microseconds since 1970.
    pub requested_at: i64,
    /// By whom.
    pub requested_by: String,
    /// How far it has come.
    pub done: Done,
    /// When all rows were done, in microseconds since 1970.
    pub finished_at: Option<i64>,
    /// Whether a process sends it.
    pub runs: bool,
}

/// Refuses a role that may not write the table, before anything is counted or sent.
///
/// # Errors
/// The table is missing, or the role may not use it.
pub async fn verify(session: &mut Session) -> Result<(), Error> {
    let may = |what: &str| format!("has_table_privilege('outbox_router.replays', '{what}')");
    let sql = read_only(&format!("SELECT {} AND {} AND {}", may("SELECT"), may("INSERT"), may("UPDATE")));
    match session.query_one(&sql).await.map_err(|error| error.or_remedy(REMEDY))?.as_deref() {
        Some("t") => Ok(()),
        _ => Err(Error::refused(
            ErrorCode::NotPrepared,
            "this role may not write outbox_router.replays, where a replay stores how far it has come",
            REMEDY,
        )),
    }
}

/// The replays of a router, the newest first; or the one with this number.
///
/// # Errors
/// The table is missing, or the role may not read it.
pub async fn list(session: &mut Session, router: &str, id: Option<u64>) -> Result<Vec<Replay>, Error> {
    let only = id.map_or_else(String::new, |id| format!(" AND id = {id}"));
    let sql = read_only(&format!(
        "SELECT id, outbox, {}, {}, selection, topic, rate, mark, horizon, order_by, rows, events, bytes, {}, requested_by, done, left_out, \
         {}, {}, finished_at IS NULL AND lease_until > clock_timestamp() \
         FROM outbox_router.replays WHERE router = {}{only} ORDER BY id DESC LIMIT 1000",
        micros_of("since"),
        micros_of("until"),
        micros_of("requested_at"),
        stored_cursor::columns(),
        micros_of("finished_at"),
        literal(router)
    ));
    let rows = session.query(&sql).await.map_err(|error| error.or_remedy(REMEDY))?;
    Ok(rows.iter().filter_map(replay).collect())
}

fn replay(row: &Row) -> Option<Replay> {
    let number = |index: usize| row.get(index).and_then(|text| text.parse::<i64>().ok());
    let count = |index: usize| number(index).and_then(|number| u64::try_from(number).ok());
    let text = |index: usize| row.get(index).map(str::to_owned);
    Some(Replay {
        id: count(0)?,
        request: Request {
            outbox: text(1)?,
            since: number(2),
            until: number(3)?,
            selection: serde_json::from_str(row.get(4)?).ok()?,
            topic: text(5),
            rate: row.get(6).and_then(|rate| rate.parse().ok()),
            mark: text(7)?,
            horizon: text(8)?,
            order_by: text(9)?,
            rows: count(10)?,
            events: count(11)?,
            bytes: count(12)?,
        },
        requested_at: number(13)?,
        requested_by: text(14)?,
        done: Done { rows: count(15)?, left_out: count(16)?, last: stored_cursor::read(row, 17) },
        finished_at: number(20),
        runs: row.get(21) == Some("t"),
    })
}
