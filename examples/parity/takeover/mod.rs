//! The takeover: while applications write, a connector's slot is handed to the router and back twice, by the steps of
//! docs/coming-from-debezium.md. Meanwhile the router and Connect are killed. At the end every row must be in the topics.

mod judgement;
mod writers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use outbox_router::terminal;
use pg_logical::Lsn;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use self::judgement::{Judgement, Phase, judge};
use self::writers::{Row, Writers};
use crate::case::Case;
use crate::connect::{Installation, Setup, Task, Worker};
use crate::database::{Database, Server};
use crate::router::{Router, Running};
use crate::topics::Broker;

/// The connector's name.
const NAME: &str = "outbox";
/// The minimum number of records in each phase.
const RECORDS: i64 = 1500;
/// The timeout of every wait.
const WITHIN: Duration = Duration::from_secs(120);
/// Long enough that a killed worker has sent many records after its last stored position.
const FLUSH: Duration = Duration::from_secs(10);
/// Debezium's error if the slot has passed its stored offset.
const NOT_AVAILABLE: &str = "no longer available on the server";
/// How many faults are listed.
const TOLD: usize = 20;

/// Runs the takeover and judges it.
pub(crate) async fn run(
    server: &Server,
    broker: &Broker,
    installation: &Installation,
    router: &Router,
) -> anyhow::Result<ExitCode> {
    let case = Case {
        name: "takeover".to_owned(),
        table: include_str!("table.sql").to_owned(),
        connector: include_str!("connector.json").to_owned(),
        ..Case::default()
    };
    broker.clear().await?;
    let database = server.create_without_slots(&case).await?;
    let setup = Setup { tracing: false, keep_offsets: false, flush: FLUSH };
    let worker = Worker::start(installation, setup, &router.folder, &router.brokers).await?;
    let mut stage =
        Stage { server, broker, installation, router, case, database: &database, phases: Vec::new() };
    let (worker, rows) = stage.play(worker).await?;
    let judgement = stage.until_all_arrived(&rows).await?;
    worker.end().await?;
    for wrong in judgement.wrong().iter().take(TOLD) {
        eprintln!("  {wrong}");
    }
    terminal::print(&judgement.render())?;
    broker.clear().await?;
    database.drop().await?;
    Ok(if judgement.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The servers and programs of the takeover.
struct Stage<'a> {
    server: &'a Server,
    broker: &'a Broker,
    installation: &'a Installation,
    router: &'a Router,
    case: Case,
    database: &'a Database,
    phases: Vec<Phase>,
}

impl Stage<'_> {
    /// All handovers in turn; then the writers end. The worker keeps running.
    async fn play(&mut self, mut worker: Worker) -> anyhow::Result<(Worker, Vec<Row>)> {
        eprintln!("Debezium makes its slot; the writers begin");
        worker.create(NAME, &self.connector()).await?;
        self.reads(&mut worker).await?;
        let mut writers = Writers::start(self.server, &self.database.name).await?;
        self.debezium_sends(&mut worker, &mut writers).await?;
        self.there_by_stop(&mut worker, &mut writers).await?;
        self.back_without_an_offset(&mut worker, &mut writers).await?;
        self.there_by_kill(worker, &mut writers).await?;
        let worker = self.back_with_trust(&mut writers).await?;
        Ok((worker, writers.end().await?))
    }

    /// The connector is stopped. The router takes the slot, and is killed once.
    async fn there_by_stop(&mut self, worker: &mut Worker, writers: &mut Writers) -> anyhow::Result<()> {
        eprintln!("the connector is stopped, the router takes its slot");
        self.stop_connector(worker).await?;
        self.ended("Debezium").await?;
        let offset = worker.offset(NAME).await?.context("Connect stored no offset")?;
        let [commit, begin] = ["lsn_commit", "lsn_proc"].map(|name| offset.get(name).and_then(Value::as_i64));
        let begin = begin.context("the stored offset has no lsn_proc")?;
        let position = self.database.position(self.slot()).await?;
        // the guide's promise that nothing is lost depends on this
        ensure!(
            commit.is_some_and(|commit| position.confirmed_flush <= commit),
            "the slot is at {}, ahead of the stored offset {offset}",
            position.confirmed_flush
        );
        let config = self.configuration().await?;
        self.router.check(&config).await?;
        let mut running = self.router.start(&config)?;
        self.router_sends(&mut running, writers).await?;

        eprintln!("the router is killed and starts again");
        running.kill().await?;
        self.ended("router, after the connector's stop").await?;
        let mut running = self.router.start(&config)?;
        self.router_sends(&mut running, writers).await?;
        self.moves_beyond(begin, &mut running).await?;
        running.stop().await?;
        self.ended("router, after its own SIGKILL").await
    }

    /// Debezium gets its slot back. With the old offset its task fails, without an offset it continues.
    async fn back_without_an_offset(
        &mut self,
        worker: &mut Worker,
        writers: &mut Writers,
    ) -> anyhow::Result<()> {
        eprintln!("Debezium is to go on with its old offset, which must fail and send nothing");
        worker.resume(NAME).await?;
        let why = self.fails(worker).await?;
        ensure!(why.contains(NOT_AVAILABLE), "Debezium's task failed with another error: {why}");
        self.stop_connector(worker).await?;
        let ends = self.broker.settled_ends().await?;
        ensure!(
            self.phases.last().is_some_and(|phase| phase.ends == ends),
            "a task that failed has sent records"
        );

        eprintln!("Debezium goes on without an offset, with snapshot.mode=no_data");
        worker.delete_offset(NAME).await?;
        worker.configure(NAME, &self.config(&[("snapshot.mode", "no_data")])?).await?;
        worker.resume(NAME).await?;
        self.reads(worker).await?;
        self.debezium_sends(worker, writers).await
    }

    /// Connect is killed, and the router takes the slot.
    async fn there_by_kill(&mut self, mut worker: Worker, writers: &mut Writers) -> anyhow::Result<()> {
        // the way back needs an old offset
        self.stores_an_offset(&mut worker).await?;
        self.debezium_sends(&mut worker, writers).await?;
        eprintln!("Connect is killed, the router takes the slot");
        worker.kill().await?;
        self.database.released(self.slot()).await?;
        self.ended("Debezium, without an offset").await?;
        let confirmed = self.database.position(self.slot()).await?.confirmed_flush;
        let confirmed = Lsn(confirmed.try_into().context("a position is no negative number")?);
        let mut running = self.router.start_after_another(&self.configuration().await?, confirmed)?;
        self.router_sends(&mut running, writers).await?;
        // Debezium had nothing behind it
        let written = self.database.written().await?;
        self.moves_beyond(written, &mut running).await?;
        running.stop().await?;
        self.ended("router, after SIGKILL of Connect").await
    }

    /// Debezium gets its slot back in another worker, and uses the slot's position.
    async fn back_with_trust(&mut self, writers: &mut Writers) -> anyhow::Result<Worker> {
        eprintln!("Debezium goes on with its old offset and offset.mismatch.strategy=trust_slot");
        let setup = Setup { tracing: false, keep_offsets: true, flush: FLUSH };
        let (folder, brokers) = (&self.router.folder, &self.router.brokers);
        let mut worker = Worker::start(self.installation, setup, folder, brokers).await?;
        let config = self.config(&[("offset.mismatch.strategy", "trust_slot")])?;
        worker.create(NAME, &serde_json::json!({ "config": config }).to_string()).await?;
        ensure!(
            worker.offset(NAME).await?.is_some(),
            "the old offset is gone, but trust_slot should override it"
        );
        self.reads(&mut worker).await?;
        self.debezium_sends(&mut worker, writers).await?;
        Ok(worker)
    }

    /// Waits for the missing rows, and judges. Rows that do not arrive in time are lost.
    async fn until_all_arrived(&mut self, rows: &[Row]) -> anyhow::Result<Judgement> {
        let deadline = Instant::now() + WITHIN;
        loop {
            let ends = self.broker.settled_ends().await?;
            let mut phases = self.phases.clone();
            phases.push(Phase { name: "Debezium, with trust_slot", ends });
            let judgement = judge(rows, &self.broker.read()?, &phases);
            if !judgement.lacks_rows() || Instant::now() > deadline {
                return Ok(judgement);
            }
        }
    }

    fn slot(&self) -> &str {
        self.database.debezium_slot()
    }

    fn connector(&self) -> String {
        self.case.connector(&self.database.place(self.slot()))
    }

    /// The router's configuration for the connector's slot.
    async fn configuration(&self) -> anyhow::Result<PathBuf> {
        let place = self.database.place(self.slot());
        match self.router.configuration(&self.case, &place).await? {
            Ok(config) => Ok(config),
            Err(refused) => bail!(refused),
        }
    }

    /// The connector's settings with some changes.
    fn config(&self, changed: &[(&str, &str)]) -> anyhow::Result<Value> {
        let mut file: Value = serde_json::from_str(&self.connector()).context("parse connector.json")?;
        let config = file.get_mut("config").context("connector.json has no member `config`")?;
        for (name, value) in changed {
            let members = config.as_object_mut().context("`config` is no object")?;
            members.insert((*name).to_owned(), Value::from(*value));
        }
        Ok(config.take())
    }

    /// Ends a phase in which the slot has become inactive, and records the ends of the topics.
    async fn ended(&mut self, name: &'static str) -> anyhow::Result<()> {
        self.phases.push(Phase { name, ends: self.broker.settled_ends().await? });
        Ok(())
    }

    async fn stop_connector(&self, worker: &mut Worker) -> anyhow::Result<()> {
        worker.stop(NAME).await?;
        self.database.released(self.slot()).await
    }

    /// Waits until Debezium reads the slot.
    async fn reads(&self, worker: &mut Worker) -> anyhow::Result<()> {
        let deadline = Instant::now() + WITHIN;
        while !self.database.is_read(self.slot()).await? {
            well(worker).await?;
            in_time(deadline, "Debezium to read the slot").await?;
        }
        Ok(())
    }

    /// Waits until Debezium's task has failed, and returns its exceptions.
    async fn fails(&self, worker: &mut Worker) -> anyhow::Result<String> {
        let deadline = Instant::now() + WITHIN;
        loop {
            if let Task::Failed(why) = worker.task(NAME).await? {
                return Ok(why);
            }
            in_time(deadline, "Debezium's task to fail").await?;
        }
    }

    /// Waits until Connect has stored a position.
    async fn stores_an_offset(&self, worker: &mut Worker) -> anyhow::Result<()> {
        let deadline = Instant::now() + WITHIN;
        while worker.offset(NAME).await?.is_none() {
            well(worker).await?;
            in_time(deadline, "Connect to store an offset").await?;
        }
        Ok(())
    }

    async fn debezium_sends(&self, worker: &mut Worker, writers: &mut Writers) -> anyhow::Result<()> {
        let deadline = Instant::now() + WITHIN;
        let until = self.broker.count()? + RECORDS;
        while self.broker.count()? < until {
            well(worker).await?;
            writers.are_well()?;
            in_time(deadline, "records of Debezium").await?;
        }
        Ok(())
    }

    async fn router_sends(&self, running: &mut Running, writers: &mut Writers) -> anyhow::Result<()> {
        let deadline = Instant::now() + WITHIN;
        let until = self.broker.count()? + RECORDS;
        while self.broker.count()? < until {
            goes_on(running)?;
            writers.are_well()?;
            in_time(deadline, "records of the router").await?;
        }
        Ok(())
    }

    /// Waits until the slot's restart position has passed `position`, so that nothing can be read from there.
    async fn moves_beyond(&self, position: i64, running: &mut Running) -> anyhow::Result<()> {
        let deadline = Instant::now() + WITHIN;
        while self.database.position(self.slot()).await?.restart <= position {
            goes_on(running)?;
            self.database.checkpoint().await?;
            in_time(deadline, "the slot to advance").await?;
        }
        Ok(())
    }
}

async fn well(worker: &mut Worker) -> anyhow::Result<()> {
    match worker.task(NAME).await? {
        Task::Running => Ok(()),
        Task::Failed(why) => bail!("Debezium's task failed: {why}"),
    }
}

fn goes_on(running: &mut Running) -> anyhow::Result<()> {
    match running.ended()? {
        None => Ok(()),
        Some(how) => bail!("the router ended by itself: {how}"),
    }
}

/// Waits before the next poll, or fails after the timeout.
async fn in_time(deadline: Instant, what: &str) -> anyhow::Result<()> {
    ensure!(Instant::now() < deadline, "waited {} s for {what}", WITHIN.as_secs());
    sleep(Duration::from_millis(100)).await;
    Ok(())
}
