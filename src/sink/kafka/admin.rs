//! The administrative client, which is replaced before it takes much memory.
//!
//! librdkafka keeps about 5 kB for each topic that a metadata request has named, until the client ends. The producers need that for
//! the topics that they write to; here it would only grow.

use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::admin::AdminClient;
use rdkafka::config::ClientConfig;

use super::client::Client;
use super::context::AdminContext;
use super::properties;
use crate::error::Error;

/// After how many topics the client is replaced.
const MAX_TOPICS: usize = 200;

/// A reference to the client.
pub(super) type AdminRef = Client<Arc<AdminClient<AdminContext>>>;

/// The client of a session.
pub(super) struct Admin {
    settings: ClientConfig,
    context: AdminContext,
    current: Mutex<Current>,
}

struct Current {
    client: AdminRef,
    /// How many times a request has named a topic.
    topics: usize,
}

impl Admin {
    pub(super) fn new(settings: ClientConfig, context: AdminContext) -> Result<Self, Error> {
        let current = Mutex::new(Current { client: make(&settings, &context)?, topics: 0 });
        Ok(Admin { settings, context, current })
    }

    /// The client for requests that name no topic to librdkafka itself.
    pub(super) fn client(&self) -> AdminRef {
        self.client_for(0)
    }

    /// The client for metadata requests that name this many topics.
    pub(super) fn client_for(&self, topics: usize) -> AdminRef {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // if no other client can be made, this one still works
        if current.topics + topics > MAX_TOPICS
            && current.topics > 0
            && let Ok(client) = make(&self.settings, &self.context)
        {
            *current = Current { client, topics: 0 };
        }
        current.topics += topics;
        Client::new(Arc::clone(&current.client))
    }
}

/// librdkafka's administrative client is a producer that is never given a record.
fn make(settings: &ClientConfig, context: &AdminContext) -> Result<AdminRef, Error> {
    Ok(Client::new(Arc::new(properties::make(settings, context.clone())?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_replaced_after_many_topics() {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", "127.0.0.1:1");
        let admin = Admin::new(settings, AdminContext::default()).unwrap();
        let same = |one: &AdminRef, other: &AdminRef| Arc::ptr_eq(one, other);
        let first = admin.client();
        for _ in 0..MAX_TOPICS {
            assert!(same(&first, &admin.client_for(1)));
        }
        assert!(same(&first, &admin.client()));
        let second = admin.client_for(1);
        assert!(!same(&first, &second));
        assert!(same(&second, &admin.client_for(MAX_TOPICS - 1)));
        assert!(!same(&second, &admin.client_for(MAX_TOPICS + 1)), "more than a client may have");
    }
}
