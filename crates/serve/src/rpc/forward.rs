//! Pass-through: methods that wallets need and that the chain's nodes must answer, such as `eth_call`.
//!
//! Read methods of a fixed list are passed on; any other method only if the settings name it. Answers about blocks that
//! cannot change are cached.
//!
//! Guarantees: bounds on concurrent calls per chain, time, size of calls and answers, and memory of the cache; the
//! cache identifies a block by its hash, so that no answer outlives a reorganization; the `data` of a node's error is
//! passed on. Leaves to others: choice of the node, and failover ([`logmill_chain::NodeSource::pass`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::B256;
use bytes::Bytes;
use logmill_chain::NodeSource;
use logmill_pipeline::View;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::answer::Answer;
use super::block_wait::SENDS;
use super::error::{RpcError, RpcResult};
use super::params::{BlockSelector, Tag};
use super::{Rpc, ServedChain};

/// Read methods, with the position of their block parameter if they have one.
const READS: [(&str, Option<usize>); 12] = [
    ("eth_call", Some(1)),
    ("eth_createAccessList", Some(1)),
    ("eth_estimateGas", Some(1)),
    ("eth_gasPrice", None),
    ("eth_getBalance", Some(1)),
    ("eth_getCode", Some(1)),
    ("eth_getProof", Some(2)),
    ("eth_getStorageAt", Some(2)),
    ("eth_getTransactionCount", Some(1)),
    ("eth_maxPriorityFeePerGas", None),
    ("eth_simulateV1", Some(1)),
    ("net_peerCount", None),
];

/// Maximum number of methods that the settings may name.
pub const NAMED_MAX: usize = 256;
/// An answer is cached only if it takes at most one part in this many of the cache.
const CACHED_PART: usize = 16;
/// Typical size of a cached answer, from which the cache estimates its number of entries.
const CACHED_BYTES_USUAL: usize = 512;
/// Overhead of a cache entry.
const ENTRY_BYTES: u64 = 128;

/// Settings and limits of the pass-through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardLimits {
    /// Whether anything is passed on.
    pub is_on: bool,
    /// Methods besides the read methods: names, or prefixes followed by `*`.
    pub named: Vec<String>,
    /// Concurrent calls per chain.
    pub max_calls: usize,
    /// Bytes of a call's parameters.
    pub max_call_bytes: usize,
    pub max_answer_bytes: usize,
    /// Time limit of a call, including the wait for one of the `max_calls` permits.
    pub timeout: Duration,
    /// Size of the cache; 0 disables it.
    pub cache_bytes: usize,
}

/// Checks a method name or prefix from the settings.
pub fn may_be_named(name: &str) -> Result<(), String> {
    let stem = name.strip_suffix('*').unwrap_or(name);
    let is_name = stem.contains('_')
        && stem.len() <= 64
        && stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_name {
        return Err(format!("{name:?} is neither a method name nor a prefix such as trace_*"));
    }
    Ok(())
}

/// Cache key: a call whose answer cannot change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CacheKey {
    chain_id: u64,
    method: Box<str>,
    block: B256,
    /// The parameters without the block.
    others: Box<str>,
}

#[derive(Clone, Debug)]
struct BytesWeighter;

impl Weighter<CacheKey, Bytes> for BytesWeighter {
    fn weight(&self, cache_key: &CacheKey, answer: &Bytes) -> u64 {
        let bytes = cache_key.method.len() + cache_key.others.len() + answer.len();
        u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(ENTRY_BYTES)
    }
}

#[derive(Debug)]
pub(super) struct Forwarder {
    limits: ForwardLimits,
    /// Permits by chain, so that hanging nodes of one chain cannot use those of another. One entry per served chain.
    calls: Mutex<BTreeMap<u64, Arc<Semaphore>>>,
    cache: Option<Cache<CacheKey, Bytes, BytesWeighter>>,
}

impl Forwarder {
    pub(super) fn new(limits: ForwardLimits) -> Self {
        let bytes = u64::try_from(limits.cache_bytes).unwrap_or(u64::MAX);
        let usual = limits.cache_bytes / CACHED_BYTES_USUAL;
        let cache = (bytes > 0).then(|| Cache::with_weighter(usual.max(1), bytes, BytesWeighter));
        Self { calls: Mutex::default(), limits, cache }
    }

