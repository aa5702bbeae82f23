//! On a broker with an authorizer, the ACLs of `init --print-acls` are sufficient and necessary.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka};
use crate::support::process;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// The principal with all ACLs.
const ALL: &str = "outbox-router";

struct Acls {
    broker: PrivateKafka,
    folder: tempfile::TempDir,
}

impl Acls {
    /// Starts a broker with these principals and `admin`, all with the password `secret`.
    async fn new(principals: &[String]) -> Self {
        let users: String = principals.iter().map(|name| format!(" user_{name}=\"secret\"")).collect();
        let jaas = format!(
            "listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
             user_admin=\"secret\"{users};"
        );
        let mut settings: Vec<&str> = AUTHORIZING.into_iter().filter(|line| !line.contains("jaas")).collect();
        settings.push(&jaas);
        let folder = tempfile::tempdir().unwrap();
        // stands in for Kafka's script of that name, with the administrator's credentials
        let tool = folder.path().join("kafka-acls.sh");
        let java = format!(
            "#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -cp '{}' org.apache.kafka.tools.AclCommand \"$@\"\n",
            shared::variable("TEST_KAFKA_CLASSPATH")
        );
        fs::write(&tool, java).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let admin = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n\
             sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username=\"admin\" password=\"secret\";\n";
        fs::write(folder.path().join("admin.properties"), admin).unwrap();
        Acls { broker: PrivateKafka::start(&settings).await, folder }
    }

    fn settings(&self, outbox: &Outbox, principal: &str, mode: &str) -> Settings {
        Settings::new(outbox, &self.broker.client())
            .set("name", outbox.name.as_str())
            .set("kafka.'bootstrap.servers'", self.broker.extra())
            .set("kafka.'security.protocol'", "sasl_plaintext")
            .set("kafka.'sasl.mechanism'", "PLAIN")
            .set("kafka.'sasl.username'", principal)
            .set("kafka.'sasl.password'", "secret")
            .set("delivery.mode", mode)
    }

