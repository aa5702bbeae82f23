//! A broker of a test's own.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::instance::Instance;
use super::kafka::Kafka;
use super::proxy::Proxy;
use super::signal::{Signal, send};

/// No more private brokers than this at a time.
static PLACES: Semaphore = Semaphore::const_new(2);

/// A private broker; dropped, it is gone with its data.
pub(crate) struct PrivateKafka {
    instance: Instance,
    _place: SemaphorePermit<'static>,
}

impl PrivateKafka {
    /// Brings one up with settings as `name=value`.
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let place = PLACES.acquire().await.unwrap();
        PrivateKafka { instance: Instance::up("kafka", &[], settings), _place: place }
    }

    /// Brings one up whose second listener clients reach through `proxy`, which leads there from then on.
    pub(crate) async fn behind(proxy: &Proxy) -> Self {
        let broker = Self::start(&[
            "listeners=PLAINTEXT://127.0.0.1:{port},NETWORK://127.0.0.1:{extra_port},CONTROLLER://127.0.0.1:{controller_port}",
            &format!("advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},NETWORK://{}", proxy.address()),
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,NETWORK:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ])
        .await;
        proxy.lead_to(broker.extra());
        broker
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(self.instance.variable("TEST_KAFKA"))
    }

    /// The address of a second listener, if a setting uses `{extra_port}`.
    pub(crate) fn extra(&self) -> &str {
        self.instance.variable("TEST_KAFKA_EXTRA")
    }

    /// Freezes the process: it keeps its connections and says nothing.
    pub(crate) fn freeze(&self) {
        assert!(send(Signal::Stop, self.instance.pid()));
    }

    /// Lets a frozen one go on.
    pub(crate) fn thaw(&self) {
        assert!(send(Signal::Continue, self.instance.pid()));
    }

    /// Comes back when it is down.
    pub(crate) fn stop(&self) {
        self.instance.stop(&[]);
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        self.instance.kill();
    }

    /// Starts it again with the same data and port.
    pub(crate) fn start_again(&self) {
        self.instance.start(&[]);
    }
}
