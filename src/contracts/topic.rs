//! The topic of a contract.

/// A topic's name, with parameters if it depends on the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// `outbox.event.order`, or `orders.{region}`.
    pub address: String,
    /// The parameters in it by name, each with its meaning.
    pub parameters: Vec<(String, String)>,
}
