//! A TCP proxy between the router and one server, as a network that a test can break.
//!
//! The proxy keeps the bytes that it holds back. They arrive when the network is restored, as retransmitted packets would, unless
//! one side has given up meanwhile.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::process;

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    /// They arrive this much later.
    Delayed(Duration),
    /// Of each connection, this many arrive per second.
    Slow(u32),
    /// They do not arrive, and neither side gets an error.
    Held,
    /// They are acknowledged, as by a hop that terminates TCP, but lost behind it.
    Swallowed,
    /// They arrive, but the end of the connection does not.
    WithoutEnds,
}

/// What happens to both directions of every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) to_server: Way,
    pub(crate) to_client: Way,
}

impl Network {
    pub(crate) const OPEN: Network = Network { to_server: Way::Open, to_client: Way::Open };
    /// Connections stay open and new ones are accepted, but nothing arrives.
    pub(crate) const BLACK_HOLE: Network = Network { to_server: Way::Held, to_client: Way::Held };
    /// Nothing arrives at the server.
    pub(crate) const TO_SERVER_LOST: Network = Network { to_server: Way::Held, to_client: Way::Open };
    /// Nothing arrives at the client.
    pub(crate) const TO_CLIENT_LOST: Network = Network { to_server: Way::Open, to_client: Way::Held };

    /// A hop that terminates TCP has lost the server but keeps its clients. It acknowledges what they send, which arrives
    /// nowhere.
    pub(crate) const SERVER_SIDE_LOST: Network = Network { to_server: Way::Swallowed, to_client: Way::Held };

    /// The server does not notice that a client has closed its connection.
    pub(crate) const CLIENTS_STAY: Network = Network { to_server: Way::WithoutEnds, to_client: Way::Open };

    pub(crate) fn delayed(each_way: Duration) -> Self {
        Network { to_server: Way::Delayed(each_way), to_client: Way::Delayed(each_way) }
    }
}

/// The direction whose bytes count for a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// As if the peer had closed it.
    Fin,
    /// As if the peer had crashed, or a firewall had forgotten it.
    Rst,
    /// The network becomes [`Network::BLACK_HOLE`].
    Hole,
}

/// A pending cut of the first connection that forwards more than `after` bytes.
#[derive(Debug, Clone, Copy)]
struct PendingCut {
    direction: Direction,
    after: usize,
    how: Cut,
    /// Number of this cut. Connections restart their count of bytes with each new one.
    number: u64,
}

/// A proxy. It runs on a thread of its own, so that a test that waits for a program does not block it. Ends on drop.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Reserves the port while the proxy does not listen.
    _reserved: Socket,
    runtime: Option<tokio::runtime::Runtime>,
    accepting: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

struct Shared {
    target: Mutex<String>,
    network: watch::Sender<Network>,
    pending_cut: watch::Sender<Option<PendingCut>>,
    requested_cuts: AtomicU64,
    cuts: AtomicU64,
    /// A change ends every connection.
    end: watch::Sender<u64>,
}

impl Proxy {
    /// A proxy that forwards to `target`, which is host and port.
    pub(crate) fn to(target: &str) -> Self {
        Self::at([127, 0, 0, 1], target)
    }

    /// The same, listening at this address.
    pub(crate) fn at(ip: [u8; 4], target: &str) -> Self {
        let reserved = socket();
        reserved.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
        let address = reserved.local_addr().unwrap().as_socket().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target.to_owned()),
            network: watch::channel(Network::OPEN).0,
            pending_cut: watch::channel(None).0,
            requested_cuts: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            end: watch::channel(0).0,
        });
        let proxy = Proxy {
            address,
            shared,
            _reserved: reserved,
            runtime: Some(runtime),
            accepting: Mutex::default(),
        };
        proxy.listen();
        proxy
    }

    /// The host and port that clients connect to.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Forwards new connections to `target` from now on.
    pub(crate) fn forward_to(&self, target: &str) {
        *self.shared.target.lock().unwrap() = target.to_owned();
    }

    /// Changes the network, for existing connections too.
    pub(crate) fn set(&self, network: Network) {
        self.shared.network.send_replace(network);
    }

    /// Cuts the first connection that forwards more than `after` bytes from now on, exactly after these bytes.
    pub(crate) fn cut_after(&self, direction: Direction, after: usize, how: Cut) {
        let number = self.shared.requested_cuts.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.pending_cut.send_replace(Some(PendingCut { direction, after, how, number }));
    }

    /// The number of connections that [`Proxy::cut_after`] has cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }

    /// Resets all connections, and refuses new ones.
    pub(crate) fn refuse(&self) {
        if let Some(accepting) = self.accepting.lock().unwrap().take() {
            process::while_nothing_starts(|| {
                accepting.abort();
                // the end of the task closes the listening socket
                while !accepting.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        self.shared.end.send_modify(|ended| *ended += 1);
    }

    /// Accepts connections again after [`Proxy::refuse`].
    pub(crate) fn listen(&self) {
        let socket = socket();
        socket.bind(&self.address.into()).unwrap();
        socket.listen(128).unwrap();
        socket.set_nonblocking(true).unwrap();
        let runtime = self.runtime.as_ref().unwrap();
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(socket.into()).unwrap()
        };
        let shared = Arc::clone(&self.shared);
        let accepting = runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connection(client, Arc::clone(&shared)));
            }
        });
        *self.accepting.lock().unwrap() = Some(accepting);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // this thread may belong to the test's runtime, so it must not block
            runtime.shutdown_background();
        }
    }
}

