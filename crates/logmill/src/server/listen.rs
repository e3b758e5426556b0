//! The addresses at which the server listens.
//!
//! Guarantees: an address in use is an error before anything else is started. Leaves to others: serving
//! ([`logmill_serve::http`]).

use std::net::SocketAddr;

use logmill_serve::http;
use tokio::net::TcpListener;

use crate::config::Settings;
use crate::error::{Error, Result};

/// Listens for HTTP, if configured; before everything else, so that a port in use fails the start at once.
pub(super) async fn listen(settings: &Settings) -> Result<Option<(TcpListener, SocketAddr)>> {
    match settings.server.listen() {
        None => Ok(None),
        Some(address) => Ok(Some(listen_at(address).await?)),
    }
}

/// Listens for health checks only, if an address is configured for them.
pub(crate) async fn listen_for_health(
    settings: &Settings,
) -> Result<Option<(TcpListener, SocketAddr)>> {
    match settings.server.health_listen() {
        None => Ok(None),
        Some(address) => Ok(Some(listen_at(address).await?)),
    }
}

/// Listens at an address; returns the actual one, in case any port was allowed.
pub(crate) async fn listen_at(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = http::listen(address).await?;
    let address = listener.local_addr();
    let address = address
        .map_err(|source| Error::System { doing: "read the address of the listener", source })?;
    Ok((listener, address))
}
