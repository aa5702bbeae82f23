//! Measures `POST /orders` over HTTP, without and with an idempotency key. `scripts/bench-consumer` runs it.
//!
//! Server and clients are one process. A request inserts an order and its event in one transaction.
//!
//! usage: `post URL SECONDS CONNECTIONS with|without`; prints requests per second, and the 99th percentile in milliseconds.

// A measurement fails by panicking.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Router, body::Bytes};
use outbox_consumer::idempotency::{IdempotencyLayer, Scope, Transaction};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, GenericClient, NoTls};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, seconds, connections, key] = &arguments[..] else { panic!("see the comment of this program") };
    let connections: usize = connections.parse().unwrap();
    let pool = Pool::new(url, connections).await;
    let address = serve(pool, key == "with").await;

    let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let start = Instant::now();
    let clients: Vec<_> = (0..connections).map(|n| tokio::spawn(client(address, n, end))).collect();
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await.unwrap());
    }
    let elapsed = start.elapsed();
    times.sort_unstable();
    let late = times[times.len() * 99 / 100];
    println!("{:.0} {:.1}", times.len() as f64 / elapsed.as_secs_f64(), late.as_secs_f64() * 1000.0);
}

async fn serve(pool: Pool, key: bool) -> SocketAddr {
    let routes = Router::new().route("/orders", post(place)).with_state(pool.clone());
    let routes = if key {
        let connect = move || std::future::ready(Ok::<_, tokio_postgres::Error>(pool.take()));
        routes.layer(IdempotencyLayer::new(connect, |_| Some(Scope::new("alice", "POST /orders"))))
    } else {
        routes
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    address
}

async fn place(
    State(pool): State<Pool>,
    transaction: Option<Extension<Transaction>>,
    body: Bytes,
) -> StatusCode {
    if let Some(Extension(transaction)) = transaction {
        insert(&*transaction.client().await.unwrap(), &body).await;
    } else {
        let mut session = pool.take();
        let transaction = session.transaction().await.unwrap();
        insert(&transaction, &body).await;
        transaction.commit().await.unwrap();
    }
    StatusCode::CREATED
}

async fn insert(client: &impl GenericClient, body: &[u8]) {
    let order = "INSERT INTO orders (account) VALUES (1) RETURNING id";
    let order: i64 = client.query_typed_one(order, &[]).await.unwrap().get(0);
    let event = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '{order}', 'order.placed', '{}')",
        std::str::from_utf8(body).unwrap()
    );
    client.query_typed(&event, &[]).await.unwrap();
}

/// Sends requests one after the other, and returns how long each took.
async fn client(address: SocketAddr, number: usize, end: Instant) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let run = std::process::id();
    let mut times = Vec::new();
    let mut answer = [0; 4096];
    while Instant::now() < end {
        let start = Instant::now();
        let key = format!("{run}-{number}-{}", times.len());
        let request = format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\ncontent-length: 13\r\n\r\n{{\"total\": 99}}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        // an answer has no body, and comes in one piece
        let length = stream.read(&mut answer).await.unwrap();
        let answer = &answer[..length];
        assert!(
            answer.starts_with(b"HTTP/1.1 201") && answer.ends_with(b"\r\n\r\n"),
            "{}",
            answer.escape_ascii()
        );
        times.push(start.elapsed());
    }
    times
}

/// As many sessions as there are requests at once.
#[derive(Clone)]
struct Pool(Arc<Mutex<Vec<Client>>>);

impl Pool {
    async fn new(url: &str, size: usize) -> Self {
        let mut clients = Vec::new();
        for _ in 0..size {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            clients.push(client);
        }
        Pool(Arc::new(Mutex::new(clients)))
    }

    fn take(&self) -> Pooled {
        let client = self.0.lock().unwrap().pop().expect("a free session");
        Pooled { client: Some(client), pool: self.clone() }
    }
}

struct Pooled {
    client: Option<Client>,
    pool: Pool,
}

impl Deref for Pooled {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().unwrap()
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().unwrap()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.0.lock().unwrap().extend(self.client.take());
    }
}
