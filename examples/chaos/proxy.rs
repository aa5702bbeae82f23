//! A TCP proxy between the router and a server, which injects network faults.
//!
//! While nothing passes, data waits in buffers as in a real network, and is delivered afterwards. A cut resets the connections
//! after half of the next message. Routers that share a proxy are distinguished by the ports of their sockets.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How long a cut waits for a message on an idle connection.
const IDLE: Duration = Duration::from_millis(200);

/// What the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    Clear,
    /// Nothing passes in either direction, and no connection is closed.
    Hole,
    /// Everything is delayed by this much.
    Slow(Duration),
    /// Connections are reset, and so are new ones.
    Away,
}

#[derive(Debug, Clone)]
struct Conditions {
    weather: Weather,
    /// Increased by each cut, which ends all present connections in the middle of their next message.
    cuts: u64,
    /// The ports of clients for which nothing passes.
    held: HashSet<u16>,
    /// The ports of clients whose connections were closed on the server's side only.
    severed: HashSet<u16>,
}

impl Conditions {
    fn hole_for(&self, client: u16) -> bool {
        self.weather == Weather::Hole || self.held.contains(&client)
    }
}

/// The proxy in front of one server. Dropping it closes the listener.
pub(crate) struct Proxy {
    address: SocketAddr,
    conditions: Arc<watch::Sender<Conditions>>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on `port`, 0 for any, and forwards connections to `target`.
    pub(crate) async fn start(port: u16, target: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .with_context(|| format!("listen on port {port}"))?;
        let address = listener.local_addr()?;
        let (held, severed) = (HashSet::new(), HashSet::new());
        let conditions = Conditions { weather: Weather::Clear, cuts: 0, held, severed };
        let conditions = Arc::new(watch::Sender::new(conditions));
        let for_connections = Arc::clone(&conditions);
        let task = tokio::spawn(async move {
            loop {
                // to the router it is just another failed connection
                let Ok((client, from)) = listener.accept().await else { continue };
                // the port may have been used by an earlier connection
                for_connections.send_modify(|now| {
                    now.held.remove(&from.port());
                    now.severed.remove(&from.port());
                });
                let receiver = for_connections.subscribe();
                tokio::spawn(connection(client, from.port(), target.clone(), receiver));
            }
        });
        Ok(Proxy { address, conditions, task })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.conditions.send_modify(|conditions| conditions.weather = weather);
    }

    /// Resets every connection in the middle of its next message.
    pub(crate) fn cut(&self) {
        self.conditions.send_modify(|conditions| conditions.cuts += 1);
    }

    /// Lets nothing pass on the connections from these ports. An empty set lets everything pass again.
    pub(crate) fn hold(&self, clients: HashSet<u16>) {
        self.conditions.send_modify(|conditions| conditions.held = clients);
    }

