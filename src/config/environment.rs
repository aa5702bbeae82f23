//! The router's own environment variables.

use pg_logical::Environment;

use crate::error::{Error, ErrorCode};

/// The prefix of the variables that override the configuration file.
pub const PREFIX: &str = "OUTBOX_ROUTER_";

/// The environment of this process.
///
/// # Errors
/// A variable that the configuration is read from (`OUTBOX_ROUTER_*`, `PG*`) is not UTF-8.
pub fn process() -> Result<Environment, Error> {
    Environment::process(PREFIX).map_err(|error| {
        Error::usage(
            ErrorCode::Environment,
            format!("The value of the variable {} is not UTF-8", error.variable),
            "Set it to UTF-8 text, or unset it",
        )
    })
}
