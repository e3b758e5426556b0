//! The served chains, each with its feed. A chain whose id is unknown at the start is added later.
//!
//! Guarantees: a chain stays alive for as long as a request uses it; while one is awaited, a request for a chain that
//! is not served is asked to retry. Leaves to others: opening chains.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};

use super::feed::Feed;
use super::problem;
use crate::rpc::ServedChain;
use crate::rpc::error::RpcError;

/// Seconds after which a client should retry while a chain is not known yet.
const RETRY: (HeaderName, &str) = (RETRY_AFTER, "5");
const NOT_KNOWN: &str = "the chain id is not known yet: no node (chain.rpc_urls) has answered since the start, and \
    chain.id is not set; retry later";
const NOT_SERVED: &str =
    "this chain is not served, or the path names no chain although several are served";
/// Maximum number of characters of a wrong chain that an error repeats.
const CHAIN_CHARS_SHOWN: usize = 32;

/// The chain in a path, if the path has one.
pub(super) type PathChain = Result<Option<Path<String>>, PathRejection>;

/// Parses the chain id of a path; `None` if the path names no chain.
pub(super) fn path_chain(chain: PathChain) -> Result<Option<u64>, Response> {
    let wrong = |named: &str| {
        let why = format!(
            "{named} is no chain id: the path must have it in decimal digits, such as /rpc/1"
        );
        problem(StatusCode::BAD_REQUEST, &why)
    };
    match chain {
        Ok(None) => Ok(None),
        Ok(Some(Path(text))) => text.parse().map(Some).map_err(|_| {
            let shown: String = text.chars().take(CHAIN_CHARS_SHOWN).collect();
            wrong(&format!("{shown:?}"))
        }),
        Err(_) => Err(wrong("the last part of the path")),
    }
}

#[derive(Debug, Default)]
pub(super) struct ServedChains {
    chains: RwLock<BTreeMap<u64, (Arc<ServedChain>, Feed)>>,
    /// Whether another chain is served as soon as a node reports its id.
    is_awaited: AtomicBool,
}

impl ServedChains {
    /// `is_awaited`: another chain is added later.
    pub(super) fn new(chains: BTreeMap<u64, ServedChain>, is_awaited: bool) -> Self {
        let served = Self { is_awaited: AtomicBool::new(is_awaited), ..Self::default() };
        for (id, chain) in chains {
            served.add(id, chain);
        }
        served
    }

    /// Adds a chain; returns it with the feed that must be run for it. If the chain was already served through a handle
    /// that nothing updates any more, clients of that handle are disconnected, because they would wait forever.
    pub(super) fn add(&self, id: u64, chain: ServedChain) -> (Arc<ServedChain>, Feed) {
        let added = (Arc::new(chain), Feed::new());
        let mut chains = self.chains.write().unwrap_or_else(PoisonError::into_inner);
        let before = chains.insert(id, added.clone());
        drop(chains);
        if let Some((before, _)) = before {
            before.chain.close_changes();
        }
        added
    }

    pub(super) fn get(&self, id: u64) -> Option<(Arc<ServedChain>, Feed)> {
        self.chains.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The id of the chain, if there is exactly one.
    pub(super) fn only(&self) -> Option<u64> {
        let chains = self.chains.read().unwrap_or_else(PoisonError::into_inner);
        chains.keys().next().copied().filter(|_| chains.len() == 1)
    }

    /// Records that no more chains will be added.
    pub(super) fn all_known(&self) {
        self.is_awaited.store(false, Ordering::Release);
    }

    /// Whether a chain that is not served may be the one whose id is not known yet.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Acquire)
    }

    /// The response if no chain is found.
    pub(super) fn not_found(&self) -> Response {
        match self.is_awaited() {
            true => ([RETRY], problem(StatusCode::SERVICE_UNAVAILABLE, NOT_KNOWN)).into_response(),
            false => problem(StatusCode::NOT_FOUND, NOT_SERVED),
        }
    }

    /// The same response for JSON-RPC requests.
    pub(super) fn not_found_by_rpc(&self) -> Response {
        if !self.is_awaited() {
            return self.not_found();
        }
        let headers = [RETRY, (CONTENT_TYPE, "application/json")];
        let error = RpcError::unavailable(NOT_KNOWN).answer();
        (StatusCode::SERVICE_UNAVAILABLE, headers, error).into_response()
    }

    pub(super) fn all(&self) -> Vec<(Arc<ServedChain>, Feed)> {
        self.chains.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
