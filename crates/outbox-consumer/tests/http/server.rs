//! A server with the middleware, and its client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use outbox_consumer::idempotency::{IdempotencyLayer, Scope, Transaction};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, NoTls};

use crate::support::Database;

/// What the handler and its test share.
pub(crate) struct Shared {
    url: String,
    runs: AtomicU32,
    /// Handlers of `/held` end when this is true.
    released: watch::Sender<bool>,
    /// Refuses connections of the middleware.
    store_is_gone: AtomicBool,
    /// How many answers to a begin do not arrive.
    lost_answers: AtomicU32,
}

pub(crate) struct Server {
    pub(crate) database: Database,
    shared: Arc<Shared>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(url: &str) -> Result<Box<Client>, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(Box::new(client))
}

/// A connection that ends instead of passing on the outcome of a begin.
async fn connect_once(url: &str) -> Result<Box<Client>, tokio_postgres::Error> {
    let config: tokio_postgres::Config = url.parse()?;
    let Some(Host::Tcp(host)) = config.get_hosts().first() else { panic!("{url}") };
    let server = TcpStream::connect((host.as_str(), config.get_ports()[0])).await.unwrap();
    let (end, middle) = tokio::io::duplex(1 << 16);
    let ((mut requests, mut to_client), (mut answers, mut to_server)) =
        (tokio::io::split(middle), server.into_split());
    tokio::spawn(async move {
        let pass_answers = async {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(read @ 1..) = answers.read(&mut bytes).await {
                // as the value of a column
                if bytes[..read].windows(7).any(|seven| seven == b"\0\0\0\x03new") {
                    return;
                }
                to_client.write_all(&bytes[..read]).await.unwrap();
            }
        };
        tokio::select! {
            () = pass_answers => {}
            _ = tokio::io::copy(&mut requests, &mut to_server) => {}
        }
    });
    let (client, connection) = config.connect_raw(end, NoTls).await?;
    tokio::spawn(connection);
    Ok(Box::new(client))
}

impl Server {
    /// The sessions of the middleware have these `options` of a connection string.
    pub(crate) async fn start(options: &str, set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        let database = Database::new().await;
        let shared = Arc::new(Shared {
            url: database.url(),
            runs: AtomicU32::new(0),
            released: watch::Sender::new(false),
            store_is_gone: AtomicBool::new(false),
            lost_answers: AtomicU32::new(0),
        });
        let store = Arc::clone(&shared);
        let url = format!("{}?application_name=middleware{options}", database.url());
        let connect = move || {
            let gone = store.store_is_gone.load(Ordering::Relaxed);
            let url = if gone { "postgres://x@127.0.0.1:1/x".to_owned() } else { url.clone() };
            let one_less = |lost: u32| lost.checked_sub(1);
            let loses_answer =
                store.lost_answers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
            async move { if loses_answer { connect_once(&url).await } else { connect(&url).await } }
        };
        let scope = |request: &axum::http::request::Parts| {
            let caller = request.headers.get("user")?.to_str().ok()?;
            Some(Scope::new(caller, "POST /orders"))
        };
        let layer = set(IdempotencyLayer::new(connect, scope));
        let routes = Router::new()
            .route("/{what}", post(order).get(async || "read"))
            .layer(layer)
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Server { database, shared, address, task }
    }

    pub(crate) fn runs(&self) -> u32 {
        self.shared.runs.load(Ordering::Relaxed)
    }

    pub(crate) fn release(&self) {
        self.shared.released.send_replace(true);
    }

    pub(crate) fn take_store_away(&self, away: bool) {
        self.shared.store_is_gone.store(away, Ordering::Relaxed);
    }

    pub(crate) fn lose_answers(&self, count: u32) {
        self.shared.lost_answers.store(count, Ordering::Relaxed);
    }

    /// Waits until the handler has been called this often.
    pub(crate) async fn until_runs(&self, runs: u32) {
        self.until("the handler runs", || self.runs() >= runs).await;
    }

