//! A network that a test can break: a TCP proxy between the router and one server.
//!
//! What is held stays in the proxy and its sockets, as packets would be sent again: when the network is back it goes on,
//! unless one side has given up meanwhile.

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

/// What becomes of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    /// They arrive this much later.
    Delayed(Duration),
    /// So many of each connection arrive in a second.
    Slow(u32),
    /// They do not arrive, and nobody is told.
    Held,
    /// They are taken, as by a hop that ends TCP, and lost behind it.
    Swallowed,
    /// They arrive, and that the other side has closed the connection does not.
    WithoutEnds,
}

/// Both directions of every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) to_server: Way,
    pub(crate) to_client: Way,
}

impl Network {
    pub(crate) const OPEN: Network = Network { to_server: Way::Open, to_client: Way::Open };
    /// A black hole: connections stay, and so does the listener, but nothing arrives.
    pub(crate) const BLACK_HOLE: Network = Network { to_server: Way::Held, to_client: Way::Held };
    /// Half of it is lost.
    pub(crate) const TO_SERVER_LOST: Network = Network { to_server: Way::Held, to_client: Way::Open };
    /// The other half is.
    pub(crate) const TO_CLIENT_LOST: Network = Network { to_server: Way::Open, to_client: Way::Held };

    /// A hop that ends TCP has lost the server and keeps its clients: what they send is acknowledged, and arrives nowhere.
    pub(crate) const SERVER_SIDE_LOST: Network = Network { to_server: Way::Swallowed, to_client: Way::Held };

    /// The server is not told that a client is gone.
    pub(crate) const CLIENTS_STAY: Network = Network { to_server: Way::WithoutEnds, to_client: Way::Open };

    pub(crate) fn delayed(each_way: Duration) -> Self {
        Network { to_server: Way::Delayed(each_way), to_client: Way::Delayed(each_way) }
    }
}

/// Which bytes are counted for a cut.
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
    /// The network becomes a black hole.
    Hole,
}

/// The first connection that lets more than so many bytes through is cut behind them.
#[derive(Debug, Clone, Copy)]
struct Armed {
    direction: Direction,
    after: usize,
    how: Cut,
    /// Connections count from the arming on.
    number: u64,
}

/// A proxy on a thread of its own, so that a test that waits for a program does not hold it up. It ends with the test.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Keeps the port while nobody listens.
    _held: Socket,
    runtime: Option<tokio::runtime::Runtime>,
    accepting: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

struct Shared {
    target: Mutex<String>,
    network: watch::Sender<Network>,
    armed: watch::Sender<Option<Armed>>,
    arms: AtomicU64,
    cuts: AtomicU64,
    /// Ends every connection.
    end: watch::Sender<u64>,
}

impl Proxy {
    /// One that leads to `target`, host and port.
    pub(crate) fn to(target: &str) -> Self {
        Self::at([127, 0, 0, 1], target)
    }

    /// The same at another address of this machine.
    pub(crate) fn at(ip: [u8; 4], target: &str) -> Self {
        let held = socket();
        held.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
        let address = held.local_addr().unwrap().as_socket().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target.to_owned()),
            network: watch::channel(Network::OPEN).0,
            armed: watch::channel(None).0,
            arms: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            end: watch::channel(0).0,
        });
        let proxy =
            Proxy { address, shared, _held: held, runtime: Some(runtime), accepting: Mutex::default() };
        proxy.listen();
        proxy
    }

    /// Host and port to connect to.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Where new connections lead from now on.
    pub(crate) fn lead_to(&self, target: &str) {
        *self.shared.target.lock().unwrap() = target.to_owned();
    }

    /// How bytes travel from now on.
    pub(crate) fn set(&self, network: Network) {
        self.shared.network.send_replace(network);
    }

    /// Cuts the first connection that lets more than `after` bytes through from now on, in the middle of what comes then.
    pub(crate) fn cut_after(&self, direction: Direction, after: usize, how: Cut) {
        let number = self.shared.arms.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.armed.send_replace(Some(Armed { direction, after, how, number }));
    }

    /// How many connections were cut so.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }

    /// Ends all connections, and refuses new ones.
    pub(crate) fn refuse(&self) {
        if let Some(accepting) = self.accepting.lock().unwrap().take() {
            process::while_nothing_starts(|| {
                accepting.abort();
                // its end closes the listening socket
                while !accepting.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        self.shared.end.send_modify(|ended| *ended += 1);
    }

    /// Takes connections, at first and after [`Proxy::refuse`].
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
            // the test's own runtime may be this thread's
            runtime.shutdown_background();
        }
    }
}

