//! Topic handles, and sending by them.

use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

use rdkafka::bindings as sys;
use rdkafka::error::{IsError, KafkaError};
use rdkafka::producer::{Producer, ProducerContext, ThreadedProducer};

use crate::headers::Headers;

/// `RD_KAFKA_PARTITION_UA`, which the bindings lack.
const PARTITION_BY_KEY: i32 = -1;

/// A topic of one producer.
pub struct Topic<C: ProducerContext<DeliveryOpaque = usize> + 'static> {
    handle: NonNull<sys::rd_kafka_topic_t>,
    // dropped after the handle was returned
    producer: ThreadedProducer<C>,
}

// SAFETY: librdkafka's functions may be called from any thread, and a handle is not tied to the one that created it.
unsafe impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> Send for Topic<C> {}
// SAFETY: librdkafka locks what its functions change of a topic.
unsafe impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> Sync for Topic<C> {}

/// A record without its topic.
#[derive(Clone, Copy)]
pub struct Record<'a, H> {
    /// The partition; `None`: the one that the producer's partitioner chooses.
    pub partition: Option<i32>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// In milliseconds since the Unix epoch; `None`: the current time.
    pub timestamp: Option<i64>,
    /// Names and values of the headers.
    pub headers: H,
    /// Returned with the delivery report.
    pub opaque: usize,
}

impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> Topic<C> {
    /// The handle of the topic `name`, which need not exist.
    ///
    /// # Errors
    /// The name has a zero byte, is too long, or librdkafka is out of memory.
    pub fn new(producer: &ThreadedProducer<C>, name: &str) -> Result<Self, KafkaError> {
        let name = CString::new(name)?;
        // SAFETY: the producer is alive, the name ends with a zero, and without a configuration the producer's is used.
        let handle = unsafe {
            sys::rd_kafka_topic_new(producer.client().native_ptr(), name.as_ptr(), ptr::null_mut())
        };
        match NonNull::new(handle) {
            Some(handle) => Ok(Topic { handle, producer: producer.clone() }),
            None => {
                // SAFETY: no pointer is passed.
                let code = unsafe { sys::rd_kafka_last_error() };
                Err(KafkaError::MessageProduction(code.into()))
            }
        }
    }

    /// Queues a record. Never blocks.
    ///
    /// # Errors
    /// As [`ThreadedProducer::send`]; the record was not queued.
    pub fn send<'a, H>(&self, record: Record<'a, H>) -> Result<(), KafkaError>
    where
        H: ExactSizeIterator<Item = (&'a str, Option<&'a [u8]>)>,
    {
        let headers = if record.headers.len() > 0 { Some(Headers::copied(record.headers)?) } else { None };
        let (value, value_length) = parts(record.value);
        let (key, key_length) = parts(record.key);
        // SAFETY: the handle belongs to this producer, and both are alive. Each type is followed by the arguments that
        // librdkafka reads for it. Value and key are valid for their lengths during the call, which copies them.
        let code = unsafe {
            sys::rd_kafka_producev(
                self.producer.client().native_ptr(),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_RKT,
                self.handle.as_ptr(),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_PARTITION,
                record.partition.unwrap_or(PARTITION_BY_KEY),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_MSGFLAGS,
                sys::RD_KAFKA_MSG_F_COPY,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_VALUE,
                value,
                value_length,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_KEY,
                key,
                key_length,
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_OPAQUE,
                ptr::without_provenance_mut::<c_void>(record.opaque),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_TIMESTAMP,
                record.timestamp.unwrap_or(0),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADERS,
                headers.as_ref().map_or(ptr::null_mut(), Headers::as_ptr),
                sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_END,
            )
        };
        if code.is_error() {
            return Err(KafkaError::MessageProduction(code.into()));
        }
        if let Some(headers) = headers {
            headers.taken();
        }
        Ok(())
    }
}

fn parts(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    bytes.map_or((ptr::null_mut(), 0), |bytes| (bytes.as_ptr().cast_mut().cast(), bytes.len()))
}

impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> Drop for Topic<C> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, its producer is still alive, and the handle is not used again.
        unsafe { sys::rd_kafka_topic_destroy(self.handle.as_ptr()) }
    }
}

impl<C: ProducerContext<DeliveryOpaque = usize> + 'static> fmt::Debug for Topic<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic").finish_non_exhaustive()
    }
}
