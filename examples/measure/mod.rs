//! Shared by the programs that compare routers: a backlog, a load, measurements of throughput and latency, and a description of
//! the machine.

pub(crate) mod backlog;
pub(crate) mod catch_up;
pub(crate) mod ground;
pub(crate) mod latency;
pub(crate) mod machine;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod writers;

use outbox_router::config::DeliveryMode;
use serde::Serializer;

/// Serializes a delivery mode as in the configuration.
pub(crate) fn mode_name<S: Serializer>(mode: &DeliveryMode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode.name())
}
