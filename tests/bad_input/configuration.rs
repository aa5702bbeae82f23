//! Faults that can be detected without a server: exit code 2.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::process;
use crate::support::router::{Ended, Router};
use crate::support::sentences::Sentences;
use crate::support::settings::Settings;

/// Addresses where nothing answers: a router that connected would not exit soon.
fn settings() -> Settings {
    Settings::default()
        .set("postgres.url", "postgres://nobody@192.0.2.1/nowhere")
        .set("kafka.'bootstrap.servers'", "192.0.2.1:9092")
}

fn run(arguments: &[&str], file: &Path) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
    command.args(arguments).arg("-c").arg(file).arg("run").env_clear();
    let output = process::output(&mut command);
    Ended { status: output.status, log: String::from_utf8(output.stderr).unwrap() }
}

#[tokio::test]
async fn bad_input_in_the_configuration_exits_with_2_before_any_connection() {
    let mut sentences = Sentences::default();
    for (key, value) in [
        ("postgres.publicaton", "outbox_router"),
        ("delivery.shutdown_timeout", "soon"),
        ("delivery.mode", "exactly-twice"),
        ("kafka.'enable.idempotence'", "false"),
        ("kafka.'linger.mss'", "5"),
        ("kafka.'linger.ms'", "a while"),
        ("route.topic", "outbox.${aggregate_type"),
        ("route.topic", "outbox/${aggregate_type}"),
        ("route.topic", "outbox-router.positions"),
        ("route.topic", "__${aggregate_type}"),
        ("outbox.table", "a.b.c"),
        ("postgres.slot", "Outbox-Router"),
        ("postgres.url", "mysql://db/shop"),
        ("admin.listen", "8084"),
        ("admin.listen", "127.0.0.1:port"),
        ("admin.listen", "192.0.2.1:8084"),
    ] {
        let ended = Router::start(&settings().set(key, value)).exits(2).await;
        sentences.add(&format!("{key} = {value:?}"), &ended, &[]);
    }
    let no_file =
        settings().set("kafka.'security.protocol'", "ssl").set("kafka.'ssl.ca.location'", "/nowhere/ca.pem");
    let mut ended = Router::start(&no_file).exits(2).await;
    // what OpenSSL says differs from version to version
    let (what, of_openssl) = ended.log.split_once("location failed: ").unwrap();
    let (_, remedy) = of_openssl.rsplit_once("\n  ").unwrap();
    ended.log = format!("{what}location failed: OPENSSL'S REASON. {remedy}");
    sentences.add("kafka.'ssl.ca.location' = \"/nowhere/ca.pem\"", &ended, &[]);
    let ended = Router::start(&settings().set("topics.partitions", 0)).exits(2).await;
    sentences.add("topics.partitions = 0", &ended, &[]);
    let ended = Router::start(&Settings::default()).exits(2).await;
    sentences.add("an empty file", &ended, &[]);
    insta::assert_snapshot!(sentences.text());
}

#[test]
fn bad_input_of_an_unreadable_file_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.toml");
    fs::write(&broken, "[postgres]\nurl = \"postgres://db/shop\nslot = \"x\"\n").unwrap();
    let latin = folder.path().join("latin1.toml");
    fs::write(&latin, b"name = \"caf\xe9\"\n").unwrap();
    let mut sentences = Sentences::default();
    for (case, file) in [
        ("a missing file", folder.path().join("missing.toml")),
        ("a directory", folder.path().to_owned()),
        ("broken TOML", broken),
        ("not UTF-8", latin),
    ] {
        let ended = run(&[], &file);
        assert_eq!(ended.status.code(), Some(2), "{case}: {}", ended.log);
        sentences.add(case, &ended, &[(folder.path().to_str().unwrap(), "FOLDER")]);
    }
    insta::assert_snapshot!(sentences.text());
}

#[tokio::test]
async fn bad_input_of_an_admin_port_in_use_exits_with_2() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ended = Router::start(&settings().set("admin.listen", address.as_str())).exits(2).await;
    let mut sentences = Sentences::default();
    sentences.add("a port that is taken", &ended, &[(&address, "HOST:PORT")]);
    insta::assert_snapshot!(sentences.text());
}

/// Output that needs no configuration.
#[test]
fn bad_input_of_a_full_standard_output_exits_with_2() {
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-router"));
        command.args(arguments).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
        let output = process::start(&mut command).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(err.contains("Cannot write to standard output"), "{arguments:?}: {err}");
    }
}
