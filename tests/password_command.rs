//! A program prints the password for each connection to Postgres.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use toml::Value;

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::postgres::PrivatePostgres;
use crate::support::process;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::signal::{Signal, send};

const PG_HBA: &str = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// A server whose role `router` needs a password, and a program that prints it.
struct Setup {
    outbox: Outbox,
    folder: tempfile::TempDir,
    settings: Settings,
    /// After the outbox, which drops its database.
    server: PrivatePostgres,
}

impl Setup {
    async fn new() -> Self {
        let server = PrivatePostgres::start(PG_HBA, &[]).await;
        server.execute(&["CREATE ROLE router LOGIN SUPERUSER PASSWORD 'first'"]).await;
        let outbox = Outbox::on(&server.url()).await;
        let folder = tempfile::tempdir().unwrap();
        let url = outbox.url().replace("postgres@", "router@");
        let settings = Settings::new(&outbox, &Kafka::shared()).set("postgres.url", url);
        Setup { server, outbox, folder, settings }
    }

    /// A file with a shell script.
    fn script(&self, name: &str, script: &str) -> PathBuf {
        let file = self.folder.path().join(name);
        fs::write(&file, format!("{script}\n")).unwrap();
        file
    }

    /// With a shell as the program. A script that was just written cannot be one: a process that another test starts at that time
    /// may still have it open (ETXTBSY).
    fn with(&self, script: &Path) -> Settings {
        self.with_words(&["sh", script.to_str().unwrap(), "an argument; $HOME"])
    }

