//! On a broker with an authorizer, the ACLs of `init --print-acls` are sufficient and necessary.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::situations::page::keep;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka, tool_arguments};
use crate::support::process;
use crate::support::router::Router;
use crate::support::settings::Settings;

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
        let arguments =
            tool_arguments("org.apache.kafka.tools.AclCommand").map(|argument| format!("'{argument}'"));
        let script = format!("#!/bin/sh\nexec java {} \"$@\"\n", arguments.join(" "));
        fs::write(&tool, script).unwrap();
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
#[ignore = "runs in scripts/test --full"]
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

/// How a router reacts that lacks rights.
enum Reaction {
    /// It exits with this code.
    Exits(i32),
    /// It reports the reason, and waits until the operation is granted.
    Waits,
    /// It delivers, but learns a topic's limits only from refusals.
    Delivers,
}

/// What is taken away, as pairs of resource and operation (`*`: all). What the router says is missing, and on what.
struct Case {
    principal: &'static str,
    mode: &'static str,
    lacks: &'static [(&'static str, &'static str)],
    reaction: Reaction,
    says: [&'static str; 2],
    /// Whether `check` finds it too.
    checked: bool,
}

const POSITIONS: &str = "on the topic outbox-router.positions";
const TOPIC: &str = "on the topic TOPIC";
const IDS: &str = "on the transactional ids that begin with NAME.";
const CLUSTER: &str = "WRITE on any topic nor IDEMPOTENT_WRITE on the cluster";

const fn case(
    principal: &'static str,
    mode: &'static str,
    lacks: &'static [(&'static str, &'static str)],
    reaction: Reaction,
    says: [&'static str; 2],
) -> Case {
    Case { principal, mode, lacks, reaction, says, checked: false }
}

const fn checked(case: Case) -> Case {
    Case { checked: true, ..case }
}

/// In this order, because the positions topic does not exist at first. WRITE implies DESCRIBE.
const CASES: &[Case] = &[
    checked(case(
        "positions_create",
        ONCE_OR_MORE,
        &[("positions", "Create")],
        Reaction::Exits(1),
        ["CREATE", POSITIONS],
    )),
    case("positions_none", ONCE_OR_MORE, &[("positions", "*")], Reaction::Exits(1), ["DESCRIBE", POSITIONS]),
    case(
        "positions_write",
        ONCE_OR_MORE,
        &[("positions", "Write")],
        Reaction::Exits(1),
        ["WRITE", POSITIONS],
    ),
    case("positions_read", ONCE_OR_MORE, &[("positions", "Read")], Reaction::Exits(1), ["READ", POSITIONS]),
    case("topic_write", ONCE_OR_MORE, &[("topic", "Write")], Reaction::Waits, ["WRITE", TOPIC]),
    checked(case(
        "topic_create",
        ONCE_OR_MORE,
        &[("topic", "Create")],
        Reaction::Exits(3),
        ["CREATE", TOPIC],
    )),
    checked(case("topic_none", ONCE_OR_MORE, &[("topic", "*")], Reaction::Exits(3), ["DESCRIBE", TOPIC])),
    case(
        "no_write",
        ONCE_OR_MORE,
        &[("positions", "Write"), ("topic", "Write")],
        Reaction::Exits(1),
        ["has neither", CLUSTER],
    ),
    checked(case(
        "nothing",
        ONCE_OR_MORE,
        &[("positions", "*"), ("topic", "*"), ("transactional-id", "*")],
        Reaction::Exits(1),
        ["DESCRIBE", POSITIONS],
    )),
    case("once_positions_write", ONCE, &[("positions", "Write")], Reaction::Exits(1), ["WRITE", POSITIONS]),
    case("once_positions_read", ONCE, &[("positions", "Read")], Reaction::Exits(1), ["READ", POSITIONS]),
    case("once_topic_write", ONCE, &[("topic", "Write")], Reaction::Waits, ["WRITE", TOPIC]),
    case("once_ids_write", ONCE, &[("transactional-id", "Write")], Reaction::Exits(1), ["WRITE", IDS]),
    case("once_ids_none", ONCE, &[("transactional-id", "*")], Reaction::Exits(1), ["DESCRIBE", IDS]),
    case("topic_configs", ONCE_OR_MORE, &[("topic", "DescribeConfigs")], Reaction::Delivers, ["", ""]),
];

const ONCE_OR_MORE: &str = "at-least-once";
const ONCE: &str = "exactly-once";

/// The printed commands, changed so that each principal gets all operations but those that it is to lack.
fn each_lacks_its_own(commands: &str) -> String {
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
            let lacks =
                |case: &&Case| case.lacks.contains(&(on, operation)) || case.lacks.contains(&(on, "*"));
            let others = CASES.iter().filter(|case| !lacks(case));
            let others: String =
                others.map(|case| format!("--allow-principal User:{} ", case.principal)).collect();
            let head = head.replace("--allow-principal User:outbox-router", &others);
            changed += &format!("{head}--operation {operation} {option}{resource}\n");
        }
    }
    changed
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn acls_that_lack_one_operation_are_reported_with_what_to_grant() {
    let principals: Vec<String> = CASES.iter().map(|case| case.principal.to_owned()).collect();
    let acls = Acls::new(&principals).await;
    let outbox = Outbox::new().await;
    acls.run_commands(&each_lacks_its_own(&printed(&acls.settings(&outbox, ALL, ONCE))));
    for Case { principal, mode, lacks, reaction, says: [operation, on], checked } in CASES {
        println!("{principal} lacks {lacks:?}");
        let settings = acls.settings(&outbox, principal, mode);
        // the topic of this principal's events does not exist yet
        let topic = outbox.topic(principal);
        let on = on.replace("TOPIC", &topic).replace("NAME", &outbox.name);
        // the command covers the resource, as `init --print-acls` prints it
        let resource = match on.as_str() {
            CLUSTER | POSITIONS => {
                "--topic outbox-router.positions --resource-pattern-type literal".to_owned()
            }
            on if on.contains("ids") => {
                format!("--transactional-id {}. --resource-pattern-type prefixed", outbox.name)
            }
            _ => format!("--topic {} --resource-pattern-type prefixed", outbox.topic("")),
        };
        let parts = [
            operation,
            on.as_str(),
            "`kafka-acls.sh --bootstrap-server",
            resource.as_str(),
            "init --print-acls",
        ];
        let check = settings.run_async(&["check"]).await;
        if *checked {
            assert!(check.code == 1 && check.out.contains("lacks CREATE on the topic"), "{check:?}");
        }
        let mut router = Router::start(&settings);
        outbox.insert(principal, "a", "1").await;
        match reaction {
            Reaction::Exits(code) => {
                let ended = router.exits(*code).await;
                ended.says(&parts);
                if *principal == "positions_read" {
                    keep(ended.message(), &[(acls.broker.extra(), "HOST"), (&outbox.name, "NAME")]);
                }
            }
            Reaction::Delivers => {
                outbox.all_confirmed().await;
                router.stop().await;
            }
            Reaction::Waits => {
                router
                    .shows("the status names the missing operation", |status| {
                        let reason = status["reason"].as_str()?;
                        parts.iter().all(|part| reason.contains(part)).then_some(())
                    })
                    .await;
                eventually("/readyz names the missing operation", async || {
                    let (code, text) = router.get("/readyz")?;
                    (code == 503 && parts.iter().all(|part| text.contains(part))).then_some(())
                })
                .await;
                for part in parts {
                    router.logs(part).await;
                }
                router.stop().await;
            }
        }
        outbox.released().await;
        // otherwise the next router would stop at this event
        outbox.execute("DELETE FROM outbox").await;
        acls.settings(&outbox, "admin", ONCE_OR_MORE).advance_past_everything(&outbox).await;
    }
    // only the last router has delivered its event
    assert_eq!(acls.broker.client().count(&outbox.name).await, Ok(1));
}
