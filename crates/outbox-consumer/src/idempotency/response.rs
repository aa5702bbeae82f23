//! Responses as they are stored: headers as JSON, body as bytes.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};

use crate::keys::StoredResponse;
use crate::session::BoxError;

/// What `idempotency_finish` takes.
const MAX_BODY: usize = 16 << 20;

/// Reads the whole body.
pub(super) async fn read<B>(response: Response<B>) -> Result<Response<Bytes>, BoxError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// Status, body and the headers that are stored.
pub(super) fn stored(response: &Response<Bytes>, selected: &[HeaderName]) -> StoredResponse {
    let headers: Vec<[String; 2]> = response
        .headers()
        .iter()
        .filter(|(name, _)| selected.contains(name))
        // a value may have any bytes from 0x80: as Latin-1
        .map(|(name, value)| [name.to_string(), value.as_bytes().iter().copied().map(char::from).collect()])
        .collect();
    StoredResponse {
        status: response.status().as_u16(),
        headers: Some(serde_json::json!(headers).to_string()),
        body: Some(response.body().to_vec()),
    }
}

/// The response again, with `Idempotent-Replayed: true`.
pub(super) fn replayed<B: From<Bytes>>(stored: StoredResponse) -> Result<Response<B>, BoxError> {
    let mut response = Response::new(B::from(Bytes::from(stored.body.unwrap_or_default())));
    *response.status_mut() = StatusCode::from_u16(stored.status)?;
    let headers = response.headers_mut();
    add(headers, stored.headers.as_deref().unwrap_or("[]"))?;
    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    Ok(response)
}

fn add(headers: &mut HeaderMap, json: &str) -> Result<(), BoxError> {
    let pairs: Vec<[String; 2]> = serde_json::from_str(json)?;
    for [name, value] in pairs {
        let value = value.chars().map(u8::try_from).collect::<Result<Vec<u8>, _>>()?;
        headers.append(HeaderName::try_from(name)?, HeaderValue::from_bytes(&value)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, LINK, SET_COOKIE};
    use http_body_util::Full;

    use super::*;

    #[test]
    fn a_response_comes_back_byte_for_byte_with_the_selected_headers() {
        let mut response = Response::new(Bytes::from_static(b"\xff\0"));
        *response.status_mut() = StatusCode::CREATED;
        for (name, value) in [
            (CONTENT_TYPE, &b"text/plain; x=\"\xe4\""[..]),
            (LINK, b"<a>"),
            (LINK, b"<b>"),
            (SET_COOKIE, b"secret"),
        ] {
            response.headers_mut().append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let again: Response<Full<Bytes>> = replayed(stored(&response, &[CONTENT_TYPE, LINK])).unwrap();
        let mut expected = response.headers().clone();
        expected.remove(SET_COOKIE);
        expected.insert("idempotent-replayed", HeaderValue::from_static("true"));
        assert_eq!((again.status(), again.headers()), (StatusCode::CREATED, &expected));
    }
}