fn socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // one that listens may share the port with one that only holds it
    socket.set_reuse_address(true).unwrap();
    socket
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    let mut end = shared.end.subscribe();
    let mut network = shared.network.subscribe();
    // a black hole does not reach the server either
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
    let passing = |direction| Passing {
        direction,
        shared: Arc::clone(&shared),
        network: shared.network.subscribe(),
        passed: 0,
        counted_for: 0,
        cut: cut.clone(),
    };
    let mut both = JoinSet::new();
    both.spawn(passing(Direction::ToServer).pass(client_read, server_write));
    both.spawn(passing(Direction::ToClient).pass(server_read, client_write));
    drop(cut);
    let cut = tokio::select! {
        _ = end.changed() => Some(Cut::Rst),
        cut = cuts.recv() => cut,
    };
    for socket in &sockets {
        match cut {
            Some(Cut::Rst) => drop(socket.set_linger(Some(Duration::ZERO))),
            // closed with bytes that nobody read, it would be reset
            Some(Cut::Fin | Cut::Hole) | None => drop(socket.shutdown(Shutdown::Write)),
        }
    }
    both.shutdown().await;
}

/// One direction of one connection.
struct Passing {
    direction: Direction,
    shared: Arc<Shared>,
    network: watch::Receiver<Network>,
    /// Bytes since the last arming.
    passed: usize,
    counted_for: u64,
    cut: mpsc::Sender<Cut>,
}

impl Passing {
    fn way(&self, network: &Network) -> Way {
        match self.direction {
            Direction::ToServer => network.to_server,
            Direction::ToClient => network.to_client,
        }
    }

    /// Comes back when this direction is not held.
    async fn open(&self) {
        let mut network = self.network.clone();
        // the sender lives as long as the connection
        let _ = network.wait_for(|network| self.way(network) != Way::Held).await;
    }

    /// Comes back when the end of this direction may be passed on.
    async fn may_end(&self) {
        let mut network = self.network.clone();
        let _ = network.wait_for(|network| self.way(network) != Way::WithoutEnds).await;
    }

    async fn pass(mut self, mut from: ReadHalf<TcpStream>, mut to: WriteHalf<TcpStream>) {
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
                // what was read before the network was lost is lost with it
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
                    // what one side resets is reset for the other
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

    /// False: the connection was cut, or is gone.
    async fn write(&mut self, to: &mut WriteHalf<TcpStream>, bytes: &[u8]) -> bool {
        let armed = *self.shared.armed.borrow();
        if let Some(armed) = armed.filter(|armed| armed.direction == self.direction) {
            if self.counted_for != armed.number {
                (self.counted_for, self.passed) = (armed.number, 0);
            }
            if self.passed + bytes.len() > armed.after {
                // one connection only
                let first = self.shared.armed.send_if_modified(|now| now.take().is_some());
                if first {
                    to.write_all(&bytes[..armed.after - self.passed]).await.ok();
                    self.shared.cuts.fetch_add(1, Ordering::Relaxed);
                    if armed.how == Cut::Hole {
                        self.shared.network.send_replace(Network::BLACK_HOLE);
                        // what follows arrives when the network is back
                        self.open().await;
                        return to.write_all(&bytes[armed.after - self.passed..]).await.is_ok();
                    }
                    let _ = self.cut.send(armed.how).await;
                    return false;
                }
            }
            self.passed += bytes.len();
        }
        to.write_all(bytes).await.is_ok()
    }
}
