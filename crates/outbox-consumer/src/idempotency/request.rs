//! What a request is stored under: caller and route, key, and a hash.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use sha2::{Digest, Sha256};

use super::Settings;
use super::problem::Problem;
use crate::hex::hex;
use crate::keys::IdempotencyKey;
use crate::session::BoxError;

/// The caller and the route of a request. Nobody gets the response of another caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    text: String,
}

impl Scope {
    /// The `caller`, for example a user or tenant as authentication knows it, and the `route`, for example `POST /orders`.
    pub fn new(caller: impl AsRef<str>, route: impl AsRef<str>) -> Self {
        // unambiguous, whatever the parts contain
        let text = serde_json::json!([route.as_ref(), caller.as_ref()]).to_string();
        // the database takes 255
        let text =
            if text.chars().count() <= 255 { text } else { format!("sha256:{}", hex(&Sha256::digest(text))) };
        Scope { text }
    }
}

/// A request that has a key.
pub(super) struct Keyed {
    pub(super) key: IdempotencyKey,
    pub(super) hash: [u8; 32],
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl Keyed {
    /// Reads the request.
    pub(super) async fn read<B>(settings: &Settings, request: http::Request<B>) -> Result<Self, Problem>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let key = key_of(&parts, &settings.header)?;
        let scope = (settings.scope)(&parts).ok_or_else(|| {
            let detail = "The caller of a request with an idempotency key must be known";
            Problem::new(StatusCode::UNAUTHORIZED, detail, "Authenticate, and repeat the request.")
        })?;
        let body = read_body(body, settings.max_request_body).await?;
        let hash = hash(&parts, &body);
        Ok(Keyed { key: IdempotencyKey::new(scope.text, key), hash, parts, body })
    }
}

async fn read_body<B>(body: B, limit: usize) -> Result<Bytes, Problem>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let collected = Limited::new(body, limit).collect().await.map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            let detail = format!("The body is larger than {limit} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail, "Send a smaller body.")
        } else {
            let detail = "The body did not arrive as a whole";
            Problem::new(StatusCode::BAD_REQUEST, detail, "Repeat the request with the same key.")
        }
    })?;
    Ok(collected.to_bytes())
}

/// The SHA-256 of method, path with query, and body. Neither of the first two contains a NUL.
fn hash(parts: &Parts, body: &[u8]) -> [u8; 32] {
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    Sha256::new()
        .chain_update(parts.method.as_str())
        .chain_update([0])
        .chain_update(path)
        .chain_update([0])
        .chain_update(body)
        .finalize()
        .into()
}

/// The key: bare, or quoted as a string of RFC 8941.
fn key_of(parts: &Parts, header: &HeaderName) -> Result<String, Problem> {
    let invalid = |what: &str| Problem::invalid_key(format!("The header {header} {what}"));
    let mut values = parts.headers.get_all(header).iter();
    let value = values.next().ok_or_else(|| invalid("is missing"))?;
    if values.next().is_some() {
        return Err(invalid("was sent twice"));
    }
    let value = value.as_bytes().trim_ascii();
    if !value.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(invalid("is not printable ASCII"));
    }
    let value = String::from_utf8_lossy(value);
    let key = match value.strip_prefix('"') {
        None => value.into_owned(),
        Some(quoted) => unquote(quoted).ok_or_else(|| invalid("is not one quoted string"))?,
    };
    match key.len() {
        0 => Err(invalid("is empty")),
        1..=255 => Ok(key),
        length => Err(invalid(&format!("has {length} characters, more than 255"))),
    }
}

/// The text of a string whose first quote was removed.
fn unquote(quoted: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = quoted.chars();
    loop {
        match rest.next()? {
            '"' => return rest.next().is_none().then_some(text),
            '\\' => text.push(rest.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(values: &[&[u8]]) -> Result<String, String> {
        let mut request = http::Request::new(());
        for value in values {
            request.headers_mut().append("key", http::HeaderValue::from_bytes(value).unwrap());
        }
        let header = HeaderName::from_static("key");
        key_of(&request.into_parts().0, &header).map_err(|problem| format!("{problem:?}"))
    }

    #[test]
    fn a_key_is_bare_or_quoted() {
        for value in [&b"3f1c"[..], b"\"3f1c\"", b" 3f1c "] {
            assert_eq!(key(&[value]).unwrap(), "3f1c");
        }
        assert_eq!(key(&[br#""a\"b\\c""#]).unwrap(), r#"a"b\c"#);
        assert_eq!(key(&[br#"a"b"#]).unwrap(), r#"a"b"#);
        assert_eq!(key(&[&[b'k'; 255]]).unwrap().len(), 255);
    }

    #[test]
    fn other_keys_are_refused() {
        let long = [b'k'; 256];
        for (values, why) in [
            (&[][..], "missing"),
            (&[&b""[..]], "empty"),
            (&[b"\"\""], "empty"),
            (&[b"a", b"a"], "twice"),
            (&[&long], "256 characters"),
            (&["k\u{e4}".as_bytes()], "printable"),
            (&[b"a\tb"], "printable"),
            (&[b"\"a"], "quoted"),
            (&[b"\"a\", \"b\""], "quoted"),
            (&[br#""a\b""#], "quoted"),
        ] {
            assert!(key(values).unwrap_err().contains(why), "{values:?}");
        }
    }

    #[test]
    fn scopes_differ_by_caller_and_route() {
        let long = "x".repeat(300);
        let scopes = [
            Scope::new("a", "b c"),
            Scope::new("a b", "c"),
            Scope::new("a\",\"b", "c"),
            Scope::new("b", "c\",\"a"),
            Scope::new(&long, "r"),
            Scope::new(&long, "s"),
        ];
        for (n, scope) in scopes.iter().enumerate() {
            assert!(!scopes[..n].contains(scope), "{scope:?}");
            assert!(scope.text.chars().count() <= 255);
        }
    }

    #[test]
    fn the_hash_covers_method_path_query_and_body() {
        let of = |method: &str, path: &str, body: &[u8]| {
            let request = http::Request::builder().method(method).uri(path).body(()).unwrap();
            hash(&request.into_parts().0, body)
        };
        let first = of("POST", "/orders?a=1", b"x");
        assert_eq!(first, of("POST", "http://other.example/orders?a=1", b"x"));
        for other in [
            of("PUT", "/orders?a=1", b"x"),
            of("POST", "/orders", b"x"),
            of("POST", "/orders?a=1", b"y"),
            of("POST", "/orders?a=1x", b""),
        ] {
            assert_ne!(first, other);
        }
    }
}
