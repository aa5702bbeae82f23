//! The contestants, and how each reads a backlog.

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use indicatif::HumanCount;
use outbox_router::config::DeliveryMode;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::time::sleep;

use crate::bare_reader::{self, Server};
use crate::case::Case;
use crate::debezium::{self, Debezium};
use crate::measure::catch_up;
use crate::measure::ground::{Ground, Run};
use crate::measure::progress::Progress;
use crate::polling_loop;
use crate::stage::process::{cpu_time, peak_memory};
use crate::topics::Topics;

/// The number of slots of the contestants with several.
pub(crate) const SHARDS: u32 = 2;

const STREAM: &str = "postgres.catch_up = \"stream\"\n";

/// The default name by `init`.
pub(crate) const PUBLICATION: &str = "outbox_router";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// TLS over TCP, as most servers ask for
    Tls,
    /// TCP without TLS
    Tcp,
    /// A unix socket
    Unix,
}

impl Transport {
    pub(crate) const ALL: [Transport; 3] = [Transport::Tls, Transport::Tcp, Transport::Unix];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Tls => "TLS",
            Transport::Tcp => "TCP",
            Transport::Unix => "unix socket",
        }
    }

    /// The name in identifiers.
    fn id(self) -> &'static str {
        match self {
            Transport::Tls => "tls",
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contestant {
    BareReader(Transport),
    /// The same, with pauses between reads as in a lagging router.
    GatheringReader(Transport),
    PgRecvlogical,
    Router(Transport, DeliveryMode),
    /// The same, with bulk reads of a lagging slot.
    InBulk(Transport, DeliveryMode),
    /// The same with `SHARDS` shards in one process.
    Shards(Transport, DeliveryMode),
    /// The same number of bare readers at once.
    BareShards(Transport),
    Debezium {
        tuned: bool,
    },
    PollingLoop,
}

impl Contestant {
    /// The router in all its forms, and the readers that are its bounds.
    pub(crate) fn own() -> Vec<Contestant> {
        use DeliveryMode::{AtLeastOnce, ExactlyOnce};
        let of_each_transport = Transport::ALL.into_iter().flat_map(|over| {
            [
                Contestant::BareReader(over),
                Contestant::GatheringReader(over),
                Contestant::Router(over, AtLeastOnce),
                Contestant::Router(over, ExactlyOnce),
                Contestant::InBulk(over, AtLeastOnce),
                Contestant::InBulk(over, ExactlyOnce),
            ]
        });
        let further = [
            Contestant::PgRecvlogical,
            Contestant::BareShards(Transport::Tls),
            Contestant::Shards(Transport::Tls, AtLeastOnce),
            Contestant::Shards(Transport::Tls, ExactlyOnce),
        ];
        of_each_transport.chain(further).collect()
    }

    /// A short name, for where only the case is of interest.
    pub(crate) const OF_CASES: [Contestant; 3] = [
        Contestant::BareReader(Transport::Tls),
        Contestant::Router(Transport::Tls, DeliveryMode::AtLeastOnce),
        Contestant::Router(Transport::Tls, DeliveryMode::ExactlyOnce),
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Contestant::BareReader(over) => format!("bare reader, {}", over.name()),
            Contestant::GatheringReader(over) => format!("bare reader that gathers, {}", over.name()),
            Contestant::PgRecvlogical => "pg_recvlogical to /dev/null, TLS".to_owned(),
            Contestant::Router(over, mode) => format!("router, {}, {}", mode.name(), over.name()),
            Contestant::InBulk(over, mode) => {
                format!("router with bulk reads, {}, {}", mode.name(), over.name())
            }
            Contestant::Shards(over, mode) => {
                format!("router with {SHARDS} shards, {}, {}", mode.name(), over.name())
            }
            Contestant::BareShards(over) => format!("{SHARDS} bare readers of shards, {}", over.name()),
            Contestant::Debezium { tuned: false } => "Debezium, default".to_owned(),
            Contestant::Debezium { tuned: true } => "Debezium, tuned".to_owned(),
            Contestant::PollingLoop => "polling loop".to_owned(),
        }
    }

    pub(crate) fn transport(self) -> Transport {
        match self {
            Contestant::BareReader(over)
            | Contestant::GatheringReader(over)
            | Contestant::BareShards(over)
            | Contestant::Router(over, _)
            | Contestant::InBulk(over, _)
            | Contestant::Shards(over, _) => over,
            Contestant::PollingLoop => Transport::Tcp,
            Contestant::PgRecvlogical | Contestant::Debezium { .. } => Transport::Tls,
        }
    }

    /// The bare reader that it is compared with: the one of the same transport.
    pub(crate) fn bound(self) -> Contestant {
        Contestant::BareReader(self.transport())
    }
}

