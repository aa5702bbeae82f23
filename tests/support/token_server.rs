//! A server for OpenID Connect tokens, with OAuth 2.0's client credentials grant (RFC 6749, section 4.4).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::certificates::Identity;

/// The only client that gets a token.
pub(crate) const CLIENT: &str = "router-client";
pub(crate) const CLIENT_SECRET: &str = "clientsesame-5b20";

/// The answer to each request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// A token for this principal that is valid for this many seconds. Other clients get a 401.
    Token { principal: &'static str, seconds: u64 },
    /// This HTTP status and body.
    Other(u16, &'static str),
}

/// A token server. Ends with the test's process.
pub(crate) struct TokenServer {
    scheme: &'static str,
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    /// Each request as method, path and body, and each issued token.
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

impl TokenServer {
    /// Starts a server for `http://` or, with an identity, for `https://localhost`.
    pub(crate) fn start(identity: Option<&Identity>, answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = TokenServer {
            scheme: if identity.is_some() { "https" } else { "http" },
            address: listener.local_addr().unwrap(),
            answer: Arc::new(Mutex::new(answer)),
            log: Arc::default(),
        };
        let tls = identity.map(|identity| Arc::new(tls(identity)));
        let (answer, log) = (Arc::clone(&server.answer), Arc::clone(&server.log));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, answer, log) = (tls.clone(), Arc::clone(&answer), Arc::clone(&log));
                std::thread::spawn(move || converse(stream, tls, &answer, &log));
            }
        });
        server
    }

    /// `sasl.oauthbearer.token.endpoint.url`
    pub(crate) fn url(&self) -> String {
        format!("{}://localhost:{}/token", self.scheme, self.address.port())
    }

    pub(crate) fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    /// The number of requests.
    pub(crate) fn asked(&self) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.starts_with("POST ")).count()
    }
}

fn tls(identity: &Identity) -> ServerConfig {
    let certificate = pem::parse(&identity.certificate).unwrap().into_contents().into();
    let key = PrivateKeyDer::try_from(pem::parse(&identity.key).unwrap().into_contents()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap()
}

/// Serves one connection. Errors are ignored, because a client that does not trust the server ends the handshake.
fn converse(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    answer: &Mutex<Answer>,
    log: &Mutex<Vec<String>>,
) {
    match tls {
        None => drop(serve(stream, answer, log)),
        Some(config) => {
            let tls = ServerConnection::new(config).unwrap();
            drop(serve(StreamOwned::new(tls, stream), answer, log));
        }
    }
}

fn serve(
    mut stream: impl Read + Write,
    answer: &Mutex<Answer>,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let (mut request, mut authorized, mut length) = (String::new(), false, 0);
    let expected = format!("Basic {}", STANDARD.encode(format!("{CLIENT}:{CLIENT_SECRET}")));
    {
        let mut reader = BufReader::new(&mut stream);
        reader.read_line(&mut request)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "authorization" => authorized = value == expected,
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let request = request.trim_end().trim_end_matches(" HTTP/1.1");
        log.lock().unwrap().push(format!("{request} {}", String::from_utf8_lossy(&body)));
    }
    let answer = answer.lock().unwrap().clone();
    let (status, body) = match answer {
        Answer::Token { .. } if !authorized => (401, "{\"error\": \"invalid_client\"}".to_owned()),
        Answer::Token { principal, seconds } => {
            let token = token(principal, seconds);
            log.lock().unwrap().push(token.clone());
            (
                200,
                format!(
                    "{{\"access_token\": \"{token}\", \"token_type\": \"Bearer\", \"expires_in\": {seconds}}}"
                ),
            )
        }
        Answer::Other(status, body) => (status, body.to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}

/// An unsigned JSON Web Token, which Kafka's validator for tests accepts.
fn token(principal: &str, seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = format!("{{\"sub\": \"{principal}\", \"iat\": {now}, \"exp\": {}}}", now + seconds);
    format!("{}.{}.", URL_SAFE_NO_PAD.encode("{\"alg\":\"none\"}"), URL_SAFE_NO_PAD.encode(claims))
}
