//! How much a move of the position sends again, or leaves out: a stretch of the log, read as the router would.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::connect;
use crate::config::Config;
use crate::error::{Error, Peer};
use crate::lsn::Lsn;
use crate::outbox::{FIELDS, Outbox, OutboxEvent};
use crate::positions::Replay;
use crate::postgres::bookmarks;
use crate::postgres::connect::{Startup, VALUE_TEXT};
use crate::postgres::pgoutput::{Message, PgTimestamp};
use crate::postgres::replication::{
    NotStarted, ReplicationMessage, ReplicationStream, StandbyStatus, StreamOf,
};
use crate::progress::{Change, Position, Progress};
use crate::quantity::bytes;
use crate::routing::Router;
use crate::utc::Utc;

/// How often the server is told that somebody listens.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// What lies between two positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) events: u64,
    /// Of the columns that the router reads.
    pub(super) bytes: u64,
    pub(super) first: Option<PgTimestamp>,
    pub(super) last: Option<PgTimestamp>,
}

impl Count {
    /// What becomes of them, as a further sentence; of none nothing becomes.
    pub(super) fn then(&self, what: &str) -> String {
        if self.events == 0 { String::new() } else { format!(" {what}.") }
    }

    fn take(&mut self, event: &OutboxEvent<'_>, committed: PgTimestamp) {
        let size = FIELDS.iter().filter_map(|field| event.field(*field)).map(<[u8]>::len).sum::<usize>();
        self.events += 1;
        self.bytes += size as u64;
        self.first.get_or_insert(committed);
        self.last = Some(committed);
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Some(first), Some(last)) = (self.first, self.last) else { return f.write_str("no events") };
        let plural = if self.events == 1 { "" } else { "s" };
        let (first, last) = (Utc(first.unix_micros()), Utc(last.unix_micros()));
        write!(f, "{} event{plural}, {}, committed from {first} to {last}", self.events, bytes(self.bytes))
    }
}

/// Reads what the slot `from` holds between two positions, without moving it: a copy is read, that ends with its session.
pub(super) async fn between(
    config: &Arc<Config>,
    from: &str,
    start: Position,
    end: Position,
) -> Result<Count, Error> {
    let name = format!("{} slot", config.name);
    let startup = Startup { replication: true, application_name: &name, settings: &VALUE_TEXT };
    let mut session = connect(config, &startup).await?;
    let copy = format!("outbox_router_count_{}", session.backend_pid());
    bookmarks::copy(&mut session, from, &copy, true).await?;
    let (stream, unread, _) = session.into_parts();
    let what = StreamOf {
        slot: &copy,
        publication: &config.postgres.publication,
        start: start.flush,
        messages: config.outbox.message_prefix.is_some(),
        way_out: "",
    };
    let mut stream = ReplicationStream::start(stream, unread, what).await.map_err(|error| match error {
        NotStarted::Failed(error) => error,
        NotStarted::Server(error) => {
            error.into_error("START_REPLICATION", |_| bookmarks::REPLICATION.to_owned())
        }
    })?;

    let router = Router::of(config);
    let mut outbox = Outbox::of(config, router.extra_columns());
    // what is at or after the end is not counted, as it was not acknowledged, or not to be left out
    let wanted = Replay { mark: String::new(), until: end };
    let (mut progress, mut count) = (Progress::new(start), Count::default());
    let (mut final_lsn, mut committed) = (start.flush, PgTimestamp::default());
    let bar = progress_bar(start.flush, end.flush);
    let mut timer = tokio::time::interval(STATUS_EVERY);
    loop {
        while let Some((message, length)) = stream.peek()? {
            match message {
                ReplicationMessage::PrimaryKeepAlive { wal_end, reply_requested } => {
                    if reply_requested {
                        stream.queue_status(
                            StandbyStatus { written: start.flush, flushed: start.flush },
                            false,
                        );
                    }
                    stream.consume(length);
                    progress.reached(wal_end);
                    if !progress.inside_transaction() && wal_end >= end.flush {
                        bar.finish_and_clear();
                        return Ok(count);
                    }
                    continue;
                }
                ReplicationMessage::XLogData { data, .. } => {
                    let unreadable = |error: &dyn ToString| {
                        Error::transient(
                            Peer::Postgres,
                            format!("the log cannot be read: {}", error.to_string()),
                        )
                    };
                    let message = Message::decode(data).map_err(|error| unreadable(&error))?;
                    match message {
                        Message::Begin(begin) => {
                            if !wanted.covers(begin.final_lsn, 1) {
                                bar.finish_and_clear();
                                return Ok(count);
                            }
                            (final_lsn, committed) = (begin.final_lsn, begin.commit_time);
                            progress.begin(begin.final_lsn).map_err(|error| unreadable(&error))?;
                            bar.set_position(begin.final_lsn.bytes_since(start.flush));
                        }
                        Message::Commit(commit) => {
                            progress.commit(commit.end_lsn).map_err(|error| unreadable(&error))?;
                        }
                        Message::Relation(relation) => {
                            // what cannot be read is counted by nobody; the router says so when it comes there
                            let _ = outbox.relation(&relation, true);
                        }
                        Message::Type(named) => outbox.type_name(&named),
                        Message::Insert(insert) => {
                            let event = outbox.event(&insert);
                            take(
                                &mut count,
                                &mut progress,
                                &wanted,
                                (final_lsn, committed),
                                event.ok().flatten(),
                            )?;
                        }
                        Message::Logical(message)
                            if message.transactional && outbox.is_event(message.prefix) =>
                        {
                            let event = outbox.message(&message);
                            take(
                                &mut count,
                                &mut progress,
                                &wanted,
                                (final_lsn, committed),
                                event.ok().flatten(),
                            )?;
                        }
                        _ => {}
                    }
                    stream.consume(length);
                }
            }
        }
        tokio::select! {
            result = stream.io(true) => result?,
            _ = timer.tick() => {
                stream.queue_status(StandbyStatus { written: start.flush, flushed: start.flush }, false);
            }
        }
    }
}

fn take(
    count: &mut Count,
    progress: &mut Progress,
    wanted: &Replay,
    (final_lsn, committed): (Lsn, PgTimestamp),
    event: Option<OutboxEvent<'_>>,
) -> Result<(), Error> {
    let out_of_step = |error| Error::transient(Peer::Postgres, format!("the log cannot be read: {error}"));
    let change = progress.change().map_err(out_of_step)?;
    let Change::New(sequence) = change else { return Ok(()) };
    let ordinal = progress.ordinal(sequence);
    progress.acknowledge(sequence);
    if let Some(event) = event
        && wanted.covers(final_lsn, ordinal)
    {
        count.take(&event, committed);
    }
    Ok(())
}

/// Drawn on standard error, and only if that is a terminal.
fn progress_bar(start: Lsn, end: Lsn) -> ProgressBar {
    let bar = ProgressBar::new(end.bytes_since(start));
    let style = ProgressStyle::with_template(
        "counting events  {bar:30}  {bytes} of {total_bytes} of log, {eta} left",
    );
    style.map_or(bar.clone(), |style| bar.with_style(style))
}
