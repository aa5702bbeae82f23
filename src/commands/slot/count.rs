//! Counts the events that a move of the position would repeat or skip, by reading that part of the log as the router does.

use std::sync::Arc;
use std::time::Duration;

use pg_logical::connect::{Startup, VALUE_TEXT};
use pg_logical::pgoutput::Message;
use pg_logical::replication::{
    NotStarted, Receiving, ReplicationMessage, ReplicationStream, StandbyStatus, StreamOf,
};
use pg_logical::{Lsn, Oid, PgTimestamp};
use serde::Serialize;

use crate::advice;
use crate::commands::connect;
use crate::commands::progress::CommandProgress;
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::outbox::{FIELDS, Outbox, OutboxEvent};
use crate::postgres::bookmarks;
use crate::postgres::catalog::Table;
use crate::progress::{Change, Landmark, Position, Progress};
use crate::quantity::{bytes, counted};
use crate::routing::Router;
use crate::shards::{Ids, Shard};
use crate::utc::Utc;

/// How often a status update is sent to the server.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The events between two positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) events: u64,
    /// How many of them cannot be decoded. The router stops at each of these.
    pub(super) undecodable: u64,
    /// The size of the columns that the router reads.
    pub(super) bytes: u64,
    pub(super) first: Option<PgTimestamp>,
    pub(super) last: Option<PgTimestamp>,
}

/// The same as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Counted {
    pub(super) events: u64,
    undecodable: u64,
    bytes: u64,
    /// When the first of them was committed, RFC 3339; null if there is none.
    first: Option<String>,
    last: Option<String>,
}

impl From<&Count> for Counted {
    fn from(count: &Count) -> Self {
        let time = |at: Option<PgTimestamp>| at.map(|at| Utc(at.unix_micros()).to_string());
        let Count { events, undecodable, bytes, first, last } = *count;
        Counted { events, undecodable, bytes, first: time(first), last: time(last) }
    }
}

impl Count {
    /// A sentence about what happens to the events, or nothing if there are none: `They are never sent`.
    pub(super) fn if_any(&self, what: &str) -> String {
        match self.events {
            0 => String::new(),
            1 => format!(" It is {what}."),
            _ => format!(" They are {what}."),
        }
    }

    fn add(&mut self, event: Option<&OutboxEvent<'_>>, committed: PgTimestamp) {
        self.events += 1;
        match event {
            Some(event) => {
                let values = FIELDS.iter().filter_map(|field| event.field(*field));
                self.bytes += values.map(<[u8]>::len).sum::<usize>() as u64;
            }
            None => self.undecodable += 1,
        }
        self.first.get_or_insert(committed);
        self.last = Some(committed);
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Some(first), Some(last)) = (self.first, self.last) else { return f.write_str("no events") };
        let (first, last) = (Utc(first.unix_micros()), Utc(last.unix_micros()));
        let events = counted(self.events, "event");
        let undecodable = match self.undecodable {
            0 => String::new(),
            count => format!(" ({count} of them cannot be decoded)"),
        };
        write!(f, "{events}{undecodable}, {}, committed from {first} to {last}", bytes(self.bytes))
    }
}

