//! Tokens.

use uuid::Uuid;

/// Names a lease, or a request that has begun. If a newer holder has taken over, a call with this token changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub(crate) Uuid);

impl Token {
    /// A new one, for one event or request. A call that gets it may be repeated with it if the answer was lost.
    #[must_use]
    pub fn random() -> Self {
        Token(Uuid::new_v4())
    }
}
