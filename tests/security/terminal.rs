//! Messages of a server, or of an attacker in between, are shown but cannot control a terminal.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::router::Router;
use crate::support::settings::Settings;

/// Clears the screen, sets colours in two ways, and starts lines that look like log lines and errors.
const HOSTILE: &str =
    "no\u{1b}[2J\u{9b}31m\r2026-01-01T00:00:00.000Z  INFO forged\nforged line\nerror: forged";

/// A server that answers every startup message with a refusal.
fn refusing_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut startup = [0; 1024];
            let _ = stream.read(&mut startup);
            let mut body = Vec::new();
            for (field, value) in
                [('S', "FATAL"), ('V', "FATAL"), ('C', "28000"), ('M', HOSTILE), ('D', HOSTILE)]
            {
                body.push(field as u8);
                body.extend_from_slice(value.as_bytes());
                body.push(0);
            }
            body.push(0);
            let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
            let _ = stream.write_all(&[b"E", &length[..], &body].concat());
        }
    });
    port
}

fn assert_harmless(what: &str, text: &str) {
    assert!(text.contains("forged"), "{what} does not show the message: {text}");
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(control), "{what}: {text:?}");
    let forged = |line: &str| line.starts_with("forged") || line.starts_with("error: forged");
    assert!(!text.lines().any(forged), "{what}: {text}");
}

#[tokio::test]
async fn terminal_is_not_controlled_by_messages_of_a_server() {
    let settings = Settings::default()
        .set(
            "postgres.url",
            format!("postgres://router@127.0.0.1:{}/shop?sslmode=disable", refusing_server()),
        )
        .set("kafka.'bootstrap.servers'", "127.0.0.1:1")
        .set("admin.listen", "");
    for level in ["info", "trace"] {
        let ended = Router::with_variables(&settings, &[("RUST_LOG", level)]).exits(1).await;
        assert_harmless("run", &ended.log);
    }
    for arguments in
        [&["check"][..], &["check", "--json"], &["status"], &["slot", "list"], &["init"], &["tail"]]
    {
        let ran = settings.run(arguments);
        assert_eq!(ran.code, 1, "{arguments:?}: {ran:?}");
        assert_harmless(&format!("{arguments:?}"), &[ran.out, ran.err].concat());
    }
}