fn socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // a listening socket may share the port with one that only reserves it
    socket.set_reuse_address(true).unwrap();
    socket
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    let mut end = shared.end.subscribe();
    let mut network = shared.network.subscribe();
    // new connections do not reach the server through a black hole
    if network.wait_for(|network| network.to_server != Way::Held).await.is_err() {
        return;
    }
    let target = shared.target.lock().unwrap().clone();
    let Ok(server) = TcpStream::connect(target).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
    }
    let sockets = [&client, &server].map(|stream| SockRef::from(stream).try_clone().unwrap());
    let (cut, mut cuts) = mpsc::channel(1);
    let (client_read, client_write) = tokio::io::split(client);
    let (server_read, server_write) = tokio::io::split(server);
    let forwarder = |direction| Forwarder {
        direction,
        shared: Arc::clone(&shared),
        network: shared.network.subscribe(),
        forwarded: 0,
        cut_number: 0,
        cut: cut.clone(),
    };
    let mut both = JoinSet::new();
    both.spawn(forwarder(Direction::ToServer).run(client_read, server_write));
    both.spawn(forwarder(Direction::ToClient).run(server_read, client_write));
    drop(cut);
    let cut = tokio::select! {
        _ = end.changed() => Some(Cut::Rst),
        cut = cuts.recv() => cut,
    };
    for socket in &sockets {
        match cut {
            Some(Cut::Rst) => drop(socket.set_linger(Some(Duration::ZERO))),
            // to close a socket that has unread bytes would reset the connection
            Some(Cut::Fin | Cut::Hole) | None => drop(socket.shutdown(Shutdown::Write)),
        }
    }
    both.shutdown().await;
}

/// Forwards one direction of one connection.
struct Forwarder {
    direction: Direction,
    shared: Arc<Shared>,
    network: watch::Receiver<Network>,
    /// Bytes since the pending cut was requested.
    forwarded: usize,
    /// Number of the cut for which `forwarded` counts.
    cut_number: u64,
    cut: mpsc::Sender<Cut>,
}

impl Forwarder {
    fn way(&self, network: &Network) -> Way {
        match self.direction {
            Direction::ToServer => network.to_server,
            Direction::ToClient => network.to_client,
        }
    }

    /// Returns when this direction is not held.
    async fn open(&self) {
        let mut network = self.network.clone();
        // cannot fail: the sender lives as long as the connection
        let _ = network.wait_for(|network| self.way(network) != Way::Held).await;
    }

    /// Returns when the end of this direction may be forwarded.
    async fn may_end(&self) {
        let mut network = self.network.clone();
        let _ = network.wait_for(|network| self.way(network) != Way::WithoutEnds).await;
    }

    async fn run(mut self, mut from: ReadHalf<TcpStream>, mut to: WriteHalf<TcpStream>) {
        let mut late: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
        let mut ended = false;
        loop {
            self.open().await;
            if ended && late.is_empty() {
                break;
            }
            let mut buffer = vec![0; 16 << 10];
            let due = late.front().map(|(at, _)| *at);
            let read = tokio::select! {
                biased;
                // a change of the network applies before anything else is forwarded
                _ = self.network.changed() => continue,
                () = async { sleep_until(due.unwrap()).await }, if due.is_some() => {
                    let (_, bytes) = late.pop_front().unwrap();
                    if !self.write(&mut to, &bytes).await {
                        return;
                    }
                    continue;
                }
                read = from.read(&mut buffer), if !ended => read,
            };
            match read {
                Ok(0) => ended = true,
                Err(_) => {
                    self.may_end().await;
                    // a reset by one side resets the other side too
                    let _ = self.cut.send(Cut::Rst).await;
                    return;
                }
                Ok(read) => {
                    buffer.truncate(read);
                    let now = *self.network.borrow();
                    let delay = match self.way(&now) {
                        Way::Delayed(delay) => delay,
                        Way::Open | Way::WithoutEnds | Way::Slow(_) | Way::Held => Duration::ZERO,
                        Way::Swallowed => continue,
                    };
                    let held = matches!(self.way(&now), Way::Held);
                    if delay.is_zero() && late.is_empty() && !held {
                        if !self.write(&mut to, &buffer).await {
                            return;
                        }
                        if let Way::Slow(rate) = self.way(&now) {
                            let pause = Duration::from_secs_f64(buffer.len() as f64 / f64::from(rate));
                            let mut network = self.network.clone();
                            let changes = network.wait_for(|changed| *changed != now);
                            drop(tokio::time::timeout(pause, changes).await);
                        }
                    } else {
                        late.push_back((Instant::now() + delay, buffer));
                    }
                }
            }
        }
        self.may_end().await;
        to.shutdown().await.ok();
    }

    /// Returns false if the connection was cut or is closed.
    async fn write(&mut self, to: &mut WriteHalf<TcpStream>, bytes: &[u8]) -> bool {
        let pending = *self.shared.pending_cut.borrow();
        if let Some(cut) = pending.filter(|cut| cut.direction == self.direction) {
            if self.cut_number != cut.number {
                (self.cut_number, self.forwarded) = (cut.number, 0);
            }
            if self.forwarded + bytes.len() > cut.after {
                // another connection may have been cut first
                let first = self.shared.pending_cut.send_if_modified(|now| now.take().is_some());
                if first {
                    to.write_all(&bytes[..cut.after - self.forwarded]).await.ok();
                    self.shared.cuts.fetch_add(1, Ordering::Relaxed);
                    if cut.how == Cut::Hole {
                        self.shared.network.send_replace(Network::BLACK_HOLE);
                        // the rest arrives when the network is restored
                        self.open().await;
                        return to.write_all(&bytes[cut.after - self.forwarded..]).await.is_ok();
                    }
                    let _ = self.cut.send(cut.how).await;
                    return false;
                }
            }
            self.forwarded += bytes.len();
        }
        to.write_all(bytes).await.is_ok()
    }
}
