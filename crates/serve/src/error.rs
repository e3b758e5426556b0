//! Why a process cannot serve, or cannot continue to.
//!
//! Guarantees: errors of stores keep their type. Leaves to others: exit codes and hints, and the errors that clients
//! receive ([`crate::http`], [`crate::rpc`]).

use std::net::SocketAddr;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] logmill_io::Error),
    #[error(transparent)]
    Pipeline(#[from] logmill_pipeline::Error),
    #[error(transparent)]
    Meter(#[from] logmill_meter::Error),
    #[error("listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("read the address served")]
    Address(#[source] std::io::Error),
    #[error("other machines can reach {address}, but no API keys are set")]
    NoKeys { address: SocketAddr },
    #[error("record metrics")]
    Metrics(#[source] metrics_exporter_prometheus::BuildError),
    #[error("a task panicked")]
    Panicked(#[from] logmill_io::TaskPanic),
}

impl Error {
    /// Whether a store can never work again; see [`logmill_io::Error::is_fatal`].
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Store(error) => error.is_fatal(),
            Self::Pipeline(error) => error.is_fatal(),
            Self::Meter(error) => error.is_fatal(),
            _ => false,
        }
    }
}
