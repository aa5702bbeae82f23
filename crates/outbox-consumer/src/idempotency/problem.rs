//! Responses of the middleware itself, as `application/problem+json` (RFC 9457).

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

/// What went wrong, and what the client should do.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    action: &'static str,
    retry_after: Option<Duration>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>, action: &'static str) -> Self {
        Problem { status, detail: detail.into(), action, retry_after: None }
    }

    pub(super) fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    pub(super) fn invalid_key(detail: String) -> Self {
        let action = "Send one header with a key of 1 to 255 characters of printable ASCII, for example a UUID, and the same \
                      one with each repetition.";
        Self::new(StatusCode::BAD_REQUEST, detail, action)
    }

    pub(super) fn mismatch(status: StatusCode) -> Self {
        let action = "Use a new key for a new request; repeat a request with the same method, path and body.";
        Self::new(status, "Idempotency key reused with different request body", action)
    }

    pub(super) fn in_progress(retry_after: Duration) -> Self {
        let detail = "A request with this idempotency key is in progress";
        Self::new(StatusCode::CONFLICT, detail, "Repeat the request after the time in Retry-After.")
            .retry_after(retry_after)
    }

    pub(super) fn expired() -> Self {
        let action =
            "Check whether the first request had its effect, and use a new key if it has to be done again.";
        Self::new(StatusCode::GONE, "The response for this idempotency key is no longer stored", action)
    }

    pub(super) fn unavailable(detail: &'static str) -> Self {
        let action = "Repeat the request with the same key after the time in Retry-After.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail, action).retry_after(Duration::from_secs(5))
    }

    pub(super) fn internal(detail: &'static str) -> Self {
        let action = "Repeat the request with the same key later; if it fails again, report it.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail, action)
    }

    pub(super) fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let body = serde_json::json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "action": self.action,
        });
        let mut response = Response::new(B::from(Bytes::from(body.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(time) = self.retry_after {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}