/// The stream and bulk reads over each transport.
pub(crate) fn bulk_pairs(transports: &[Transport]) -> Vec<[Contestant; 2]> {
    let mode = DeliveryMode::AtLeastOnce;
    transports.iter().map(|over| [Contestant::Router(*over, mode), Contestant::InBulk(*over, mode)]).collect()
}

/// The result of one contestant with one backlog.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) case: String,
    pub(crate) contestant: String,
    pub(crate) round: u32,
    pub(crate) rows: u64,
    pub(crate) events_per_second: f64,
    /// From the start of the process, or of the reading, to the first event.
    pub(crate) first_after_seconds: Option<f64>,
    /// From then to the last event, for a router and its peers.
    #[serde(default)]
    pub(crate) seconds: Option<f64>,
    /// User and system time from its start to the last event.
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) peak_memory_bytes: Option<u64>,
}

impl Measurement {
    /// From the start of the process to the last event, in seconds.
    pub(crate) fn duration(&self) -> Option<f64> {
        Some(self.first_after_seconds? + self.seconds?)
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measurement { case, contestant, round, events_per_second, .. } = self;
        let rate = HumanCount(*events_per_second as u64);
        write!(f, "{case}, {contestant}, round {round}: {rate} events/s")?;
        if let Some(cpu) = self.cpu_seconds {
            write!(f, ", {cpu:.2} s of CPU")?;
        }
        if let Some(memory) = self.peak_memory_bytes {
            write!(f, ", {:.1} MB", memory as f64 / 1e6)?;
        }
        Ok(())
    }
}

/// The servers and programs of the measurements.
pub(crate) struct Place {
    pub(crate) ground: Ground,
    /// `HOST:PORT`, and the path of the socket.
    pub(crate) tcp: String,
    pub(crate) unix: String,
    /// The router's URLs without TLS. The ground's URL has TLS.
    pub(crate) tcp_url: String,
    pub(crate) unix_url: String,
    pub(crate) pg_recvlogical: PathBuf,
    pub(crate) debezium: Option<Debezium>,
    pub(crate) topics: Topics,
    /// Events delivered during warm-up.
    pub(crate) warmed_up: AtomicU64,
}

/// Measures one contestant that reads the backlog of `case` from a copy of its slot.
pub(crate) async fn catch_up(
    place: &Place,
    case: &Case,
    contestant: Contestant,
    round: u32,
    progress: &Progress,
) -> anyhow::Result<Measurement> {
    let base = case.backlog().name;
    let measured = match contestant {
        Contestant::BareReader(over) => bare(place, &base, over, false, case).await?,
        Contestant::GatheringReader(over) => bare(place, &base, over, true, case).await?,
        Contestant::BareShards(over) => bare_shards(place, &base, over, case).await?,
        Contestant::PgRecvlogical => recvlogical(place, &base, case).await?,
        Contestant::Router(over, mode) | Contestant::InBulk(over, mode) | Contestant::Shards(over, mode) => {
            let run = variant(contestant, run_of(place, case, over, mode, round));
            let found =
                catch_up::measure(&place.ground, &base, &run, case.rows, case.writers > 0, progress).await?;
            Measured {
                events_per_second: found.events_per_second,
                first_after: Some(Duration::from_secs_f64(found.first_after_seconds)),
                took: Some(Duration::from_secs_f64(found.seconds)),
                cpu: Some(Duration::from_secs_f64(found.cpu_seconds)),
                memory: Some(found.peak_memory_bytes),
            }
        }
        Contestant::Debezium { tuned } => debezium::catch_up(place, &base, case, tuned, progress).await?,
        Contestant::PollingLoop => polling_loop::catch_up(place, &base, case, progress).await?,
    };
    Ok(Measurement {
        case: case.name.clone(),
        contestant: contestant.name(),
        round,
        rows: case.rows,
        events_per_second: measured.events_per_second,
        first_after_seconds: measured.first_after.map(|time| time.as_secs_f64()),
        seconds: measured.took.map(|time| time.as_secs_f64()),
        cpu_seconds: measured.cpu.map(|time| time.as_secs_f64()),
        peak_memory_bytes: measured.memory,
    })
}

pub(crate) struct Measured {
    pub(crate) events_per_second: f64,
    pub(crate) first_after: Option<Duration>,
    /// From the first event to the last.
    pub(crate) took: Option<Duration>,
    pub(crate) cpu: Option<Duration>,
    pub(crate) memory: Option<u64>,
}

/// The router of `mode` that reads over this transport.
pub(crate) fn run_of(place: &Place, case: &Case, over: Transport, mode: DeliveryMode, round: u32) -> Run {
    let part = format!("{}-{}", case.id(), over.id());
    let postgres = match over {
        Transport::Tls => None,
        Transport::Tcp => Some(place.tcp_url.clone()),
        Transport::Unix => Some(place.unix_url.clone()),
    };
    Run {
        topic: case.topic(),
        partitions: case.partitions,
        postgres,
        settings: case.settings(),
        ..Run::new(&part, mode, round)
    }
}

