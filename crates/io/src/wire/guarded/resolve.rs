//! Resolves names, and refuses addresses that may not be reached.
//!
//! Guarantees: the client connects only to addresses that were checked: there is no second look-up that could
//! return others. One forbidden address is enough to refuse a name, because we do not control which address is
//! used. Leaves to others: literal addresses in a URL.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::net::{Net, is_public};

/// Names with more addresses are refused.
const ADDRESSES_MAX: usize = 16;

#[async_trait]
pub trait NameResolver: Send + Sync + fmt::Debug {
    /// Returns all addresses of a name.
    async fn look_up(&self, name: &str) -> std::io::Result<Vec<IpAddr>>;
}

#[derive(Debug)]
pub(super) struct SystemResolver;

#[async_trait]
impl NameResolver for SystemResolver {
    async fn look_up(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((name, 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

/// A destination that may be reached although it is not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedTarget {
    /// A host name, whatever its addresses.
    Host(String),
    Net(Net),
}

/// Decides which addresses may be reached.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) names: Arc<dyn NameResolver>,
    pub(super) allowed: Arc<[AllowedTarget]>,
    /// The configuration key of `allowed`, if there is one.
    pub(super) setting: Option<&'static str>,
}

/// Why a name or an address may not be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(super) struct AddressRefusal {
    pub(super) why: String,
}

impl Gate {
    /// Checks an address, either of a name or a literal one.
    pub(super) fn check(&self, name: Option<&str>, address: IpAddr) -> Result<(), AddressRefusal> {
        let allows = |allowed: &AllowedTarget| match allowed {
            AllowedTarget::Host(host) => name.is_some_and(|name| is_same_name(name, host)),
            AllowedTarget::Net(net) => net.contains(address),
        };
        if is_public(address) || self.allowed.iter().any(allows) {
            return Ok(());
        }
        Err(self.refused(&format!("the address {address} is not public")))
    }

    /// Refuses names of this machine (RFC 6761) before any lookup. Where all or some of its addresses are allowed, the
    /// lookup decides.
    pub(super) fn check_name(&self, name: &str) -> Result<(), AddressRefusal> {
        let absolute = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if absolute != "localhost" && !absolute.ends_with(".localhost") {
            return Ok(());
        }
        let own = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let allows = |allowed: &AllowedTarget| match allowed {
            AllowedTarget::Host(host) => is_same_name(name, host),
            AllowedTarget::Net(net) => own.iter().any(|address| net.contains(*address)),
        };
        match self.allowed.iter().any(allows) {
            true => Ok(()),
            false => Err(self.refused("localhost is this machine, not a public address")),
        }
    }

    /// A refusal that names the setting that would allow the address, if there is one.
    fn refused(&self, why: &str) -> AddressRefusal {
        let why = match self.setting {
            Some(setting) => format!("{why}; the setting {setting} can allow it"),
            None => why.to_owned(),
        };
        AddressRefusal { why }
    }

    async fn addresses(&self, name: &str) -> Result<Vec<SocketAddr>, BoxError> {
        let found = self.names.look_up(name).await?;
        if found.is_empty() || found.len() > ADDRESSES_MAX {
            return Err(Box::new(AddressRefusal {
                why: format!("the name has {} addresses", found.len()),
            }));
        }
        for address in &found {
            self.check(Some(name), *address)?;
        }
        // The client takes the port from the URL.
        Ok(found.into_iter().map(|address| SocketAddr::new(address, 0)).collect())
    }
}

/// Whether two names are the same; a dot at the end of a name changes nothing.
fn is_same_name(one: &str, other: &str) -> bool {
    let absolute = |name: &'_ str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    absolute(one) == absolute(other)
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