    /// Waits until a handler of `/held` has its answer to the INSERT.
    pub(crate) async fn until_held(&self) {
        self.until("the handler is held", || self.shared.released.receiver_count() > 0).await;
    }

    async fn until(&self, what: &str, reached: impl Fn() -> bool) {
        let start = Instant::now();
        while !reached() {
            assert!(start.elapsed() < Duration::from_secs(180), "{what}: {} runs", self.runs());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A connection on which this request was sent.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &[u8])],
        body: &str,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        )
        .into_bytes();
        for (name, value) in headers {
            head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        head.extend_from_slice(b"\r\n");
        head.extend_from_slice(body.as_bytes());
        stream.write_all(&head).await.unwrap();
        stream
    }

    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &[u8])],
        body: &str,
    ) -> Answer {
        let mut stream = self.send(method, path, headers, body).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        Answer::parse(&bytes)
    }

    /// A request of `alice` with a key.
    pub(crate) async fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        self.request(Method::POST, path, &alice(key.as_bytes()), body).await
    }
}

pub(crate) fn alice(key: &[u8]) -> [(&'static str, &[u8]); 2] {
    [("user", b"alice"), ("idempotency-key", key)]
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a response");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let pair = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_owned(), value.to_owned())
        };
        Answer { status, headers: lines.map(pair).collect(), body: bytes[end + 4..].to_vec() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The detail of a problem with this status, which says what to do.
    pub(crate) fn problem(&self, status: u16) -> String {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{body}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], status);
        assert!(problem["action"].as_str().is_some_and(|action| action.ends_with('.')), "{body}");
        problem["detail"].as_str().unwrap().to_owned()
    }

    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.header("retry-after")?.parse().ok()
    }
}

/// Has one effect, which is named by the body, in the request's transaction or in one of its own; and does what the path says.
async fn order(
    State(shared): State<Arc<Shared>>,
    Path(what): Path<String>,
    transaction: Option<Extension<Transaction>>,
    request: Request<axum::body::Body>,
) -> Response {
    shared.runs.fetch_add(1, Ordering::Relaxed);
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let body = String::from_utf8_lossy(&body);
    let insert = "INSERT INTO effects VALUES ($1)";
    match &transaction {
        Some(Extension(transaction)) => {
            let client = transaction.client().await.unwrap();
            // the session may be killed
            if client.execute(insert, &[&body]).await.is_err() {
                return status(500);
            }
            if what.starts_with("broken") {
                client.batch_execute("SELECT 1/0").await.unwrap_err();
            } else if what == "ended" {
                client.batch_execute("ROLLBACK").await.unwrap();
            } else if what == "ended-and-begun" {
                client.batch_execute("ROLLBACK; BEGIN").await.unwrap();
                client.execute(insert, &[&body]).await.unwrap();
            }
        }
        None => drop(connect(&shared.url).await.unwrap().execute(insert, &[&body]).await.unwrap()),
    }
    match what.as_str() {
        "held" => {
            shared.released.subscribe().wait_for(|released| *released).await.unwrap();
            status(201)
        }
        "panic" => panic!("the handler of a test"),
        "large" => vec![b'x'; (16 << 20) + 1].into_response(),
        "unprocessable" | "broken-422" => (StatusCode::UNPROCESSABLE_ENTITY, "no").into_response(),
        // at first
        "fails" if shared.runs.load(Ordering::Relaxed) == 1 => status(502),
        _ => {
            let headers = [
                ("location", "/orders/1"),
                ("content-type", "application/x-order"),
                ("x-trace", "1"),
                ("link", "<a>"),
            ];
            (StatusCode::CREATED, headers, b"\xff\0order".to_vec()).into_response()
        }
    }
}

fn status(code: u16) -> Response {
    StatusCode::from_u16(code).unwrap().into_response()
}
