//! Signal handlers of commands that run for long.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, ErrorCode};

/// Calls `act` for each signal of this kind.
///
/// # Errors
/// The process cannot open another file.
pub(super) fn at_signal(kind: SignalKind, mut act: impl FnMut() + Send + 'static) -> Result<(), Error> {
    let mut signals = signal(kind).map_err(|error| {
        Error::usage(
            ErrorCode::ProcessLimits,
            format!("Cannot listen for signals: {error}"),
            "Raise the limits of the process",
        )
    })?;
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            act();
        }
    });
    Ok(())
}

/// A token that the first signal of one of these kinds cancels.
pub(super) fn cancelled_by(kinds: &[SignalKind]) -> Result<CancellationToken, Error> {
    let stop = CancellationToken::new();
    for kind in kinds {
        let stop = stop.clone();
        at_signal(*kind, move || stop.cancel())?;
    }
    Ok(stop)
}
