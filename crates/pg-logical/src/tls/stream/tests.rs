//! Against a scripted server, which decides where its records begin and end on the wire.

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion, version};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

/// The largest record.
const RECORD: usize = 16 * 1024;

/// The server's side, whose records are encrypted here and sent by the test.
struct Server {
    socket: TcpStream,
    connection: ServerConnection,
}

impl Server {
    /// The records of `plaintext`, each of at most 16 kB.
    fn encrypt(&mut self, plaintext: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        for piece in plaintext.chunks(RECORD) {
            self.connection.writer().write_all(piece).unwrap();
            self.take(&mut wire);
        }
        wire
    }

    fn take(&mut self, wire: &mut Vec<u8>) {
        while self.connection.wants_write() {
            self.connection.write_tls(wire).unwrap();
        }
    }

    async fn send(&mut self, wire: &[u8]) {
        self.socket.write_all(wire).await.unwrap();
    }

    /// Receives `count` bytes from the client, decrypted.
    async fn receive(&mut self, count: usize) -> Vec<u8> {
        let (mut plaintext, mut wire) = (Vec::new(), vec![0; 4096]);
        while plaintext.len() < count {
            let received = self.socket.read(&mut wire).await.unwrap();
            let mut received = &wire[..received];
            while !received.is_empty() {
                self.connection.read_tls(&mut received).unwrap();
                self.connection.process_new_packets().unwrap();
                let _: Result<usize, _> = self.connection.reader().read_to_end(&mut plaintext);
            }
        }
        plaintext
    }
}

async fn connected(versions: &[&'static SupportedProtocolVersion]) -> (TlsStream, Server) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let accepts = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let connects = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ours, theirs) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let theirs = theirs.unwrap().0;
    theirs.set_nodelay(true).unwrap();
    let name = "localhost".try_into().unwrap();
    let (ours, theirs) = tokio::join!(
        TlsConnector::from(Arc::new(connects)).connect(name, ours.unwrap()),
        TlsAcceptor::from(Arc::new(accepts)).accept(theirs)
    );
    let (socket, connection) = ours.unwrap().into_inner();
    let client = TlsStream::new(socket, connection);
    let (socket, connection) = theirs.unwrap().into_inner();
    (client, Server { socket, connection })
}

async fn connected_by_default() -> (TlsStream, Server) {
    connected(rustls::DEFAULT_VERSIONS).await
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n % 251) as u8).collect()
}

/// Reads without the runtime until `count` bytes have arrived.
fn read_now(client: &mut TlsStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut filled = 0;
    while filled < count {
        match client.read_now(&mut bytes[filled..]) {
            Ok(0) => panic!("the end after {filled} of {count} bytes"),
            Ok(read) => filled += read,
            Err(error) if is_temporary(&error) => std::thread::yield_now(),
            Err(error) => panic!("{error} after {filled} of {count} bytes"),
        }
    }
    bytes
}

#[tokio::test]
async fn a_record_of_16_kb_arrives_one_byte_at_a_time() {
    for with_runtime in [true, false] {
        let (mut client, mut server) = connected_by_default().await;
        let sent = numbers(RECORD);
        let wire = server.encrypt(&sent);
        let reads = async {
            let mut bytes = vec![0; RECORD];
            if with_runtime {
                client.read_exact(&mut bytes).await.unwrap();
            } else {
                while matches!(client.read_now(&mut bytes), Err(error) if is_temporary(&error)) {
                    tokio::task::yield_now().await;
                }
            }
            bytes
        };
        let writes = async {
            for byte in &wire {
                server.send(&[*byte]).await;
                tokio::task::yield_now().await;
            }
        };
        let (received, ()) = tokio::join!(reads, writes);
        assert!(received == sent, "with the runtime: {with_runtime}");
    }
}

#[tokio::test]
async fn records_that_have_arrived_are_read_at_once() {
    for versions in [&[&version::TLS13], &[&version::TLS12]] {
        let (mut client, mut server) = connected(versions).await;
        let sent = numbers(40_000);
        let mut wire = Vec::new();
        // a record for each message, as from a walsender
        for message in sent.chunks(400) {
            wire.extend(server.encrypt(message));
        }
        server.send(&wire).await;
        client.socket.readable().await.unwrap();
        assert!(read_now(&mut client, sent.len()) == sent, "{versions:?}");
        assert!(client.encrypted.is_empty());
        assert!(matches!(client.read_now(&mut [0]), Err(error) if is_temporary(&error)));
    }
}

