//! Creating topics, with what the brokers say about those that they refuse.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::AdminClient;
use rdkafka::bindings as sys;
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode as Code};

/// How often [`create_topics`] asks whether somebody still waits.
const ASK_AGAIN_MS: c_int = 100;

/// A topic to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic<'a> {
    /// Its name.
    pub name: &'a str,
    /// The number of its partitions; `None`: the brokers' default.
    pub partitions: Option<i32>,
    /// The number of its replicas; `None`: the brokers' default.
    pub replicas: Option<i32>,
    /// Names and values of its settings.
    pub config: Vec<(&'a str, &'a str)>,
}

/// How topics are created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// How long the request may take; `None`: the client's `socket.timeout.ms`.
    pub request_timeout: Option<Duration>,
    /// How long the brokers wait until the topics are created everywhere.
    pub operation_timeout: Option<Duration>,
    /// Only ask whether the topics could be created.
    pub validate_only: bool,
}

/// Why a topic was not created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotCreated {
    /// The error.
    pub code: Code,
    /// The brokers' own words, if they say more than the code.
    pub words: Option<String>,
}

/// A topic, and why it was not created, if it was not.
pub type Answer = (String, Result<(), NotCreated>);

/// Creates topics with one request, and returns the result for each. Blocks while `wanted` is true, and the request may take.
///
/// # Errors
/// No broker has answered, or an argument has a zero byte or an impossible number.
pub fn create_topics<C: ClientContext>(
    client: &AdminClient<C>,
    topics: &[NewTopic<'_>],
    options: Options,
    wanted: impl Fn() -> bool,
) -> Result<Vec<Answer>, KafkaError> {
    let client = client.inner().native_ptr();
    let topics = topics.iter().map(Topic::new).collect::<Result<Vec<_>, _>>()?;
    let mut pointers: Vec<_> = topics.iter().map(|topic| topic.0.as_ptr()).collect();
    let options = AdminOptions::new(client, options)?;
    // SAFETY: the caller's client is alive.
    let queue = Queue(non_null(unsafe { sys::rd_kafka_queue_new(client) })?);
    // SAFETY: all pointers are alive, `pointers` has as many topics as is said, and topics and options are copied.
    unsafe {
        sys::rd_kafka_CreateTopics(
            client,
            pointers.as_mut_ptr(),
            pointers.len(),
            options.0.as_ptr(),
            queue.0.as_ptr(),
        );
    }
    while wanted() {
        // SAFETY: the queue is alive. The event is ours.
        let event = unsafe { sys::rd_kafka_queue_poll(queue.0.as_ptr(), ASK_AGAIN_MS) };
        if let Some(event) = NonNull::new(event) {
            return Event(event).results();
        }
    }
    Err(KafkaError::Canceled)
}

/// A copy of a text of librdkafka; `None` without one.
fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: librdkafka's texts end with a zero, and belong to an object that the caller keeps.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
}

fn non_null<T>(pointer: *mut T) -> Result<NonNull<T>, KafkaError> {
    NonNull::new(pointer).ok_or(KafkaError::AdminOp(Code::InvalidArgument))
}