/// Additional settings of the router.
fn variant(contestant: Contestant, run: Run) -> Run {
    let (part, shards, setting) = match contestant {
        Contestant::InBulk(..) => ("-bulk-reads", 1, "postgres.catch_up_lag = \"1MiB\"\n"),
        Contestant::Shards(..) => ("-shards", SHARDS, STREAM),
        _ => ("", 1, STREAM),
    };
    let (name, settings) = (run.name.clone() + part, run.settings.clone() + setting);
    Run { name, settings, shards, ..run }
}

fn server_of(place: &Place, over: Transport) -> Server {
    match over {
        Transport::Tls => Server::Tls(place.tcp.clone()),
        Transport::Tcp => Server::Tcp(place.tcp.clone()),
        Transport::Unix => Server::Unix(place.unix.clone()),
    }
}

/// Adds the rows, and takes the time from the first row of either to the last of either.
async fn bare_shards(place: &Place, base: &str, over: Transport, case: &Case) -> anyhow::Result<Measured> {
    let mut readers = Vec::new();
    let mut slots = Vec::new();
    for number in 0..SHARDS {
        let slot = format!("{base}_bare_{number}");
        place.ground.copy_slot(base, &slot).await?;
        slots.push(slot);
    }
    // the number of rows that each has to read
    let counted = place
        .ground
        .client
        .query(
            &format!(
                "SELECT count(*), (pg_catalog.hashtext(aggregate_id) & 2147483647) % {SHARDS} FROM outbox GROUP BY 2 ORDER BY 2"
            ),
            &[],
        )
        .await
        .context("count the rows of each shard")?;
    let begun = Instant::now();
    for (number, (slot, row)) in slots.iter().zip(&counted).enumerate() {
        let (server, slot, publication) =
            (server_of(place, over), slot.clone(), format!("{PUBLICATION}_{number}_of_{SHARDS}"));
        let rows = u64::try_from(row.try_get::<_, i64>(0)?)?;
        readers.push(tokio::task::spawn_blocking(move || {
            let read = bare_reader::read(&server, &slot, &publication, rows, false)?;
            anyhow::Ok((read.first_after, Instant::now()))
        }));
    }
    let (mut first, mut last) = (Duration::MAX, begun);
    for reader in readers {
        let (first_after, ended) = reader.await??;
        (first, last) = (first.min(first_after), last.max(ended));
    }
    for slot in slots {
        place.ground.drop_slot(&slot).await?;
    }
    let took = last.duration_since(begun).saturating_sub(first);
    Ok(Measured {
        events_per_second: case.rows as f64 / took.as_secs_f64(),
        first_after: Some(first),
        took: None,
        cpu: None,
        memory: None,
    })
}

async fn bare(
    place: &Place,
    base: &str,
    over: Transport,
    gathers: bool,
    case: &Case,
) -> anyhow::Result<Measured> {
    let slot = format!("{base}_bare");
    place.ground.copy_slot(base, &slot).await?;
    let server = server_of(place, over);
    let (name, rows) = (slot.clone(), case.rows);
    let read =
        tokio::task::spawn_blocking(move || bare_reader::read(&server, &name, PUBLICATION, rows, gathers))
            .await??;
    place.ground.drop_slot(&slot).await?;
    Ok(Measured {
        events_per_second: read.rows as f64 / read.took.as_secs_f64(),
        first_after: Some(read.first_after),
        took: None,
        cpu: None,
        memory: None,
    })
}

/// This contestant reports only its end, so its whole time counts.
async fn recvlogical(place: &Place, base: &str, case: &Case) -> anyhow::Result<Measured> {
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    let slot = format!("{base}_recvlogical");
    place.ground.copy_slot(base, &slot).await?;
    let row = place.ground.client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await?;
    let end: String = row.try_get(0)?;
    let begun = Instant::now();
    let mut process = Command::new(&place.pg_recvlogical)
        .args(["--dbname", &place.ground.url, "--slot", &slot, "--start", "--endpos", &end, "--no-loop"])
        .args(["--option", "proto_version=1", "--option", &format!("publication_names={PUBLICATION}")])
        .args(["--file", "/dev/null", "--fsync-interval", "0"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {}", place.pg_recvlogical.display()))?;
    let number = process.id().context("pg_recvlogical ended at once")?;
    // both are gone with the process
    let (mut cpu, mut memory) = (None, None);
    let status = loop {
        if let Some(status) = process.try_wait()? {
            break status;
        }
        cpu = cpu_time(number).ok().or(cpu);
        memory = peak_memory(number).ok().or(memory);
        sleep(LOOK_EVERY).await;
    };
    let took = begun.elapsed();
    ensure!(status.success(), "pg_recvlogical ended with {status}");
    place.ground.drop_slot(&slot).await?;
    Ok(Measured {
        events_per_second: case.rows as f64 / took.as_secs_f64(),
        first_after: None,
        took: None,
        cpu,
        memory,
    })
}
