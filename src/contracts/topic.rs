//! The topic of a contract.

/// A topic's name, with parameters where it depends on the single event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// `outbox.event.order`, or `orders.{region}`.
    pub address: String,
    /// The parameters in it, by name, each with what it stands for.
    pub parameters: Vec<(String, String)>,
}