fn accepted(code: sys::rd_kafka_resp_err_t) -> Result<(), KafkaError> {
    if code.is_error() { Err(KafkaError::AdminOp(code.into())) } else { Ok(()) }
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

struct Topic(NonNull<sys::rd_kafka_NewTopic_t>);

impl Topic {
    fn new(wanted: &NewTopic<'_>) -> Result<Self, KafkaError> {
        let name = CString::new(wanted.name)?;
        // -1: the brokers' default
        let (partitions, replicas) = (wanted.partitions.unwrap_or(-1), wanted.replicas.unwrap_or(-1));
        // SAFETY: the name ends with a zero and is copied; no text of an error is asked for.
        let topic =
            unsafe { sys::rd_kafka_NewTopic_new(name.as_ptr(), partitions, replicas, ptr::null_mut(), 0) };
        let topic = Topic(non_null(topic)?);
        for (name, value) in &wanted.config {
            let (name, value) = (CString::new(*name)?, CString::new(*value)?);
            // SAFETY: the topic is ours; name and value end with a zero and are copied.
            accepted(unsafe {
                sys::rd_kafka_NewTopic_set_config(topic.0.as_ptr(), name.as_ptr(), value.as_ptr())
            })?;
        }
        Ok(topic)
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: the topic is ours, and librdkafka has copied what it needs.
        unsafe { sys::rd_kafka_NewTopic_destroy(self.0.as_ptr()) }
    }
}

struct AdminOptions(NonNull<sys::rd_kafka_AdminOptions_t>);

/// Sets one of them, and writes why it cannot to a text of the given length.
type Setter = unsafe extern "C" fn(
    *mut sys::rd_kafka_AdminOptions_t,
    c_int,
    *mut c_char,
    usize,
) -> sys::rd_kafka_resp_err_t;

impl AdminOptions {
    fn new(client: *mut sys::rd_kafka_t, wanted: Options) -> Result<Self, KafkaError> {
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_CREATETOPICS;
        // SAFETY: the caller's client is alive.
        let options = AdminOptions(non_null(unsafe { sys::rd_kafka_AdminOptions_new(client, operation) })?);
        let set: [(Option<c_int>, Setter); 3] = [
            (wanted.request_timeout.map(milliseconds), sys::rd_kafka_AdminOptions_set_request_timeout),
            (wanted.operation_timeout.map(milliseconds), sys::rd_kafka_AdminOptions_set_operation_timeout),
            (Some(wanted.validate_only.into()), sys::rd_kafka_AdminOptions_set_validate_only),
        ];
        for (value, setter) in set {
            let Some(value) = value else { continue };
            // SAFETY: the options are ours; no text of an error is asked for.
            accepted(unsafe { setter(options.0.as_ptr(), value, ptr::null_mut(), 0) })?;
        }
        Ok(options)
    }
}

impl Drop for AdminOptions {
    fn drop(&mut self) {
        // SAFETY: the options are ours, and librdkafka has copied them.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.0.as_ptr()) }
    }
}

struct Queue(NonNull<sys::rd_kafka_queue_t>);

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue is ours. A request that is not answered yet holds a reference of its own.
        unsafe { sys::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// The answer to a request.
struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    fn results(&self) -> Result<Vec<Answer>, KafkaError> {
        // SAFETY: the event is ours.
        accepted(unsafe { sys::rd_kafka_event_error(self.0.as_ptr()) })?;
        // SAFETY: the event is ours.
        let result = unsafe { sys::rd_kafka_event_CreateTopics_result(self.0.as_ptr()) };
        if result.is_null() {
            return Err(KafkaError::AdminOp(Code::Fail));
        }
        let mut count = 0;
        // SAFETY: the result belongs to the event.
        let topics = unsafe { sys::rd_kafka_CreateTopics_result_topics(result, &raw mut count) };
        if topics.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: librdkafka returns as many pointers as it says, which live as long as the event.
        let topics = unsafe { std::slice::from_raw_parts(topics, count) };
        Ok(topics.iter().map(|topic| result_of(*topic)).collect())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and nothing refers to it after this.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

/// The result for one topic, which belongs to an event.
fn result_of(topic: *const sys::rd_kafka_topic_result_t) -> Answer {
    // SAFETY: the caller's event is alive.
    let name = text(unsafe { sys::rd_kafka_topic_result_name(topic) }).unwrap_or_default();
    // SAFETY: the caller's event is alive.
    let code = unsafe { sys::rd_kafka_topic_result_error(topic) };
    if !code.is_error() {
        return (name, Ok(()));
    }
    let code = Code::from(code);
    // SAFETY: the caller's event is alive.
    let words = text(unsafe { sys::rd_kafka_topic_result_error_string(topic) });
    // librdkafka repeats the text of the code if the brokers say nothing, and brokers may say the same, as "Authorization failed."
    let said = |words: &String| words.trim_end_matches('.').to_lowercase();
    let words = words.filter(|words| !code.to_string().to_lowercase().contains(&said(words)));
    (name, Err(NotCreated { code, words }))
}