    /// Closes the server's side of the connections from these ports. The client's side stays open until the client closes it, and
    /// what the client writes is discarded, as behind a proxy that terminates TCP.
    pub(crate) fn sever(&self, clients: HashSet<u16>) {
        self.conditions.send_modify(|conditions| conditions.severed.extend(clients));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forwards one connection until both directions have ended, or it is cut.
async fn connection(
    mut client: TcpStream,
    port: u16,
    target: String,
    mut conditions: watch::Receiver<Conditions>,
) {
    let (weather, cuts) = {
        let now = conditions.borrow();
        (now.weather, now.cuts)
    };
    if weather == Weather::Away {
        let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
        return;
    }
    // in a black hole the connection is not even opened
    if conditions.wait_for(|now| now.weather != Weather::Hole).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
        // dropping a socket resets it; an orderly end is sent with `shutdown`
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }
    let severed = {
        let (mut weather, mut severed) = (conditions.clone(), conditions.clone());
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let there = pump(from_client, to_server, conditions.clone(), cuts, port);
        let back = pump(from_server, to_client, conditions, cuts, port);
        tokio::pin!(there, back);
        let both = async {
            // after an orderly end of one direction wait for the other; after an error end both
            tokio::select! {
                end = &mut there => if let End::Closed = end { (&mut back).await; },
                end = &mut back => if let End::Closed = end { (&mut there).await; },
            }
        };
        tokio::select! {
            () = both => false,
            Ok(_) = weather.wait_for(|now| now.weather == Weather::Away) => false,
            Ok(_) = severed.wait_for(|now| now.severed.contains(&port)) => true,
        }
    };
    if severed {
        drop(server);
        let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
    }
}

enum End {
    Closed,
    Cut,
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut conditions: watch::Receiver<Conditions>,
    cuts: u64,
    client: u16,
) -> End {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let mut cut = conditions.clone();
        let length = tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(length) => length,
                Err(_) => return End::Cut,
            },
            Ok(()) = async { cut.wait_for(|now| now.cuts > cuts).await.map(|_| ()) } => {
                // an idle connection is reset without a message
                sleep(IDLE).await;
                match from.try_read(&mut buffer) {
                    Ok(length) => length,
                    Err(_) => return End::Cut,
                }
            }
        };
        let passes = conditions.wait_for(|now| !now.hole_for(client)).await;
        let Ok((weather, all_cuts)) = passes.map(|now| (now.weather, now.cuts)) else { return End::Cut };
        if let Weather::Slow(by) = weather {
            sleep(by).await;
        }
        let cut = all_cuts > cuts;
        let passed = if cut { length / 2 } else { length };
        if to.write_all(buffer.get(..passed).unwrap_or_default()).await.is_err() || cut {
            return End::Cut;
        }
        if length == 0 {
            let _ = to.shutdown().await;
            return End::Closed;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// Starts a server that echoes what it receives.
    async fn echo() -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        Ok(address)
    }

    async fn through() -> (Proxy, TcpStream) {
        let target = echo().await.unwrap();
        let proxy = Proxy::start(0, target.to_string()).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ping(&mut stream).await.unwrap();
        (proxy, stream)
    }

    async fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"ping");
        Ok(())
    }

    /// This is what happens when the server's process is killed before it has read everything.
    #[tokio::test]
    async fn reset_by_server_reaches_client() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let target = listener.local_addr().unwrap();
        let proxy = Proxy::start(0, target.to_string()).await.unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(b"ping").await.unwrap();
        server.read_exact(&mut [0; 4]).await.unwrap();
        SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        let end = timeout(Duration::from_secs(60), client.read(&mut [0; 1])).await;
        assert!(!matches!(end, Err(_) | Ok(Ok(1))), "{end:?}");
    }

    #[tokio::test]
    async fn hole_delivers_held_data_afterwards() {
        let (proxy, mut stream) = through().await;
        proxy.set(Weather::Hole);
        stream.write_all(b"held").await.unwrap();
        let mut answer = [0; 4];
        let nothing = timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
        assert!(nothing.is_err());
        proxy.set(Weather::Clear);
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"held");
    }

    #[tokio::test]
    async fn cut_resets_mid_message_and_new_connections_work() {
        let (proxy, mut stream) = through().await;
        proxy.cut();
        stream.write_all(b"12345678").await.unwrap();
        let mut answer = Vec::new();
        let error = stream.read_to_end(&mut answer).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(answer.len() < 8, "{answer:?}");
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ping(&mut stream).await.unwrap();
    }

    #[tokio::test]
    async fn away_resets_present_and_new_connections() {
        let (proxy, mut stream) = through().await;
        proxy.set(Weather::Away);
        let mut answer = Vec::new();
        assert!(stream.read_to_end(&mut answer).await.is_err());
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(ping(&mut stream).await.is_err());
        proxy.set(Weather::Clear);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ping(&mut stream).await.unwrap();
    }

    #[tokio::test]
    async fn severed_connection_stays_open_for_its_client() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::start(0, listener.local_addr().unwrap().to_string()).await.unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let mut server = listener.accept().await.unwrap().0;
        let mut other = TcpStream::connect(proxy.address()).await.unwrap();
        let mut servers_other = listener.accept().await.unwrap().0;
        proxy.sever(HashSet::from([client.local_addr().unwrap().port()]));
        assert!(server.read_u8().await.is_err());
        for _ in 0..100 {
            client.write_all(&[0; 64 * 1024]).await.unwrap();
        }
        assert!(timeout(Duration::from_millis(100), client.read_u8()).await.is_err());
        other.write_u8(7).await.unwrap();
        assert_eq!(servers_other.read_u8().await.unwrap(), 7);
    }

    #[tokio::test]
    async fn hold_affects_only_the_given_ports() {
        let (proxy, mut held) = through().await;
        proxy.hold(HashSet::from([held.local_addr().unwrap().port()]));
        assert!(timeout(Duration::from_millis(100), ping(&mut held)).await.is_err());
        let mut other = TcpStream::connect(proxy.address()).await.unwrap();
        ping(&mut other).await.unwrap();
        proxy.hold(HashSet::new());
        let mut answer = [0; 4];
        held.read_exact(&mut answer).await.unwrap();
    }

    #[tokio::test]
    async fn orderly_end_is_forwarded() {
        let (_proxy, mut stream) = through().await;
        stream.write_all(b"last").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"last");
    }
}
