//! What the programs measure with that lay routers side by side: a backlog, load, the time that events take, and where
//! all of it was.

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

/// As the configuration writes it.
pub(crate) fn mode_name<S: Serializer>(mode: &DeliveryMode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode.name())
}
