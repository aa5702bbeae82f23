//! The trace context that the application stored with its event (W3C Trace Context).

use connect_values::span_context;

use super::headers::Headers;

/// Adds `traceparent` and `tracestate`, if the text in the format of `java.util.Properties` has them.
pub(super) fn push(context: &[u8], headers: &mut Headers) {
    let Ok(text) = std::str::from_utf8(context) else { return };
    let context = span_context(text);
    for (name, value) in [("traceparent", context.traceparent), ("tracestate", context.tracestate)] {
        if let Some(value) = value {
            headers.push(name, Some(value.as_bytes()));
        }
    }
}
