//! The bare transactional producer: as many events as the writers commit, without Postgres and without a router. The time is from
//! the moment when an event is due until a consumer of committed records has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tokio::time::sleep;

use crate::contestant::Place;
use crate::measure::ground::{Id, PARTITIONS};
use crate::measure::latency::{Seen, all_arrive, reading};
use crate::measure::writers::arrivals;
use crate::stage::process::cpu_time;

/// The name in tables.
pub(crate) const NAME: &str = "bare transactional producer";

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const WARM_UP: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(50);
const KEYS: u64 = 1_000;
/// About the size of a writer's event.
const VALUE: [u8; 286] = [b'x'; 286];

/// Sends `rate` events per second for `span`, after the warm-up.
pub(crate) async fn latency(place: &Place, topic: &str, rate: u32, span: Duration) -> anyhow::Result<Seen> {
    place.topics.make(topic, PARTITIONS).await?;
    let mut reading = reading(&place.ground, topic)?;
    let stop = Arc::new(AtomicBool::new(false));
    let sending = {
        let (brokers, topic, stop) = (place.ground.brokers.clone(), topic.to_owned(), Arc::clone(&stop));
        thread::spawn(move || send(&brokers, &topic, rate, &stop))
    };
    let (mut records, mut arrived) = (Vec::new(), HashMap::new());
    let from = Instant::now() + WARM_UP;
    let (mut cpu_before, mut begun) = (Duration::ZERO, false);
    while from.elapsed() < span && !sending.is_finished() {
        sleep(POLL_EVERY).await;
        if !begun && Instant::now() >= from {
            (cpu_before, begun) = (cpu_time(std::process::id())?, true);
        }
        reading.take(&mut records)?;
        arrivals(&mut records, &mut arrived);
    }
    let cpu = cpu_time(std::process::id())?.saturating_sub(cpu_before);
    stop.store(true, Ordering::Relaxed);
    let sent = tokio::task::spawn_blocking(move || sending.join()).await?;
    let sent = sent.map_err(|_| anyhow::anyhow!("the bare producer panicked"))??;
    all_arrive(&mut reading, &mut arrived, &sent).await?;
    // the processor time of this process, which is the consumer too
    Ok(Seen { cpu_seconds: cpu.as_secs_f64(), ..Seen::of(&sent, &arrived, from, span, 1) })
}

/// One transaction after the other, each with the events that are due when it begins. Returns when each event was due.
fn send(brokers: &str, topic: &str, rate: u32, stop: &AtomicBool) -> anyhow::Result<HashMap<Id, Instant>> {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("transactional.id", topic)
        .set("linger.ms", "0")
        .create()
        .context("create the bare producer")?;
    producer.init_transactions(CALL_TIMEOUT).context("begin transactions")?;
    let (mut sent, begun) = (HashMap::new(), Instant::now());
    let mut number = 0_u64;
    let due = |number: u64| begun + Duration::from_secs_f64(number as f64 / f64::from(rate));
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due(number).saturating_duration_since(Instant::now()));
        producer.begin_transaction()?;
        while due(number) <= Instant::now() {
            let id: Id = rand::random();
            let (key, header) = (format!("key-{}", number % KEYS), format!("{id:032x}"));
            let headers = OwnedHeaders::new().insert(Header { key: "id", value: Some(&header) });
            let record = BaseRecord::to(topic).key(&key).payload(&VALUE[..]).headers(headers);
            producer.send(record).map_err(|(error, _)| error)?;
            sent.insert(id, due(number));
            number += 1;
        }
        // rdkafka's commit waits in steps of 100 ms while a report is outstanding
        while producer.in_flight_count() > 0 {
            producer.poll(Duration::from_millis(1));
        }
        producer.commit_transaction(CALL_TIMEOUT)?;
    }
    Ok(sent)
}
