//! Headers as librdkafka takes them.

use std::ptr::NonNull;

use rdkafka::bindings as sys;
use rdkafka::error::{IsError, KafkaError};
use rdkafka::types::RDKafkaRespErr;

/// Headers that librdkafka has not taken.
pub(crate) struct Headers(NonNull<sys::rd_kafka_headers_t>);

impl Headers {
    /// Copies names and values.
    pub(crate) fn copied<'a>(
        headers: impl ExactSizeIterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) -> Result<Self, KafkaError> {
        // SAFETY: no pointer is passed.
        let created = unsafe { sys::rd_kafka_headers_new(headers.len()) };
        let refused = |code: RDKafkaRespErr| KafkaError::MessageProduction(code.into());
        let created =
            Headers(NonNull::new(created).ok_or_else(|| refused(RDKafkaRespErr::RD_KAFKA_RESP_ERR__FAIL))?);
        for (name, value) in headers {
            let (value, length) = match value {
                None => (std::ptr::null(), 0),
                Some(bytes) => (bytes.as_ptr(), bytes.len().cast_signed()),
            };
            // SAFETY: the list is ours; name and value are valid for their lengths during the call, which copies them.
            let code = unsafe {
                sys::rd_kafka_header_add(
                    created.0.as_ptr(),
                    name.as_ptr().cast(),
                    name.len().cast_signed(),
                    value.cast(),
                    length,
                )
            };
            if code.is_error() {
                return Err(refused(code));
            }
        }
        Ok(created)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rd_kafka_headers_t {
        self.0.as_ptr()
    }

    /// librdkafka has taken them.
    pub(crate) fn taken(self) {
        std::mem::forget(self);
    }
}

impl Drop for Headers {
    fn drop(&mut self) {
        // SAFETY: librdkafka has not taken the list, and nothing refers to it after this.
        unsafe { sys::rd_kafka_headers_destroy(self.0.as_ptr()) }
    }
}
