//! "This event cannot be sent": one type, whether its row cannot be read, no record can be made of it, its topic cannot be had or the
//! broker refuses it. Where dead letters are kept it becomes one of them, and else the router stops with it.

/// Why an event cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsendable {
    /// In a word.
    pub reason: Reason,
    /// In a sentence.
    pub what: String,
    /// What to do about it; empty if it may pass by itself.
    pub remedy: String,
}

impl Unsendable {
    /// With a reason, in a sentence, and what to do.
    pub fn new(reason: Reason, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Unsendable { reason, what: what.into(), remedy: remedy.into() }
    }

    /// What is kept with a dead letter.
    pub fn detail(&self) -> String {
        format!("{}. {}", self.what, self.remedy)
    }
}

/// Why it cannot be sent, in a word: what dead letters are selected and counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No record can be made of it.
    Unroutable,
    /// Its payload breaks its contract.
    Contract,
    /// It is larger than the topic or the client takes.
    TooLarge,
    /// Its topic cannot be had.
    Topic,
    /// The broker or the client refuses it.
    Refused,
    /// Nothing is wrong with it, but an earlier event of its aggregate is parked.
    Behind,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 6] = [
        Reason::Unroutable,
        Reason::Contract,
        Reason::TooLarge,
        Reason::Topic,
        Reason::Refused,
        Reason::Behind,
    ];

    /// As the table, the metrics and the command line have it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Unroutable => "unroutable",
            Reason::Contract => "contract",
            Reason::TooLarge => "too-large",
            Reason::Topic => "topic",
            Reason::Refused => "refused",
            Reason::Behind => "behind",
        }
    }

    /// That of a name; what a later version may have written counts as a refusal.
    pub fn of(name: &str) -> Reason {
        Reason::ALL.into_iter().find(|reason| reason.name() == name).unwrap_or(Reason::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::of(reason.name()), reason);
        }
        assert_eq!(Reason::of("new"), Reason::Refused);
    }
}
