//! Refusals of commands and settings. Only the operator knows the right values, so nothing is typed but the steps of `init`.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::typist::Typist;
use super::{Code, Scene};
use crate::bad_input::unreachable::dead;
use crate::commands::check::Found;
use crate::contracts::contracts;
use crate::support::place::{Ran, succeeded};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;

impl Scene {
    /// Runs a command that is refused with `code`, and keeps the message.
    async fn refuses(&self, settings: &Settings, arguments: &[&str], code: Code) -> Ended {
        let ended = Ended::of(settings.run_async(arguments).await);
        self.keeps(&ended, code);
        ended
    }
}

/// Whatever accepts connections there does not speak the protocol.
#[tokio::test]
async fn situation_address_of_something_else_than_postgres() {
    let scene = Scene::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answers = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = [0; 8];
        client.read_exact(&mut request).unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let settings = scene.settings.clone().reached_at(&scene.outbox, &address);
    let ended = Router::start(&settings).exits(1).await;
    scene.keeps_masking(&ended, Code::PostgresUnusable, &[(&address, "HOST")]);
    answers.join().unwrap();
}

#[tokio::test]
async fn situation_postgres_unreachable() {
    let scene = Scene::new().await;
    let (_dead, address) = dead();
    let address = address.to_string();
    let settings = scene.settings.clone().reached_at(&scene.outbox, &address);
    let ended = Ended::of(settings.run_async(&["init"]).await);
    scene.keeps_masking(&ended, Code::PostgresUnreachable, &[(&address, "HOST")]);
}

/// The command in the refusal is typed by an administrator.
#[tokio::test]
async fn situation_init_under_the_routers_role() {
    let mut scene = Scene::new().await;
    scene.is_of_a_role().await;
    scene.sql("DROP PUBLICATION outbox_router").await;
    let ended = scene.refuses(&scene.settings, &["init"], Code::PostgresRefused).await;
    Typist::new(&scene.outbox, &scene.settings).types_steps(&ended, "").await;
    Router::active(&scene.settings).await.stop().await;
}

#[tokio::test]
async fn situation_schema_of_a_later_version() {
    let scene = Scene::new().await;
    succeeded(scene.settings.run_async(&["init"]).await, &[]);
    scene
        .sql(
            "DROP TABLE outbox_router.slots; UPDATE outbox_router.refinery_schema_history SET checksum = '1'",
        )
        .await;
    scene.refuses(&scene.settings, &["init"], Code::RouterSchema).await;
}

#[tokio::test]
async fn situation_contracts_with_an_error() {
    let scene = Scene::new().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("placed.json"), "{\"type\": 1}").unwrap();
    let settings = scene.settings.clone().set("contracts.directory", folder.path().to_str().unwrap());
    let ended = Router::start(&settings).ended().await;
    scene.keeps_masking(&ended, Code::Contracts, &[(folder.path().to_str().unwrap(), "DIRECTORY")]);
}

#[tokio::test]
async fn situation_contract_with_an_incompatible_change() {
    let (scene, before, after) = (Scene::new().await, contracts(), contracts());
    let changed = r#"{"type": "object", "properties": {"total": {"type": "string"}}, "required": ["total"]}"#;
    std::fs::write(after.path().join("order/placed.json"), changed).unwrap();
    let [before, after] = [&before, &after].map(|folder| folder.path().to_str().unwrap());
    let arguments = ["contracts", "check", after, "--against", before, "--json"];
    let found = Found::in_output(scene.settings.run_async(&arguments).await);
    found.shown("compatibility", &[(after, "DIRECTORY")]);
}

#[tokio::test]
async fn situation_file_that_cannot_be_written() {
    let scene = Scene::new().await;
    let contracts = contracts();
    let settings = scene.settings.clone().set("contracts.directory", contracts.path().to_str().unwrap());
    let arguments = ["contracts", "asyncapi", "--output", "/nowhere/asyncapi.json"];
    scene.refuses(&settings, &arguments, Code::InputOutput).await;
}

#[tokio::test]
async fn situation_position_beyond_the_log() {
    let mut scene = Scene::new().await;
    scene.delivered(1).await;
    let arguments = ["slot", "advance", "--to", "FFFF/0", "--yes"];
    scene.refuses(&scene.settings, &arguments, Code::PositionUnusable).await;
}

#[tokio::test]
async fn situation_connection_string_without_a_port() {
    let scene = Scene::new().await;
    let arguments = ["init", "--url", "postgres://db:port/shop"];
    scene.refuses(&scene.settings, &arguments, Code::ConnectionString).await;
}

#[tokio::test]
async fn situation_variable_without_a_meaning() {
    let scene = Scene::new().await;
    let variables = [("RUST_LOG", "outbox_router=loud")];
    scene.keeps(&Router::with_variables(&scene.settings, &variables).exits(2).await, Code::Environment);
}

#[tokio::test]
async fn situation_connector_of_another_database() {
    let scene = Scene::new().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("connector.json");
    std::fs::write(&file, r#"{"connector.class": "io.debezium.connector.mysql.MySqlConnector"}"#).unwrap();
    let arguments = ["import-debezium", file.to_str().unwrap()];
    scene.refuses(&scene.settings, &arguments, Code::DebeziumConfiguration).await;
}

/// The shared broker is alone.
#[tokio::test]
async fn situation_more_replicas_than_brokers() {
    let scene = Scene::new().await;
    let settings = scene.settings.clone().set("topics.replication_factor", 3);
    Found::with(&settings).await.shown("replication_factor", &[(&scene.outbox.name, "NAME")]);
}

#[tokio::test]
async fn situation_brokers_unreachable() {
    let mut scene = Scene::new().await;
    scene.delivered(1).await;
    let (_dead, address) = dead();
    let address = address.to_string();
    let settings = scene.settings.clone().set("kafka.'bootstrap.servers'", address.as_str());
    let ended = Ended::of(settings.run_async(&["slot", "advance", "--to", "FFFF/0", "--yes"]).await);
    scene.keeps_masking(&ended, Code::KafkaUnreachable, &[(&address, "HOST")]);
}

/// The message of the refused command becomes that of a router, so that it can be read like one.
impl Ended {
    pub(crate) fn of(ran: Ran) -> Self {
        Ended { status: std::os::unix::process::ExitStatusExt::from_raw(ran.code << 8), log: ran.err }
    }
}