    /// The permits for calls to the nodes of a chain.
    fn calls_of(&self, chain_id: u64) -> Arc<Semaphore> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let of_chain = calls.entry(chain_id);
        Arc::clone(of_chain.or_insert_with(|| Arc::new(Semaphore::new(self.limits.max_calls))))
    }

    pub(super) fn allows(&self, method: &str) -> bool {
        let named = |name: &String| match name.strip_suffix('*') {
            Some(beginning) => method.starts_with(beginning),
            None => name == method,
        };
        self.limits.is_on
            && (READS.iter().any(|(name, _)| *name == method)
                || self.limits.named.iter().any(named))
    }

    /// The methods that are passed on; prefixes keep their `*`.
    pub(super) fn names(&self) -> Vec<String> {
        let reads = READS.iter().map(|(name, _)| (*name).to_owned());
        let mut names: Vec<String> = match self.limits.is_on {
            true => reads.chain(self.limits.named.iter().cloned()).collect(),
            false => Vec::new(),
        };
        names.sort();
        names.dedup();
        names
    }
}

impl Rpc {
    /// Passes a call on to a node, if the method is allowed.
    pub(super) async fn pass(
        &self,
        served: &ServedChain,
        method: &str,
        params: Option<&RawValue>,
    ) -> RpcResult<Answer> {
        if !self.forwarder.allows(method) {
            return Err(RpcError::no_method(method));
        }
        let label =
            READS.iter().find(|(name, _)| *name == method).map_or("named", |(name, _)| name);
        let answer = self.forward_cached(served, method, params).await;
        if let Some(source) = served.source.as_ref().filter(|_| SENDS.contains(&method)) {
            self.wait_after_send(served, &**source).await;
        }
        let outcome = if answer.is_ok() { "ok" } else { "error" };
        metrics::counter!("logmill_rpc_passed_on_total", "method" => label, "outcome" => outcome)
            .increment(1);
        answer
    }

    async fn forward_cached(
        &self,
        served: &ServedChain,
        method: &str,
        params: Option<&RawValue>,
    ) -> RpcResult<Answer> {
        let cache = self.forwarder.cache.as_ref();
        let cache_key = match cache {
            Some(_) => cache_key(served, method, params).await?,
            None => None,
        };
        let (Some(cache), Some(cache_key)) = (cache, cache_key) else {
            return self.forward(served, method, params).await;
        };
        let found = cache.get(&cache_key);
        let outcome = if found.is_some() { "hit" } else { "miss" };
        metrics::counter!("logmill_rpc_passed_on_cache_total", "outcome" => outcome).increment(1);
        if let Some(answer) = found {
            return Ok(Answer::Text(answer.to_vec()));
        }
        let answer = self.forward(served, method, params).await?;
        if let Answer::Text(text) = &answer
            && text.len() <= self.forwarder.limits.cache_bytes / CACHED_PART
            && text != b"null"
        {
            cache.insert(cache_key, Bytes::copy_from_slice(text));
        }
        Ok(answer)
    }

    /// Passes a call on to a node, within the limits. The caller checks that the method is allowed.
    pub(super) async fn forward(
        &self,
        served: &ServedChain,
        method: &str,
        params: Option<&RawValue>,
    ) -> RpcResult<Answer> {
        let limits = &self.forwarder.limits;
        let Some(source) = served.source.as_ref().filter(|_| limits.is_on) else {
            return Err(RpcError::no_node_for(method));
        };
        let params = params.map(RawValue::get).filter(|params| *params != "null").unwrap_or("[]");
        if params.len() > limits.max_call_bytes {
            let max = limits.max_call_bytes;
            let why = format!("the parameters of {method} have more than {max} bytes");
            return Err(RpcError::limit(why, u64::try_from(max).unwrap_or(u64::MAX)));
        }
        let answer = self.ask_node(served, source, method, params).await?;
        Ok(Answer::Text(answer.into_bytes()))
    }

    /// Calls any method on a node and returns the JSON result, within the limits on concurrency, time and answer size.
    pub(super) async fn ask_node(
        &self,
        served: &ServedChain,
        source: &Arc<dyn NodeSource>,
        method: &str,
        params: &str,
    ) -> RpcResult<String> {
        let limits = &self.forwarder.limits;
        let calls = self.forwarder.calls_of(served.chain.chain_id());
        let asking = async {
            // The semaphore is never closed.
            let _permit = calls.acquire().await;
            metrics::gauge!("logmill_rpc_passed_on_under_way").increment(1);
            let _guard = InFlightGuard;
            source.pass(method, params).await.map_err(RpcError::of_node)
        };
        let answer = tokio::select! {
            biased;
            answer = asking => answer?,
            () = self.clock.sleep(limits.timeout) => {
                return Err(RpcError::unavailable("no node answered in time"));
            }
        };
        if answer.len() > limits.max_answer_bytes {
            let max = limits.max_answer_bytes;
            let why = format!("the node's answer has more than {max} bytes");
            return Err(RpcError::limit(why, u64::try_from(max).unwrap_or(u64::MAX)));
        }
        match serde_json::from_str::<&RawValue>(&answer) {
            Ok(_) => Ok(answer),
            Err(_) => Err(RpcError::unavailable("the node's answer is not JSON")),
        }
    }
}

