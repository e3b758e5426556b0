//! Signals that ask the server to stop.
//!
//! Guarantees: from [`Signals::new`] on they no longer end the process by themselves. Leaves to others: the reaction
//! to a signal.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Error, Result};

/// SIGINT and SIGTERM.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From here on they no longer end the process by themselves.
    pub(crate) fn new() -> Result<Self> {
        let listen = |kind| {
            signal(kind).map_err(|source| Error::System { doing: "listen for signals", source })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Awaits `opening`; `None` if a signal comes first. A hanging store or a long migration must not delay the
    /// reaction to a signal.
    pub(crate) async fn or_stopped<T>(
        &mut self,
        opening: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        tokio::select! {
            biased;
            opened = opening => opened.map(Some),
            name = self.next() => {
                tracing::info!(signal = name, "stopping");
                Ok(None)
            }
        }
    }

    /// Waits for the next signal; returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