#[tokio::test]
async fn a_small_buffer_takes_records_piece_by_piece() {
    let (mut client, mut server) = connected_by_default().await;
    let sent = numbers(100_000);
    let wire = server.encrypt(&sent);
    let reads = async {
        let mut received = Vec::new();
        let mut buffer = [0; 7];
        while received.len() < sent.len() {
            let count = client.read(&mut buffer).await.unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        received
    };
    let (received, ()) = tokio::join!(reads, server.send(&wire));
    assert!(received == sent);
}

#[tokio::test]
async fn reading_continues_after_a_change_of_keys() {
    let (mut client, mut server) = connected_by_default().await;
    for number in 0..3 {
        let before = server.encrypt(b"before");
        server.connection.refresh_traffic_keys().unwrap();
        let mut change = Vec::new();
        server.take(&mut change);
        let after = server.encrypt(b"after");
        server.send(&[before, change, after].concat()).await;
        assert_eq!(read_now(&mut client, 11), b"beforeafter", "{number}");
        // the server asks for new keys in the other direction too
        client.write_all(b"status").await.unwrap();
        client.flush().await.unwrap();
        assert_eq!(server.receive(6).await, b"status", "{number}");
    }
}

#[tokio::test]
async fn close_notify_ends_the_stream_after_the_messages_before_it() {
    for with_runtime in [true, false] {
        let (mut client, mut server) = connected_by_default().await;
        let mut wire = server.encrypt(b"last words");
        server.connection.send_close_notify();
        server.take(&mut wire);
        server.send(&wire).await;
        let mut bytes = [0; 64];
        if with_runtime {
            assert_eq!(client.read(&mut bytes).await.unwrap(), 10);
            assert_eq!(client.read(&mut bytes).await.unwrap(), 0);
        } else {
            assert_eq!(read_now(&mut client, 10), b"last words");
            assert_eq!(client.read_now(&mut bytes).unwrap(), 0);
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_in_a_record_fails_after_the_messages_before_it() {
    for with_runtime in [true, false] {
        let (mut client, mut server) = connected_by_default().await;
        let whole = server.encrypt(b"whole");
        let cut = server.encrypt(b"cut");
        server.send(&[&whole[..], &cut[..cut.len() - 1]].concat()).await;
        drop(server);
        let mut bytes = [0; 64];
        let error = if with_runtime {
            assert_eq!(client.read(&mut bytes).await.unwrap(), 5);
            client.read(&mut bytes).await.unwrap_err()
        } else {
            assert_eq!(read_now(&mut client, 5), b"whole");
            loop {
                match client.read_now(&mut bytes) {
                    Err(error) if is_temporary(&error) => std::thread::yield_now(),
                    end => break end.unwrap_err(),
                }
            }
        };
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "with the runtime: {with_runtime}");
    }
}

#[tokio::test]
async fn a_corrupt_record_fails_after_the_messages_before_it() {
    let (mut client, mut server) = connected_by_default().await;
    let whole = server.encrypt(b"whole");
    let mut corrupt = server.encrypt(b"corrupt");
    *corrupt.last_mut().unwrap() ^= 1;
    server.send(&[whole, corrupt].concat()).await;
    let mut bytes = [0; 64];
    assert_eq!(client.read(&mut bytes).await.unwrap(), 5);
    let error = client.read(&mut bytes).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    // the server is told why
    let mut wire = vec![0; 4096];
    let count = server.socket.read(&mut wire).await.unwrap();
    server.connection.read_tls(&mut &wire[..count]).unwrap();
    let told = server.connection.process_new_packets().unwrap_err();
    assert_eq!(told, rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));
}

#[tokio::test]
async fn what_a_full_socket_does_not_accept_is_sent_later() {
    let (mut client, mut server) = connected_by_default().await;
    let sent = numbers(20 << 20);
    let writes = async {
        client.write_all(&sent).await.unwrap();
        client.flush().await.unwrap();
    };
    let ((), received) = tokio::join!(writes, server.receive(sent.len()));
    assert!(received == sent);
}

#[tokio::test]
async fn a_shutdown_says_that_the_end_is_meant() {
    let (mut client, mut server) = connected_by_default().await;
    client.shutdown().await.unwrap();
    let mut wire = vec![0; 4096];
    let count = server.socket.read(&mut wire).await.unwrap();
    server.connection.read_tls(&mut &wire[..count]).unwrap();
    assert!(server.connection.process_new_packets().unwrap().peer_has_closed());
}