/// Decrements the gauge of calls under way when it is dropped.
struct InFlightGuard;

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        metrics::gauge!("logmill_rpc_passed_on_under_way").decrement(1);
    }
}

/// Returns the cache key of a call whose block cannot change: named by hash, or final and named by number.
async fn cache_key(
    served: &ServedChain,
    method: &str,
    params: Option<&RawValue>,
) -> RpcResult<Option<CacheKey>> {
    let position = READS.iter().find(|(name, _)| *name == method).and_then(|(_, at)| *at);
    let (Some(position), Some(params)) = (position, params) else {
        return Ok(None);
    };
    let Ok(mut list) = serde_json::from_str::<Vec<&RawValue>>(params.get()) else {
        return Ok(None);
    };
    if position >= list.len() {
        return Ok(None);
    }
    let block = match BlockSelector::read(list.remove(position)) {
        Ok(BlockSelector::Hash(hash)) => hash,
        Ok(BlockSelector::Tag(Tag::Number(number))) => {
            match final_hash(&served.chain.view().await?, number).await? {
                Some(hash) => hash,
                None => return Ok(None),
            }
        }
        // The block of a tag changes; invalid parameters are for the node to reject.
        Ok(BlockSelector::Tag(_)) | Err(_) => return Ok(None),
    };
    let others = list.iter().map(|param| param.get()).collect::<Vec<&str>>().join(",");
    let chain_id = served.chain.chain_id();
    Ok(Some(CacheKey { chain_id, method: method.into(), block, others: others.into() }))
}

/// The hash of a block, if it is final and stored.
async fn final_hash(view: &View, number: u64) -> RpcResult<Option<B256>> {
    if view.finalized().is_none_or(|last| last.number < number) {
        return Ok(None);
    }
    Ok(view.block_ref(number).await?.map(|block| block.hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_methods_and_named_methods_are_passed_on() {
        let mut limits = ForwardLimits {
            is_on: true,
            named: vec!["eth_sendRawTransaction".to_owned(), "trace_*".to_owned()],
            max_calls: 1,
            max_call_bytes: 1,
            max_answer_bytes: 1,
            timeout: Duration::ZERO,
            cache_bytes: 0,
        };
        let named = Forwarder::new(limits.clone());
        limits.named.clear();
        let plain = Forwarder::new(limits.clone());
        limits.is_on = false;
        let off = Forwarder::new(limits);
        for (method, by_default, if_named) in [
            ("eth_call", true, true),
            ("eth_getProof", true, true),
            ("eth_sendRawTransaction", false, true),
            ("eth_sendRawTransactionSync", false, false),
            ("trace_block", false, true),
            ("eth_sendTransaction", false, false),
            ("eth_sign", false, false),
            ("eth_accounts", false, false),
            ("debug_traceCall", false, false),
            ("debug_setHead", false, false),
            ("personal_unlockAccount", false, false),
            ("admin_addPeer", false, false),
            ("miner_start", false, false),
            ("engine_newPayloadV4", false, false),
            ("anvil_setBalance", false, false),
            ("evm_mine", false, false),
            ("hardhat_reset", false, false),
            ("", false, false),
        ] {
            assert_eq!(plain.allows(method), by_default, "{method}");
            assert_eq!(named.allows(method), if_named, "{method}");
            assert!(!off.allows(method), "{method}");
        }
        assert!(off.names().is_empty());
        assert!(named.names().contains(&"trace_*".to_owned()));
        assert!(READS.is_sorted());
    }

    #[test]
    fn calls_of_one_chain_use_no_permits_of_another() {
        let limits = ForwardLimits {
            is_on: true,
            named: Vec::new(),
            max_calls: 1,
            max_call_bytes: 1,
            max_answer_bytes: 1,
            timeout: Duration::ZERO,
            cache_bytes: 0,
        };
        let forwarder = Forwarder::new(limits);
        let hanging = forwarder.calls_of(1);
        let held = hanging.try_acquire().expect("a place");
        assert!(forwarder.calls_of(1).try_acquire().is_err());
        assert!(forwarder.calls_of(2).try_acquire().is_ok());
        drop(held);
        assert!(forwarder.calls_of(1).try_acquire().is_ok());
    }

    #[test]
    fn a_name_is_a_method_or_a_prefix() {
        for name in ["eth_sendRawTransaction", "trace_*", "debug_trace*", "anvil_mine"] {
            assert_eq!(may_be_named(name), Ok(()), "{name}");
        }
        for name in ["*", "eth*", "", "eth call_", "eth_*_x", "é_x"] {
            assert!(may_be_named(name).is_err(), "{name}");
        }
    }
}
