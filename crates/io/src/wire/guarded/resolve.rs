//! Names become addresses here, and an address that may not be reached goes no further.
//!
//! Guarantees: what is given to the client to connect to is what was looked at: there is no second look-up between
//! the two that could say something else. One address that may not be reached is enough to refuse its name, as the
//! choice among several is not ours. Leaves to others: addresses that stand in a URL themselves.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::net::{Net, is_public};

/// The most addresses of a name that are looked at and tried.
const ADDRESSES_MAX: usize = 16;

/// What knows the addresses of names.
#[async_trait]
pub trait Names: Send + Sync + fmt::Debug {
    /// All addresses of a name.
    async fn look_up(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// The resolver of the machine.
#[derive(Debug)]
pub(super) struct SystemNames;

#[async_trait]
impl Names for SystemNames {
    async fn look_up(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((name, 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

/// What may be reached although it is not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// A host by its name, wherever it is.
    Host(String),
    /// A part of the address space.
    Net(Net),
}

/// Decides which addresses may be reached.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) names: Arc<dyn Names>,
    pub(super) allowed: Arc<[Allowed]>,
}

/// Why a name or an address is not asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(super) struct Barred {
    pub(super) why: String,
}

impl Gate {
    /// Whether an address may be reached, as that of a name or on its own.
    pub(super) fn check(&self, name: Option<&str>, address: IpAddr) -> Result<(), Barred> {
        let allows = |allowed: &Allowed| match allowed {
            Allowed::Host(host) => name.is_some_and(|name| name.eq_ignore_ascii_case(host)),
            Allowed::Net(net) => net.contains(address),
        };
        if is_public(address) || self.allowed.iter().any(allows) {
            return Ok(());
        }
        Err(Barred { why: format!("the address {address} is not a public one") })
    }

    async fn addresses(&self, name: &str) -> Result<Vec<SocketAddr>, BoxError> {
        let found = self.names.look_up(name).await?;
        if found.is_empty() || found.len() > ADDRESSES_MAX {
            return Err(Box::new(Barred {
                why: format!("the name has {} addresses", found.len()),
            }));
        }
        for address in &found {
            self.check(Some(name), *address)?;
        }
        // The port is that of the URL.
        Ok(found.into_iter().map(|address| SocketAddr::new(address, 0)).collect())
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Resolve for Gate {
    fn resolve(&self, name: Name) -> Resolving {
        let gate = self.clone();
        Box::pin(async move {
            let addresses = gate.addresses(name.as_str()).await?;
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}
