//! A client of librdkafka that may be dropped on any thread.
//!
//! Ending a client purges its queues and joins its threads, one of which may be waiting for a name server. So the last
//! reference is dropped on a thread of its own, unless somebody waits for the end.

use std::ops::Deref;
use std::thread;

/// A client, or a reference to one.
pub(super) struct Client<T: Clone + Send + 'static> {
    client: T,
    // dropped after `client`, so it is the last reference of the two
    last: Last<T>,
}

struct Last<T: Send + 'static>(Option<T>);

impl<T: Clone + Send + 'static> Client<T> {
    pub(super) fn new(client: T) -> Self {
        Client { last: Last(Some(client.clone())), client }
    }

    /// Ends the client on this thread, if there is no other reference. Blocks.
    pub(super) fn end(self) {
        let Client { client, mut last } = self;
        drop(client);
        drop(last.0.take());
    }
}

impl<T: Clone + Send + 'static> Deref for Client<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.client
    }
}

impl<T: Send + 'static> Drop for Last<T> {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            // not a task, because the runtime may be shutting down; if no thread can be started, the client ends here
            drop(thread::Builder::new().name("kafka-end".to_owned()).spawn(move || drop(client)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;

    use super::*;

    struct SaysWhere(Sender<ThreadId>);

    impl Drop for SaysWhere {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn a_dropped_client_ends_on_another_thread() {
        let (ended, ends) = channel();
        let here = thread::current().id();
        drop(Client::new(Arc::new(SaysWhere(ended.clone()))));
        assert_ne!(ends.recv().unwrap(), here);
        let client = Client::new(Arc::new(SaysWhere(ended)));
        let reference = Client::new(Arc::clone(&client));
        client.end();
        assert!(ends.try_recv().is_err());
        reference.end();
        assert_eq!(ends.recv().unwrap(), here);
    }
}