    /// Runs the printed commands.
    fn run_commands(&self, commands: &str) {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", commands]).current_dir(self.folder.path()).env("PATH", path);
        let output = process::output(&mut shell);
        assert!(output.status.success(), "{commands}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn printed(settings: &Settings) -> String {
    let ran = settings.run(&["init", "--print-acls"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
}

async fn send(settings: &Settings, outbox: &Outbox, kafka: &Kafka) {
    let before = kafka.committed(&outbox.name).await.unwrap().len();
    let mut router = Router::start(settings);
    router.ready().await;
    outbox.insert("order", "a", "1").await;
    outbox.insert("customer", "a", "2").await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(kafka.committed(&outbox.name).await.unwrap().len(), before + 2);
}

#[tokio::test]
async fn acls_as_printed_are_enough_in_both_modes() {
    let acls = Acls::new(&[ALL.to_owned()]).await;
    let kafka = acls.broker.client();
    for mode in ["at-least-once", "exactly-once"] {
        let outbox = Outbox::new().await;
        let settings = acls.settings(&outbox, ALL, mode);
        acls.run_commands(&printed(&settings));
        let check = settings.run(&["check"]);
        assert_eq!(check.code, 0, "{mode}: {check:?}");
        // the second router finds position and topics
        send(&settings, &outbox, &kafka).await;
        send(&settings, &outbox, &kafka).await;
        // another topic is refused, even with the outbox's name in it
        let other = settings.clone().set("route.topic", format!("other.{}", outbox.name));
        outbox.insert("order", "a", "3").await;
        let topic = format!("other.{}", outbox.name);
        Router::start(&other).exits(3).await.says(&[&topic, "authorization failed", "--print-acls"]);
        assert_eq!(kafka.partitions(&topic).await, 0);
    }
}

/// How a router reacts that lacks an operation.
enum Reaction {
    Exits(i32, &'static str),
    /// It reports the reason, and waits until the operation is granted.
    Waits(&'static str),
    /// It delivers, but learns a topic's limits only from refusals.
    Delivers,
}

/// Each printed operation except DESCRIBE, which WRITE implies.
const OPERATIONS: [(&str, &str, Reaction); 7] = [
    // first, before the topic exists
    ("positions", "Create", Reaction::Exits(1, "cannot create the topic outbox-router.positions")),
    ("positions", "Write", Reaction::Exits(1, "the position cannot be written")),
    ("positions", "Read", Reaction::Exits(1, "cannot read the topic outbox-router.positions")),
    ("topic", "Write", Reaction::Waits("WRITE")),
    ("topic", "Create", Reaction::Exits(3, "cannot create the topic")),
    ("transactional-id", "Write", Reaction::Exits(1, "do not let the router begin transactions")),
    ("topic", "DescribeConfigs", Reaction::Delivers),
];

/// The name of the principal that lacks the operation `what` on `on`.
fn lacking(on: &str, what: &str) -> String {
    format!("no_{}_{what}", on.replace('-', "_"))
}

/// The printed commands, changed so that each of the principals gets all operations but one.
fn each_lacks_one(commands: &str, principals: &[String]) -> String {
    let mut changed = String::new();
    for on in ["positions", "topic", "transactional-id"] {
        let option = if on == "transactional-id" { "--transactional-id " } else { "--topic " };
        let of_positions = |command: &str| command.contains("--topic outbox-router.positions");
        let command = commands
            .split("\n\n")
            .find(|command| command.contains(option) && of_positions(command) == (on == "positions"));
        let command = command.unwrap();
        let (head, operations) = command.split_once("--operation ").unwrap();
        let (operations, resource) = operations.split_once(option).unwrap();
        let operations = operations.replace(['\\', '\n'], " ");
        for operation in operations.split("--operation ").map(str::trim) {
            let refused = lacking(on, operation);
            let others = principals.iter().filter(|name| **name != refused);
            let others: String = others.map(|name| format!("--allow-principal User:{name} ")).collect();
            let head = head.replace("--allow-principal User:outbox-router", &others);
            changed += &format!("{head}--operation {operation} {option}{resource}\n");
        }
    }
    changed
}

#[tokio::test]
async fn acls_that_lack_one_operation_are_reported_with_what_to_grant() {
    let principals: Vec<String> = OPERATIONS.iter().map(|(on, what, _)| lacking(on, what)).collect();
    let acls = Acls::new(&principals).await;
    let outbox = Outbox::new().await;
    let commands = printed(&acls.settings(&outbox, ALL, "exactly-once"));
    acls.run_commands(&each_lacks_one(&commands, &principals));
    for ((on, what, reaction), principal) in OPERATIONS.iter().zip(&principals) {
        let mode = if *on == "transactional-id" { "exactly-once" } else { "at-least-once" };
        let settings = acls.settings(&outbox, principal, mode);
        println!("without {what} on {on}");
        let mut router = Router::start(&settings);
        // its topic does not exist yet
        outbox.insert(&principal.to_lowercase(), "a", "1").await;
        match reaction {
            Reaction::Exits(code, why) => {
                let ended = router.exits(*code).await;
                ended.says(&[why, "init --print-acls"]);
                if *what == "Read" {
                    ended.shown(&outbox);
                }
            }
            Reaction::Delivers => {
                outbox.all_confirmed().await;
                router.stop().await;
            }
            Reaction::Waits(why) => {
                router
                    .shows("the status names the missing operation", |status| {
                        let reason = status["reason"].as_str()?;
                        (reason.contains(why) && reason.contains("init --print-acls")).then_some(())
                    })
                    .await;
                router.stop().await;
            }
        }
        outbox.released().await;
        // otherwise the next router would stop at this event
        outbox.execute("DELETE FROM outbox").await;
        acls.settings(&outbox, "admin", "at-least-once").advance_past_everything(&outbox).await;
    }
    // only the last router has delivered its event
    assert_eq!(acls.broker.client().count(&outbox.name).await, Ok(1));
}
