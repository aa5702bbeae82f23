//! What Kafka accepts as the name of a topic.

/// Kafka's own limit (`org.apache.kafka.common.internals.Topic`).
pub const MAX_LENGTH: usize = 249;

/// Where routers keep their positions unless told otherwise; events must never be mixed into it.
pub const POSITIONS: &str = "outbox-router.positions";

/// Why a name cannot be a topic of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    /// Nothing at all.
    #[error("it is empty")]
    Empty,
    /// More than [`MAX_LENGTH`] characters.
    #[error("it has {0} characters, and Kafka takes {MAX_LENGTH}")]
    TooLong(usize),
    /// `.` or `..`
    #[error("Kafka refuses `.` and `..`")]
    Dots,
    /// A character outside of `[a-zA-Z0-9._-]`.
    #[error("Kafka takes letters, digits, `.`, `_` and `-` only")]
    Character,
    /// A topic of Kafka's or of the router's own.
    #[error(
        "names that begin with `__` are for topics of Kafka itself, and `{POSITIONS}` is for the routers' positions"
    )]
    Reserved,
    /// Where the routers' positions are.
    #[error("it is where routers keep their positions (`[delivery] positions_topic`)")]
    PositionsTopic,
}

/// Whether `byte` may stand in a topic name.
pub fn legal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Checks a name by Kafka's rules and keeps internal topics out of reach of a row.
pub fn check(name: &str) -> Result<(), TopicNameError> {
    if name == POSITIONS { Err(TopicNameError::Reserved) } else { check_own(name) }
}

/// The same for a topic of the router's own.
pub fn check_own(name: &str) -> Result<(), TopicNameError> {
    match name {
        "" => Err(TopicNameError::Empty),
        "." | ".." => Err(TopicNameError::Dots),
        _ if !name.bytes().all(legal) => Err(TopicNameError::Character),
        _ if name.len() > MAX_LENGTH => Err(TopicNameError::TooLong(name.len())),
        _ if name.starts_with("__") => Err(TopicNameError::Reserved),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_kafka_takes() {
        let longest = "x".repeat(MAX_LENGTH);
        for name in ["a", "outbox.event.Order_1-x", "...", "_one", longest.as_str()] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn refuses_the_rest_and_says_why() {
        let too_long = "x".repeat(300);
        for (name, error) in [
            ("", TopicNameError::Empty),
            (".", TopicNameError::Dots),
            ("..", TopicNameError::Dots),
            ("a b", TopicNameError::Character),
            ("a/b", TopicNameError::Character),
            ("a\r\nb", TopicNameError::Character),
            ("a\0b", TopicNameError::Character),
            ("é", TopicNameError::Character),
            ("__consumer_offsets", TopicNameError::Reserved),
            ("outbox-router.positions", TopicNameError::Reserved),
            (too_long.as_str(), TopicNameError::TooLong(300)),
        ] {
            assert_eq!(check(name), Err(error), "{name:?}");
        }
    }
}
