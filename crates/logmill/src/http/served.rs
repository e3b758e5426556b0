//! The chains that are served, each with its feed. One whose id was unknown at the start is added later.
//!
//! Guarantees: a chain that was found stays for as long as a request uses it. Leaves to others: opening chains.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::feed::Feed;
use crate::rpc::Served;

/// The chains that are served.
#[derive(Debug, Default)]
pub(super) struct ServedChains(RwLock<BTreeMap<u64, (Arc<Served>, Feed)>>);

impl ServedChains {
    pub(super) fn new(chains: BTreeMap<u64, Served>) -> Self {
        let served = Self::default();
        for (id, chain) in chains {
            served.add(id, chain);
        }
        served
    }

    /// Serves one more chain; gives it with the feed that is to be run for it.
    pub(super) fn add(&self, id: u64, chain: Served) -> (Arc<Served>, Feed) {
        let added = (Arc::new(chain), Feed::new());
        let mut chains = self.0.write().unwrap_or_else(PoisonError::into_inner);
        chains.insert(id, added.clone());
        added
    }

    pub(super) fn get(&self, id: u64) -> Option<(Arc<Served>, Feed)> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The id of the only chain, if there is just one.
    pub(super) fn only(&self) -> Option<u64> {
        let chains = self.0.read().unwrap_or_else(PoisonError::into_inner);
        chains.keys().next().copied().filter(|_| chains.len() == 1)
    }

    /// All of them, by their ids.
    pub(super) fn all(&self) -> Vec<(Arc<Served>, Feed)> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
