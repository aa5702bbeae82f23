//! The order of connection attempts, with scripted servers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_router::error::Error;
use pg_logical::connect::Startup;
use pg_logical::conninfo::{ConnInfo, Host, HostAddr, SslMode, TargetSessionAttrs};
use pg_logical::session::Session;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::postgres::conninfo;

/// The replies of a scripted server.
#[derive(Clone)]
struct Script {
    /// To a request for TLS.
    tls: Vec<u8>,
    /// To a startup message.
    startup: Vec<u8>,
    /// The single value in the reply to every query.
    value: &'static str,
}

/// A server that follows a script and records the requests that open a connection.
struct Scripted {
    port: u16,
    seen: Arc<Mutex<Vec<&'static str>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripted {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, seen) = (script.clone(), Arc::clone(&recorded));
                // a client may hang up at any time
                tokio::spawn(async move { serve(stream, script, &seen).await.ok() });
            }
        });
        Scripted { port, seen, task }
    }

    /// Accepts everybody, and reports these parameters.
    async fn open(parameters: &[(&str, &str)], value: &'static str) -> Self {
        let mut startup = message(b'R', &0_u32.to_be_bytes());
        for (name, value) in parameters {
            startup.extend(message(b'S', format!("{name}\0{value}\0").as_bytes()));
        }
        startup.extend(message(b'K', &[0; 8]));
        startup.extend(message(b'Z', b"I"));
        Self::start(Script { tls: b"N".to_vec(), startup, value }).await
    }

    /// Refuses everybody.
    async fn refusing(code: &str, text: &str) -> Self {
        Self::replying(&refusal(code, text)).await
    }

    /// Replies with this to a startup message, then with nothing more.
    async fn replying(startup: &[u8]) -> Self {
        Self::start(Script { tls: b"N".to_vec(), startup: startup.to_vec(), value: "" }).await
    }

    fn host(&self) -> Host {
        let addr = HostAddr::Tcp { name: "127.0.0.1".into(), hostaddr: None };
        Host { addr, port: self.port }
    }

    fn seen(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    script: Script,
    seen: &Mutex<Vec<&'static str>>,
) -> std::io::Result<()> {
    const SSL_REQUEST: i32 = 80_877_103;
    loop {
        let length = stream.read_i32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        stream.read_exact(&mut body).await?;
        if body == SSL_REQUEST.to_be_bytes() {
            seen.lock().unwrap().push("TLS");
            stream.write_all(&script.tls).await?;
            if script.tls != b"N" {
                break;
            }
        } else {
            seen.lock().unwrap().push("startup");
            stream.write_all(&script.startup).await?;
            break;
        }
    }
    while let Ok(tag) = stream.read_u8().await {
        let length = stream.read_i32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        stream.read_exact(&mut body).await?;
        if tag == b'Q' {
            let value = script.value.as_bytes();
            let row = [&1_u16.to_be_bytes()[..], &u32::try_from(value.len()).unwrap().to_be_bytes(), value]
                .concat();
            let answer = [message(b'D', &row), message(b'C', b"SHOW\0"), message(b'Z', b"I")].concat();
            stream.write_all(&answer).await?;
        }
    }
    Ok(())
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

fn refusal(code: &str, text: &str) -> Vec<u8> {
    message(b'E', format!("SFATAL\0VFATAL\0C{code}\0M{text}\0\0").as_bytes())
}

/// Connects, and returns the port of the chosen server.
async fn choose(conninfo: &ConnInfo) -> Result<u16, Error> {
    let session = Session::connect(conninfo, &Startup::default()).await?;
    Ok(session.info().place.rsplit(':').next().unwrap().parse().unwrap())
}

fn among<'a>(servers: impl IntoIterator<Item = &'a Scripted>) -> ConnInfo {
    conninfo(servers.into_iter().map(Scripted::host), "router")
}

fn wanting(target_session_attrs: TargetSessionAttrs, servers: [&Scripted; 2]) -> ConnInfo {
    ConnInfo { target_session_attrs, ..among(servers) }
}

#[tokio::test]
async fn a_server_that_starts_up_or_is_full_or_silent_is_skipped() {
    let good = Scripted::open(&[], "").await;
    for failing in [
        Scripted::refusing("57P03", "the database system is starting up").await,
        Scripted::refusing("53300", "sorry, too many clients already").await,
        Scripted::refusing("57P01", "terminating connection").await,
        Scripted::replying(&[]).await,
    ] {
        // the last one never replies
        let conninfo =
            ConnInfo { connect_timeout: Some(Duration::from_millis(300)), ..among([&failing, &good]) };
        assert_eq!(choose(&conninfo).await.unwrap(), good.port);
        assert_eq!(failing.seen(), ["startup"]);
    }
}

#[tokio::test]
async fn the_error_has_all_reasons_and_is_transient_when_all_hosts_fail() {
    let starting = Scripted::refusing("57P03", "the database system is starting up").await;
    let full = Scripted::refusing("53300", "sorry, too many clients already").await;
    let Err(Error::Transient(error)) = choose(&among([&starting, &full])).await else { panic!("definite") };
    for part in [
        format!("127.0.0.1:{}: the database system is starting up (SQLSTATE 57P03)", starting.port),
        format!("127.0.0.1:{}: sorry, too many clients already (SQLSTATE 53300)", full.port),
    ] {
        assert!(error.what.contains(&part), "{error}");
    }
}

