//! Members that are killed, rebalances, sessions that end, and servers that restart: every effect once and in order.

use std::process::{Child, Command, Stdio};

use crate::support::{Database, Session};
use crate::topic::{Effects, Running, Topic, consumer};

const AGGREGATES: usize = 12;

/// Ends the sessions of the members.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'member' AND datname = current_database()";

/// Asserts that these events had one effect each, in the order of their aggregates.
async fn once_and_in_order(topic: &Topic, events: usize) {
    let session = topic.session().await;
    let once = "SELECT count(*), count(DISTINCT event_id) FROM effects";
    assert_eq!(session.ok(once).await, format!("{events}|{events}"));
    let disorder = "SELECT string_agg(event_id, ' ') FROM (SELECT event_id, value::int - lag(value::int) OVER \
                    (PARTITION BY aggregate ORDER BY n) AS step FROM effects) e WHERE step <> 1";
    assert_eq!(session.ok(disorder).await, "");
}

/// Sends events that are numbered within each aggregate, and some of them twice.
async fn send(topic: &Topic, range: std::ops::Range<usize>) {
    for n in range {
        let (id, key) = (format!("e{n}"), format!("a{}", n % AGGREGATES));
        let value = (n / AGGREGATES).to_string();
        topic.send(&id, &key, &value).await;
        if n % 5 == 0 {
            topic.send(&id, &key, &value).await;
        }
    }
}

/// A member that runs in a process of its own.
struct Member(Child);

impl Member {
    fn start(topic: &Topic) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "faults::member", "--ignored", "--nocapture"])
            .env("MEMBER", format!("{} {} {}", topic.name, topic.brokers, topic.database.url()))
            .stdout(Stdio::null());
        Member(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn member() {
    let Ok(member) = std::env::var("MEMBER") else { return };
    let [name, brokers, url] = member.split(' ').collect::<Vec<_>>()[..] else { panic!("{member}") };
    consumer(name, brokers, url).max_events(7).run(Effects, std::future::pending()).await.unwrap();
}

/// Waits until at least so many events had an effect, so that a member is in the middle of its work.
async fn until_at_least(session: &Session, effects: usize) {
    session.until(&format!("SELECT count(*) >= {effects} FROM effects")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in scripts/test --full"]
async fn members_that_are_killed_and_replaced_repeat_no_effect() {
    const EVENTS: usize = 600;
    let topic = Topic::new(4).await;
    let session = topic.session().await;
    let mut members: Vec<_> = (0..2).map(|_| Member::start(&topic)).collect();
    let sending = send(&topic, 0..EVENTS);
    let killing = async {
        for round in 1..4 {
            until_at_least(&session, round * EVENTS / 6).await;
            // a rebalance while they work, and one after the session of the dead member
            members.push(Member::start(&topic));
            session.ok(END_SESSIONS).await;
            members.remove(0).kill();
        }
    };
    tokio::join!(sending, killing);
    topic.until_effects(EVENTS).await;
    once_and_in_order(&topic, EVENTS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in scripts/test --full"]
async fn members_that_join_and_leave_repeat_no_effect() {
    const EVENTS: usize = 600;
    let topic = Topic::new(4).await;
    let session = topic.session().await;
    let first = Running::start(topic.consumer().max_events(10));
    let rebalancing = async {
        for round in 1..4 {
            until_at_least(&session, round * EVENTS / 8).await;
            let other = Running::start(topic.consumer().max_events(3));
            until_at_least(&session, round * EVENTS / 8 + EVENTS / 16).await;
            other.stop().await;
        }
    };
    tokio::join!(send(&topic, 0..EVENTS), rebalancing);
    topic.until_effects(EVENTS).await;
    first.stop().await;
    once_and_in_order(&topic, EVENTS).await;
}

/// Private servers, named as `scripts/test` expects it, which ends those of tests that were killed.
struct Servers(String);

impl Servers {
    fn up() -> Self {
        let servers = Servers(format!("test-{}-0", std::process::id()));
        servers.run(&["up", "--in-memory"]);
        servers
    }

    fn run(&self, arguments: &[&str]) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/services");
        let output = Command::new(script).args(arguments).args(["--instance", &self.0]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn variable(&self, name: &str) -> String {
        let exports = self.run(&["env"]);
        let line = exports.lines().find_map(|line| line.strip_prefix(&format!("export {name}=")));
        line.unwrap_or_else(|| panic!("{name} is not in {exports}")).to_owned()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.run(&["down"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in scripts/test --full"]
async fn servers_that_restart_repeat_no_effect() {
    const EVENTS: usize = 240;
    let servers = Servers::up();
    let database = Database::on(&servers.variable("TEST_POSTGRES_URL")).await;
    let topic = Topic::on(&servers.variable("TEST_KAFKA"), database, 2).await;
    let running = Running::start(topic.consumer().max_events(10));
    let mut sent = 0;
    for (stopping, server) in
        [("kill", "postgres"), ("stop", "kafka"), ("stop", "postgres"), ("kill", "kafka")]
    {
        send(&topic, sent..sent + EVENTS / 4).await;
        sent += EVENTS / 4;
        servers.run(&[stopping, server]);
        servers.run(&["start", server]);
    }
    topic.until_effects(EVENTS).await;
    running.stop().await;
    once_and_in_order(&topic, EVENTS).await;
}
