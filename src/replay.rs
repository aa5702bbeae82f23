//! Sends rows of the outbox table again: a loop like the router's, with a source that reads pages of the table.

use std::sync::Arc;

use pg_logical::Lsn;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Replay;
use crate::config::Config;
use crate::contracts::Contracts;
use crate::error::{Error, ErrorCode, Peer};
use crate::monitor::Monitor;
use crate::outbox::Cursor;
use crate::outbox::Outbox;
use crate::pipeline::Pipeline;
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::pages::Pages;
use crate::progress::Position;
use crate::relay::{Ended, Outcome, Relay, Window};
use crate::routing::Router;
use crate::sink::kafka::{DEFAULT_BATCH_BYTES, DeliveryReports, KafkaParts, KafkaSink, Publisher, Suspect};
use crate::sink::leave_out::{LeaveOut, LeftOut};
use crate::source::table::replayed::ReplayedRows;
use crate::source::table::rows::{place_of_first, rows_up_to};
use crate::source::table::sent::Acknowledged;

/// How rows of a table become records.
pub struct Conversion {
    /// The configuration for rows of the table.
    pub config: Arc<Config>,
    /// The payload contracts.
    pub contracts: Option<Arc<Contracts>>,
    /// The table.
    pub layout: TableLayout,
    /// The columns that are read.
    pub columns: Vec<String>,
    /// The value of the header of the records.
    pub mark: String,
}

impl Conversion {
    /// The columns of the table that records are made of.
    pub fn columns(config: &Config, layout: &TableLayout) -> Vec<String> {
        layout.of_events(&config.outbox, Router::of(config).extra_columns())
    }

    /// Makes records of rows.
    pub fn pipeline(&self) -> Pipeline {
        let config = &self.config;
        let router = Router::of(config).with_contracts(config, self.contracts.clone());
        let outbox = Outbox::of(config, router.extra_columns()).with_oids([Some(self.layout.oid())]);
        // every position is before this one
        let until = Position { flush: Lsn(u64::MAX), partial: None };
        let replay = Replay { mark: self.mark.clone(), until };
        let monitor = Monitor::new(config.name.clone());
        Pipeline::new(outbox, router, Some(replay), Lsn::INVALID, config.outbox.on_update, monitor)
    }

    /// The messages that describe the table.
    pub fn definitions(&self) -> Vec<Vec<u8>> {
        self.layout.messages(&self.columns)
    }
}

/// How a session has ended.
#[derive(Debug)]
pub enum End {
    /// Every row is acknowledged.
    Complete,
    /// It was asked to stop.
    Stopped,
    /// A server was lost; another session may go on.
    Failed(Error),
    /// Kafka has refused one of the next rows, of which there are so many. The next session sends them one at a time.
    Refused(u64),
    /// Kafka refuses a row that was sent alone.
    RefusedAlone {
        /// Its place.
        row: Option<Cursor>,
        /// Its id and topic.
        event: String,
        /// Why.
        why: String,
    },
}

/// What one session sends.
pub struct Batch<'a> {
    /// How rows become records.
    pub conversion: &'a Conversion,
    /// The rows.
    pub pages: Pages,
    /// Rows a second.
    pub rate: Option<f64>,
    /// How many of the first rows are sent one at a time.
    pub alone: u64,
    /// For events that cannot be sent.
    pub left_out: LeftOut,
}

/// Sends rows until the end or an error, and tells how far they are acknowledged.
///
/// # Errors
/// A definite one, after which no other session would go on.
pub async fn send(
    batch: Batch<'_>,
    tell: watch::Sender<Acknowledged>,
    stop: &CancellationToken,
) -> Result<End, Error> {
    let Batch { conversion, pages, rate, alone, left_out } = batch;
    let config = &conversion.config;
    let delivery_reports = Arc::new(DeliveryReports::default());
    let publisher = Publisher::open(
        Arc::clone(config),
        Arc::clone(&delivery_reports),
        DEFAULT_BATCH_BYTES,
        Arc::default(),
    );
    let publisher = tokio::select! {
        opened = publisher => opened?,
        () = stop.cancelled() => return Ok(End::Stopped),
    };
    let source =
        ReplayedRows::new(pages, conversion.layout.oid(), conversion.definitions(), rate, tell.clone());
    let monitor = Monitor::new(config.name.clone());
    let suspect = if alone == 0 { Suspect::None } else { Suspect::UpTo(place_of_first(alone)) };
    let sending = (publisher, delivery_reports);
    let sink = KafkaSink::new(KafkaParts::without_checkpoints(
        config,
        sending,
        suspect,
        monitor.clone(),
        stop.clone(),
    ));
    let sink = LeaveOut::new(sink, left_out);
    let window = Window::new(config.delivery.window_records, config.delivery.window_bytes);
    let timeout = config.delivery.shutdown_timeout;
    let relay =
        Relay::new(source, conversion.pipeline(), sink, Position::default(), window, monitor, timeout);
    let Ended { outcome, source: mut sent, sink, .. } = Box::pin(relay.run(stop)).await;
    // reports that came while the sink was closed
    if sent.acknowledge(sink.position) {
        tell.send_replace(sent.acknowledged().clone());
    }
    let refused = match outcome {
        Outcome::Stopped => return Ok(End::Stopped),
        Outcome::SourceEnded => return Ok(End::Complete),
        Outcome::Failed(error @ Error::Transient(_)) => return Ok(End::Failed(error)),
        Outcome::Failed(error) => {
            return Err(sink.unusable_topic.map_or(error, |why| {
                Error::refused(ErrorCode::ReplayImpossible, why.with_reason(), why.remedy)
            }));
        }
        Outcome::Refused(refused) => refused,
    };
    let why = refused.why.with_reason();
    if refused.transient {
        return Ok(End::Failed(Error::transient(Peer::Kafka, why)));
    }
    let suspects = sink.inner.last_suspect.map_or(1, rows_up_to);
    Ok(match sink.inner.alone {
        Some(alone) => End::RefusedAlone { row: sent.first().cloned(), event: alone.event, why },
        None => End::Refused(suspects.saturating_sub(sent.acknowledged().rows).max(1)),
    })
}