#[tokio::test]
async fn a_definite_answer_ends_the_search() {
    let good = Scripted::open(&[], "").await;
    for (code, text) in [
        ("28P01", "password authentication failed"),
        ("28000", "no pg_hba.conf entry"),
        ("3D000", "database does not exist"),
    ] {
        let refusing = Scripted::refusing(code, text).await;
        let Err(Error::Definite(error)) = choose(&among([&refusing, &good])).await else { panic!("{code}") };
        assert!(error.what.contains(text), "{error}");
    }
    assert!(good.seen().is_empty());
}

#[tokio::test]
async fn a_pooler_is_refused_with_the_reason() {
    let pooler = Scripted::refusing("08P01", "unsupported startup parameter: replication").await;
    let Err(Error::Definite(error)) = choose(&among([&pooler])).await else { panic!("not definite") };
    assert!(error.remedy.to_string().contains("PgBouncer"), "{error}");
}

#[tokio::test]
async fn a_server_other_than_postgres_is_refused_with_the_reason() {
    let http = Script {
        tls: b"HTTP/1.1 400".to_vec(),
        startup: b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
        value: "",
    };
    let http = Scripted::start(http).await;
    for mode in [SslMode::Disable, SslMode::Prefer, SslMode::Require] {
        let conninfo = ConnInfo { ssl_mode: mode, ..among([&http]) };
        let Err(Error::Definite(error)) = choose(&conninfo).await else { panic!("{mode:?}") };
        assert!(error.remedy.to_string().contains("is that a Postgres server?"), "{error}");
    }
}

#[tokio::test]
async fn the_first_server_of_the_wanted_kind_is_chosen() {
    use TargetSessionAttrs as Attrs;
    let attributes =
        |standby, read_only| [("in_hot_standby", standby), ("default_transaction_read_only", read_only)];
    let standby = Scripted::open(&attributes("on", "off"), "").await;
    let primary = Scripted::open(&attributes("off", "off"), "").await;
    let read_only = Scripted::open(&attributes("off", "on"), "").await;
    for (wanted, servers, chosen) in [
        (Attrs::Any, [&standby, &primary], &standby),
        (Attrs::Primary, [&standby, &primary], &primary),
        (Attrs::ReadWrite, [&standby, &primary], &primary),
        (Attrs::ReadWrite, [&read_only, &primary], &primary),
        (Attrs::Primary, [&read_only, &primary], &read_only),
        (Attrs::ReadOnly, [&primary, &standby], &standby),
        (Attrs::ReadOnly, [&primary, &read_only], &read_only),
        (Attrs::Standby, [&primary, &standby], &standby),
        (Attrs::PreferStandby, [&primary, &standby], &standby),
        (Attrs::PreferStandby, [&primary, &read_only], &primary),
    ] {
        assert_eq!(choose(&wanting(wanted, servers)).await.unwrap(), chosen.port, "{wanted:?}");
    }
}

#[tokio::test]
async fn a_server_that_reports_no_parameters_is_queried() {
    use TargetSessionAttrs as Attrs;
    let (standby, primary) = (Scripted::open(&[], "t").await, Scripted::open(&[], "f").await);
    assert_eq!(choose(&wanting(Attrs::Primary, [&standby, &primary])).await.unwrap(), primary.port);
    let (read_only, writable) = (Scripted::open(&[], "on").await, Scripted::open(&[], "off").await);
    assert_eq!(choose(&wanting(Attrs::ReadWrite, [&read_only, &writable])).await.unwrap(), writable.port);
}

#[tokio::test]
async fn prefer_continues_without_tls_on_the_same_connection() {
    let server = Scripted::open(&[], "").await;
    let conninfo = ConnInfo { ssl_mode: SslMode::Prefer, ..among([&server]) };
    assert_eq!(choose(&conninfo).await.unwrap(), server.port);
    assert_eq!(server.seen(), ["TLS", "startup"]);
}

#[tokio::test]
async fn an_error_in_reply_to_the_tls_request_is_ignored() {
    let script =
        Script { tls: refusal("28P01", "give up"), startup: refusal("57P03", "starting up"), value: "" };
    let server = Scripted::start(script).await;
    let good = Scripted::open(&[], "").await;
    let with = |ssl_mode| ConnInfo { ssl_mode, ..among([&server, &good]) };

    assert_eq!(choose(&with(SslMode::Prefer)).await.unwrap(), good.port);
    assert_eq!(server.seen(), ["TLS", "startup"], "prefer tries without TLS");

    // the error is that of the second server, which has no TLS, so the first one's injected error did not end the search
    let error = choose(&with(SslMode::Require)).await.unwrap_err().to_string();
    assert!(!error.contains("give up"), "{error}");
    assert_eq!(good.seen(), ["TLS", "startup", "TLS"]);
}

#[tokio::test]
async fn bytes_injected_after_the_reply_to_the_tls_request_are_ignored() {
    let injected = [&b"S"[..], &refusal("28P01", "give up")].concat();
    let server = Scripted::start(Script { tls: injected, startup: Vec::new(), value: "" }).await;
    let conninfo = ConnInfo { ssl_mode: SslMode::Require, ..among([&server]) };
    let error = choose(&conninfo).await.unwrap_err().to_string();
    assert!(!error.contains("give up"), "{error}");
}

#[tokio::test]
async fn a_message_of_absurd_length_is_refused_before_it_is_buffered() {
    let server = Scripted::replying(b"R\x7f\xff\xff\xff").await;
    assert!(matches!(choose(&among([&server])).await, Err(Error::Definite(_))));
}