/// Counts the events of the slot `from` between two positions, by reading a temporary copy of it. `tables` are the outbox
/// tables as they are now. With `shard`, only the messages of that shard count. With `quiet` no progress is shown.
pub(super) async fn between(
    config: &Arc<Config>,
    tables: &[Option<Table>],
    shard: Option<(Shard, Ids)>,
    from: &str,
    start: Position,
    end: Position,
    quiet: bool,
) -> Result<Count, Error> {
    let startup = Startup { replication: true, settings: &VALUE_TEXT, ..Startup::default() };
    let mut session = connect(config, "slot", startup).await?;
    let copy = format!("outbox_router_count_{}", session.backend_pid());
    bookmarks::copy(&mut session, from, &copy, true).await?;
    let (stream, unread, _) = session.into_parts();
    let what = StreamOf {
        slot: &copy,
        publication: &config.postgres.publication,
        start: start.flush,
        messages: config.outbox.message_prefix.is_some(),
    };
    let mut stream =
        ReplicationStream::new(stream, unread).start(what).await.map_err(|error| match error {
            NotStarted::Failed(error) => Error::from(error),
            NotStarted::Server(error) => advice::refusal(&error, "START_REPLICATION", bookmarks::REPLICATION),
        })?;

    let router = Router::of(config);
    let oids = tables.iter().map(|table| table.as_ref().map(|table| Oid(table.oid)));
    let mut counting = Counting {
        outbox: Outbox::of(config, router.extra_columns()).with_oids(oids).of_shard(shard),
        progress: Progress::new(start),
        end,
        count: Count::default(),
        transaction: (start.flush, PgTimestamp::default()),
    };
    // never advance the copy
    let status = StandbyStatus { written: start.flush, flushed: start.flush };
    let mut shown = CommandProgress::of_log("counting events", quiet);
    let total = end.flush.bytes_since(start.flush);
    let mut timer = tokio::time::interval(STATUS_INTERVAL);
    loop {
        while let Some((message, length)) = stream.peek()? {
            let (over, answer) = match message {
                ReplicationMessage::PrimaryKeepAlive { wal_end, reply_requested, .. } => {
                    (counting.reached(wal_end), reply_requested)
                }
                ReplicationMessage::XLogData { data, .. } => {
                    let message = Message::decode(data).map_err(unreadable)?;
                    (counting.message(&message)?, false)
                }
            };
            stream.consume(length);
            if answer {
                stream.queue_status(status, false);
            }
            if over {
                shown.end();
                return Ok(counting.count);
            }
            shown.show(counting.transaction.0.bytes_since(start.flush), total);
        }
        tokio::select! {
            result = stream.io(Receiving::AtOnce) => result?,
            _ = timer.tick() => {
                stream.queue_status(status, false);
            }
        }
    }
}

/// A count under way.
struct Counting {
    outbox: Outbox,
    progress: Progress,
    /// Where counting ends.
    end: Position,
    count: Count,
    /// The `final_lsn` and the commit time of the current transaction.
    transaction: (Lsn, PgTimestamp),
}

impl Counting {
    /// Handles a keepalive: the server has sent all changes up to `wal_end`. Returns whether the end is reached.
    fn reached(&mut self, wal_end: Lsn) -> bool {
        self.progress.reached(wal_end);
        !self.progress.inside_transaction() && wal_end >= self.end.flush
    }

    /// Counts one message. Returns whether the end lies before it.
    fn message(&mut self, message: &Message<'_>) -> Result<bool, Error> {
        let event = match message {
            Message::Begin(begin) => {
                if !self.end.covers(begin.final_lsn, 1) {
                    return Ok(true);
                }
                self.transaction = (begin.final_lsn, begin.commit_time);
                self.progress.begin(Landmark::from(*begin)).map_err(unreadable)?;
                return Ok(false);
            }
            Message::Commit(commit) => {
                self.progress.commit(commit.end_lsn).map_err(unreadable)?;
                return Ok(false);
            }
            Message::Relation(relation) => {
                if let Err(error) = self.outbox.relation(relation, true) {
                    self.outbox.unreadable(relation.id, error);
                }
                return Ok(false);
            }
            Message::Type(named) => {
                self.outbox.type_name(named);
                return Ok(false);
            }
            Message::Insert(insert) => self.outbox.event(insert),
            Message::Logical(message) if message.transactional && self.outbox.is_event(message.prefix) => {
                self.outbox.message(message)
            }
            _ => return Ok(false),
        };
        let Change::New(sequence) = self.progress.change().map_err(unreadable)? else { return Ok(false) };
        let ordinal = self.progress.ordinal(sequence);
        self.progress.acknowledge(sequence);
        let (final_lsn, committed) = self.transaction;
        if self.end.covers(final_lsn, ordinal) {
            match event {
                Ok(Some(event)) => self.count.add(Some(&event), committed),
                Ok(None) => {}
                Err(_) => self.count.add(None, committed),
            }
        }
        Ok(false)
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::transient(Peer::Postgres, format!("the log cannot be read: {error}"))
}