    fn with_words(&self, words: &[&str]) -> Settings {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        self.settings.clone().set("postgres.password_command", Value::from(words))
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_password_command_is_run_for_each_connection() {
    let setup = Setup::new().await;
    let (token, calls) = (setup.folder.path().join("token"), setup.folder.path().join("calls"));
    let script = format!(
        "test \"$1\" = 'an argument; $HOME' || exit 9\n\
         test -z \"$NOTIFY_SOCKET$WATCHDOG_USEC$WATCHDOG_PID\" || exit 8\n\
         echo call >> {}\ncat {}",
        calls.display(),
        token.display()
    );
    let settings = setup.with(&setup.script("token-for-postgres", &script));
    fs::write(&token, "first\n").unwrap();
    // the program does not get what is meant for the router
    let of_systemd =
        [("NOTIFY_SOCKET", "/no/such/socket"), ("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")];
    let mut router = Router::with_variables(&settings, &of_systemd);
    router.ready().await;
    setup.outbox.insert("order", "a", "1").await;
    setup.outbox.all_confirmed().await;
    // the stream and the catalogue watch
    assert!(fs::read_to_string(&calls).unwrap().lines().count() >= 2);
    for arguments in [&["check"][..], &["slot", "list"]] {
        succeeded(settings.run_async(arguments).await, &[]);
    }

    // the token changes: sessions stay, and the next ones get the new one
    setup.server.execute(&["ALTER ROLE router PASSWORD 'second'"]).await;
    fs::write(&token, "second\n").unwrap();
    setup
        .server
        .execute(&["SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'router'"])
        .await;
    setup.outbox.insert("order", "a", "2").await;
    setup.outbox.all_confirmed().await;

    // while the program fails, the router says so, and goes on by itself
    fs::remove_file(&token).unwrap();
    setup
        .server
        .execute(&["SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'router'"])
        .await;
    router
        .shows("the reason names the program and its error", |status| {
            let reason = status["reason"].as_str()?;
            reason.contains("sh, which prints the password, failed (exit status: 1): cat: ").then_some(())
        })
        .await;
    fs::write(&token, "second\n").unwrap();
    router.ready().await;
    setup.outbox.insert("order", "a", "3").await;
    setup.outbox.all_confirmed().await;
    let ended = router.stop().await;
    assert!(!ended.log.contains("second"), "{}", ended.log);
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_password_command_that_cannot_be_used_is_named_without_its_output() {
    let setup = Setup::new().await;
    for (name, script, code, says) in [
        ("wrong", "echo wrong-secret", 1, "28P01"),
        ("nothing", "true", 1, "printed nothing"),
        ("chatty", "yes wrong-secret | head -c 100000", 1, "printed more than 64 KiB"),
    ] {
        let settings = setup.with(&setup.script(name, script));
        let ended = Router::start(&settings).exits(code).await;
        ended.says(&[says, "OBR-1002", "postgres.password_command"]);
        assert!(!ended.log.contains("wrong-secret"), "{}", ended.log);
        let check = settings.run_async(&["check"]).await;
        assert!(
            check.code == 1 && check.out.contains(says) && !check.out.contains("wrong-secret"),
            "{check:?}"
        );
    }
    let missing = setup.with_words(&["/no/such/program"]);
    Router::start(&missing).exits(1).await.says(&["/no/such/program", "No such file", "OBR-1002"]);

    // these may pass
    for (name, script, says) in [
        ("failing", "echo wrong-secret; echo no network >&2; exit 7", "failed (exit status: 7): no network"),
        ("hanging", "echo wrong-secret; exec sleep 1000", "was killed because it took longer than 1 s"),
    ] {
        let settings = setup.with(&setup.script(name, script)).set("postgres.wal_sender_timeout", "1s");
        let mut router = Router::start(&settings);
        router
            .shows("the reason names the program", |status| {
                let reason = status["reason"].as_str()?;
                (reason.contains("sh, which prints the password") && reason.contains(says)).then_some(())
            })
            .await;
        let (ready, text) = router.get_now("/readyz").await;
        assert!(ready == 503 && text.contains(says), "{text}");
        let ended = router.stop().await;
        assert!(!ended.log.contains("wrong-secret"), "{}", ended.log);
    }
}

/// A program that writes its process number to a file, and then hangs.
fn hanging(setup: &Setup) -> (Settings, PathBuf) {
    let pid = setup.folder.path().join("pid");
    let script =
        format!("trap '' INT TERM\nsleep 1000 &\necho $$ > {0}.new; mv {0}.new {0}; wait", pid.display());
    // Only a signal may end it. Without connect_timeout it is killed after ten seconds.
    let url = format!("{}?connect_timeout=600", setup.outbox.url().replace("postgres@", "router@"));
    (setup.with(&setup.script("hanging", &script)).set("postgres.url", url), pid)
}

/// Waits until the program runs, and returns its process number.
async fn started(file: &Path) -> u32 {
    let text = eventually("the program runs", async || fs::read_to_string(file).ok()).await;
    fs::remove_file(file).unwrap();
    text.trim().parse().unwrap()
}

/// Waits until the program has ended, with the `sleep` that it has started.
async fn is_gone(group: u32) {
    eventually("the program has ended", async || {
        let listed = process::output(Command::new("ps").args(["-eo", "pgid=,stat="]));
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut processes = listed.lines().filter_map(|line| line.trim().split_once(' '));
        let alive = |(of, state): (&str, &str)| of == group.to_string() && !state.trim().starts_with('Z');
        (!processes.any(alive)).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn a_signal_ends_the_password_command_too() {
    let setup = Setup::new().await;
    let (settings, pid) = hanging(&setup);
    // long enough that only the signal can end it
    let settings = settings.set("postgres.wal_sender_timeout", "10m");
    let router = Router::start(&settings);
    let program = started(&pid).await;
    router.signal(Signal::Terminate);
    router.exits(0).await;
    is_gone(program).await;

    let folder = tempfile::tempdir().unwrap();
    let file = settings.write_to(&folder);
    for (signal, number, arguments) in [
        (Signal::Interrupt, 2, &["slot", "list"][..]),
        (Signal::Terminate, 15, &["check"]),
        (Signal::HangUp, 1, &["status"]),
        (Signal::Interrupt, 2, &["init"]),
        (Signal::Terminate, 15, &["init"]),
    ] {
        // nohup, under which tests may run, makes all programs ignore SIGHUP
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(settings.program()).arg("-c").arg(&file);
        command.args(arguments).stdin(Stdio::null());
        let mut child = process::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let program = started(&pid).await;
        assert!(send(signal, child.id()));
        let status = eventually("the command ends", async || child.try_wait().unwrap()).await;
        assert_eq!(status.signal(), Some(number), "{arguments:?}: {status:?}");
        is_gone(program).await;
    }
}
