//! Reads the span context in a column such as Debezium's `tracingspancontext`.

use crate::java_properties;

/// The entries of a span context that become headers. They are not validated, because propagators ignore invalid ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpanContext {
    /// W3C Trace Context's `traceparent`.
    pub traceparent: Option<String>,
    /// W3C Trace Context's `tracestate`.
    pub tracestate: Option<String>,
}

/// Parses a text in the format of `java.util.Properties`; empty if Java refuses it. Of duplicate names, the last one is used.
pub fn span_context(text: &str) -> SpanContext {
    let mut context = SpanContext::default();
    for (name, value) in java_properties::parse(text).unwrap_or_default() {
        match name.as_str() {
            "traceparent" => context.traceparent = Some(value),
            "tracestate" => context.tracestate = Some(value),
            _ => {}
        }
    }
    context
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> (Option<String>, Option<String>) {
        let context = span_context(text);
        (context.traceparent, context.tracestate)
    }

    #[test]
    fn reads_the_output_of_properties_store() {
        let stored = "#\n#Thu Feb 29 12:34:56 UTC 2024\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=a\\=1,b\\:2\n";
        assert_eq!(
            read(stored),
            (Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()), Some("a=1,b:2".into()))
        );
    }

    #[test]
    fn accepts_every_separator_and_escape() {
        for (text, value) in [
            ("traceparent=x", "x"),
            ("  traceparent : x ", "x "),
            ("traceparent x=y", "x=y"),
            ("traceparent\t=\t=x", "=x"),
            ("traceparent", ""),
            ("traceparent=", ""),
            ("other=1\r\ntraceparent=x\r\n", "x"),
            ("!traceparent=c\\\ntraceparent=x", "x"),
            ("traceparent=a\\\n   b\\\r\n\t#c", "ab#c"),
            ("trace\\\n parent=x", "x"),
            ("trace\\u0070arent=\\u00e9\\ud83d\\ude00\\ud83d", "é😀?"),
            ("traceparent=\\t\\n\\x\\\\", "\t\nx\\"),
            ("traceparent=a\\", "a"),
            ("traceparent=a\ntraceparent=b", "b"),
            ("\\traceparent=a\ntraceparent=b", "b"),
        ] {
            assert_eq!(read(text).0.as_deref(), Some(value), "{text:?}");
        }
    }

    #[test]
    fn missing_and_malformed_entries_are_none() {
        for text in [
            "",
            "\n\n",
            "#traceparent=x",
            "uber-trace-id=x",
            "Traceparent=x",
            "traceparent=\\u12",
            "traceparent=\\u+123",
        ] {
            assert_eq!(read(text), (None, None), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(traceparent|[\\\\=: \t\r\n#!u0é])*") {
            let _ = span_context(&text);
        }
    }
}
