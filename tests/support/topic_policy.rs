//! A cluster with a policy for new topics, as `create.topic.policy.class.name` sets one: a proxy in front of the shared broker, which
//! answers requests to create topics itself if the policy refuses one. Everything else is the broker's.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::kafka::Kafka;

/// The number of the request in Kafka's protocol.
const CREATE_TOPICS: i16 = 19;

/// Kafka's number of the error.
const POLICY_VIOLATION: i16 = 44;

/// A topic in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// -1: the broker's default.
    pub(crate) partitions: i32,
    pub(crate) config: BTreeMap<String, String>,
    /// The request only asks.
    pub(crate) validate_only: bool,
}

/// The broker's words if it refuses the topic.
type Policy = dyn Fn(&Wanted) -> Option<&'static str> + Send + Sync;

/// The proxy. Ends with the test's process.
pub(crate) struct TopicPolicy {
    address: SocketAddr,
    /// The topics in requests that were passed on.
    accepted: Arc<Mutex<Vec<Wanted>>>,
}

impl TopicPolicy {
    pub(crate) fn start(policy: impl Fn(&Wanted) -> Option<&'static str> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::default();
        let cluster = TopicPolicy { address, accepted: Arc::clone(&accepted) };
        let policy: Arc<Policy> = Arc::new(policy);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (policy, accepted) = (Arc::clone(&policy), Arc::clone(&accepted));
                let server = TcpStream::connect(&Kafka::shared().bootstrap).unwrap();
                let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || to_client(from, to, address.port()));
                std::thread::spawn(move || to_server(client, server, &*policy, &accepted));
            }
        });
        cluster
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(&self.address.to_string())
    }

    /// The settings that each request for this topic had which the policy did not refuse.
    pub(crate) fn accepted(&self, topic: &str) -> Vec<Wanted> {
        self.accepted.lock().unwrap().iter().filter(|wanted| wanted.name == topic).cloned().collect()
    }
}

/// One request or response, without its length.
fn frame(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

fn write_frame(to: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).unwrap();
    to.write_all(&[&length.to_be_bytes()[..], frame].concat())
}

/// Passes on responses, in which the broker is at the address of the proxy.
fn to_client(mut server: TcpStream, mut client: TcpStream, port: u16) {
    let bootstrap = Kafka::shared().bootstrap;
    let (host, own_port) = bootstrap.rsplit_once(':').unwrap();
    let at = |port: u32| [host.as_bytes(), &port.to_be_bytes()[..]].concat();
    let (broker, proxy) = (at(own_port.parse().unwrap()), at(port.into()));
    while let Ok(mut response) = frame(&mut server) {
        while let Some(found) = response.windows(broker.len()).position(|bytes| bytes == broker) {
            response[found..found + broker.len()].copy_from_slice(&proxy);
        }
        if write_frame(&mut client, &response).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

fn to_server(mut client: TcpStream, mut server: TcpStream, policy: &Policy, accepted: &Mutex<Vec<Wanted>>) {
    while let Ok(request) = frame(&mut client) {
        let asked = wanted(&request);
        let refused: Vec<_> = asked.iter().map(|topic| (topic, policy(topic))).collect();
        let written = if refused.iter().any(|(_, words)| words.is_some()) {
            write_frame(&mut client, &answer(&request, &refused))
        } else {
            accepted.lock().unwrap().extend(asked);
            write_frame(&mut server, &request)
        };
        if written.is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// The topics in a request to create some; none in any other.
fn wanted(request: &[u8]) -> Vec<Wanted> {
    let mut reader = Reader(request);
    let (api, version) = (reader.short(), reader.short());
    if api != CREATE_TOPICS {
        return Vec::new();
    }
    assert!((2..=4).contains(&version), "librdkafka speaks version {version} of CreateTopics");
    let _correlation_id = reader.int();
    let _client_id = reader.text();
    let mut topics: Vec<Wanted> = (0..reader.int())
        .map(|_| {
            let (name, partitions, _replicas) = (reader.text(), reader.int(), reader.short());
            assert_eq!(reader.int(), 0, "the router assigns no replicas");
            let config = (0..reader.int()).map(|_| (reader.text(), reader.text())).collect();
            Wanted { name, partitions, config, validate_only: false }
        })
        .collect();
    let _timeout = reader.int();
    let validate_only = reader.0[0] == 1;
    for topic in &mut topics {
        topic.validate_only = validate_only;
    }
    topics
}

/// The response to `request` if the policy refuses topics. The others are told to be refused for the same reason.
fn answer(request: &[u8], topics: &[(&Wanted, Option<&'static str>)]) -> Vec<u8> {
    let mut answer = request[4..8].to_vec();
    // not throttled
    answer.extend(0_i32.to_be_bytes());
    answer.extend(i32::try_from(topics.len()).unwrap().to_be_bytes());
    for (topic, words) in topics {
        for (text, code) in
            [(topic.name.as_str(), Some(POLICY_VIOLATION)), (words.unwrap_or("another"), None)]
        {
            answer.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
            answer.extend(text.as_bytes());
            answer.extend(code.into_iter().flat_map(i16::to_be_bytes));
        }
    }
    answer
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        *taken
    }

    fn short(&mut self) -> i16 {
        i16::from_be_bytes(self.take())
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    /// A text, or an empty one if it is null.
    fn text(&mut self) -> String {
        let length = usize::try_from(self.short()).unwrap_or(0);
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }
}
