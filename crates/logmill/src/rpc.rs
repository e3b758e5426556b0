//! JSON-RPC 2.0: what Ethereum clients ask, answered from what is stored.
//!
//! ```text
//!   body ─▶ request (calls) ─▶ answers: call by call ─▶ method ─▶ one view of the chain ─▶ pieces of JSON
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`request`] | bodies, batches, ids |
//! | [`params`], [`criteria`] | what parameters and filters mean |
//! | [`logs`], [`blocks`] | the reads |
//! | [`filters`], [`subscriptions`] | hearing of changes, by polling and by WebSocket |
//! | [`answer`] | writing answers in pieces |
//! | [`error`] | every code |
//!
//! Guarantees: an answer comes from one moment of the chain; what is not stored is an error, never an empty answer;
//! every call has limits of time, blocks, results and bytes. Leaves to others: HTTP, keys, sockets
//! ([`crate::http`]). `docs/rpc.md` tells clients of all of it.

pub(crate) mod answer;
mod blocks;
mod criteria;
pub(crate) mod error;
mod filters;
mod logs;
mod params;
mod request;
pub(crate) mod subscriptions;

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::ChainSource;
use logmill_io::{Clock, Entropy};
use logmill_pipeline::Chain;
use logmill_pipeline::derive::Reader;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use answer::{Answer, Answers};
use blocks::which;
use error::{RpcError, RpcResult};
use filters::Filters;
use params::Params;
use request::Request;
use subscriptions::Subscriptions;

/// Limits of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The most calls of a batch.
    pub(crate) max_batch: usize,
    /// The most logs of an answer; a single block is never cut.
    pub(crate) max_results: usize,
    /// The most blocks of a query; 0 for any number.
    pub(crate) max_blocks: u64,
    /// The most bytes of the answer to a request.
    pub(crate) max_response_bytes: usize,
    /// How long a request may take.
    pub(crate) timeout: Duration,
    /// How long a filter lives without being asked.
    pub(crate) filter_ttl: Duration,
    /// The most filters of the process.
    pub(crate) max_filters: usize,
    /// The most subscriptions of a connection.
    pub(crate) max_subscriptions: usize,
    /// Whether methods that are not ours are passed on to the chain's nodes.
    pub(crate) pass_through: bool,
}

/// A chain that is served.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// What is stored of it.
    pub(crate) chain: Chain,
    /// Its nodes, if there are any.
    pub(crate) source: Option<Arc<dyn ChainSource>>,
    /// What operators are shown of it.
    pub(crate) status: Arc<dyn ChainStatus>,
    /// What is derived of it, if anything is.
    pub(crate) reader: Option<Reader>,
}

/// What operators are shown of a chain beyond what is stored of it.
pub(crate) trait ChainStatus: Send + Sync + std::fmt::Debug {
    /// How far ingest and derive are, as JSON.
    fn status_json(&self) -> serde_json::Value;
}

/// What answers calls, for all chains.
#[derive(Debug)]
pub(crate) struct Rpc {
    limits: Limits,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    filters: Filters,
}

/// Every method, for metrics: their names may be labels, those that clients think of may not.
const METHODS: [&str; 31] = [
    "eth_blockNumber",
    "eth_chainId",
    "eth_getBlockByHash",
    "eth_getBlockByNumber",
    "eth_getBlockReceipts",
    "eth_getBlockTransactionCountByHash",
    "eth_getBlockTransactionCountByNumber",
    "eth_getFilterChanges",
    "eth_getFilterLogs",
    "eth_getLogs",
    "eth_getTransactionByBlockHashAndIndex",
    "eth_getTransactionByBlockNumberAndIndex",
    "eth_getTransactionByHash",
    "eth_getTransactionReceipt",
    "eth_getUncleCountByBlockHash",
    "eth_getUncleCountByBlockNumber",
    "eth_newBlockFilter",
    "eth_newFilter",
    "eth_subscribe",
    "eth_uninstallFilter",
    "eth_unsubscribe",
    "logmill_coverage",
    "logmill_explain",
    "logmill_getLogs",
    "net_listening",
    "net_version",
    "rpc_modules",
    "web3_clientVersion",
    "web3_sha3",
    "other",
    "passed_on",
];

/// What may be passed on begins with one of these.
const PASSED_ON: [&str; 5] = ["debug_", "eth_", "net_", "trace_", "web3_"];
/// What is not passed on all the same: it uses keys of the node, or lasts beyond the call.
const KEPT_BACK: [&str; 8] = [
    "eth_accounts",
    "eth_newPendingTransactionFilter",
    "eth_sendTransaction",
    "eth_sign",
    "eth_signTransaction",
    "eth_signTypedData",
    "eth_signTypedData_v4",
    "eth_submitWork",
];

impl Rpc {
    /// With these limits.
    pub(crate) fn new(limits: Limits, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { limits, clock, entropy, filters: Filters::default() }
    }

    /// The answers to a request in at most so many bytes, once there is room to work on it. If there is none in the
    /// time of a request, that is the answer.
    pub(crate) async fn answers(
        self: &Arc<Self>,
        served: &Arc<Served>,
        room: &Arc<Semaphore>,
        body: &[u8],
        bytes_max: usize,
    ) -> RpcResult<Answers> {
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(room).acquire_owned() => permit.ok(),
            () = self.clock.sleep(self.limits.timeout) => {
                return Err(RpcError::unavailable("too many requests at the moment"));
            }
        };
        let request = Request::read(body, self.limits.max_batch);
        let (rpc, served) = (Arc::clone(self), Arc::clone(served));
        Ok(Answers::new(rpc, served, request, bytes_max, permit))
    }

    /// The limits of calls.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Answers one call.
    async fn call(
        &self,
        served: &Served,
        method: &str,
        params: Option<&RawValue>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let started = self.clock.monotonic();
        let label = METHODS.iter().find(|name| **name == method).copied().unwrap_or("other");
        let answer = match label {
            "other" | "passed_on" => self.pass(served, method, params).await,
            _ => self.ours(served, method, Params::read(params)?, session).await,
        };
        let took = self.clock.monotonic().saturating_sub(started);
        let outcome = if answer.is_ok() { "ok" } else { "error" };
        metrics::counter!("logmill_rpc_calls_total", "method" => label, "outcome" => outcome)
            .increment(1);
        metrics::histogram!("logmill_rpc_call_seconds", "method" => label).record(took);
        answer
    }

    async fn ours(
        &self,
        served: &Served,
        method: &str,
        params: Params<'_>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let params = &params;
        match method {
            "eth_getLogs" => self.get_logs(served, params).await,
            "eth_blockNumber" => self.block_number(served).await,
            "eth_chainId" => Ok(Answer::quantity(served.chain.chain_id())),
            "net_version" => Answer::json(&served.chain.chain_id().to_string()),
            "net_listening" => Answer::json(&true),
            "web3_clientVersion" => Answer::json(&client_version()),
            "web3_sha3" => {
                let bytes: alloy_primitives::Bytes = params.read_at(0)?;
                Answer::json(&alloy_primitives::keccak256(&bytes))
            }
            "rpc_modules" => Answer::json(&json!({
                "eth": "1.0", "logmill": "1.0", "net": "1.0", "rpc": "1.0", "web3": "1.0"
            })),
            "eth_getBlockByNumber" => self.block(served, which(params, false)?, params).await,
            "eth_getBlockByHash" => self.block(served, which(params, true)?, params).await,
            "eth_getBlockReceipts" => self.receipts(served, params.read_at(0)?).await,
            "eth_getTransactionByHash" => self.transaction(served, params).await,
            "eth_getTransactionReceipt" => self.receipt(served, params).await,
            "eth_getTransactionByBlockHashAndIndex" => {
                self.transaction_at(served, which(params, true)?, params).await
            }
            "eth_getTransactionByBlockNumberAndIndex" => {
                self.transaction_at(served, which(params, false)?, params).await
            }
            "eth_getBlockTransactionCountByHash" => {
                self.count(served, which(params, true)?, |block| block.transactions.len()).await
            }
            "eth_getBlockTransactionCountByNumber" => {
                self.count(served, which(params, false)?, |block| block.transactions.len()).await
            }
            "eth_getUncleCountByBlockHash" => {
                self.count(served, which(params, true)?, |block| block.uncles.len()).await
            }
            "eth_getUncleCountByBlockNumber" => {
                self.count(served, which(params, false)?, |block| block.uncles.len()).await
            }
            _ => self.lasting(served, method, params, session).await,
        }
    }

    /// Filters, subscriptions, and our own methods.
    async fn lasting(
        &self,
        served: &Served,
        method: &str,
        params: &Params<'_>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        match method {
            "eth_newFilter" => self.new_filter(served, params).await,
            "eth_newBlockFilter" => self.new_block_filter(served),
            "eth_getFilterChanges" => self.filter_changes(served, params),
            "eth_getFilterLogs" => self.filter_logs(served, params).await,
            "eth_uninstallFilter" => self.uninstall(served, params),
            "eth_subscribe" => self.subscribe(served, params, session),
            "eth_unsubscribe" => self.unsubscribe(params, session),
            "logmill_coverage" => self.coverage(served).await,
            "logmill_explain" => self.explain(served, params).await,
            "logmill_getLogs" => self.page_of_logs(served, params).await,
            _ => Err(RpcError::no_method(method)),
        }
    }

    async fn block_number(&self, served: &Served) -> RpcResult<Answer> {
        let head = served.chain.view().await?.head();
        let head = head.ok_or_else(|| RpcError::unknown_block("latest"))?;
        Ok(Answer::quantity(head.number))
    }

    /// Asks a node, if that is allowed.
    async fn pass(
        &self,
        served: &Served,
        method: &str,
        params: Option<&RawValue>,
    ) -> RpcResult<Answer> {
        let may_pass = self.limits.pass_through
            && PASSED_ON.iter().any(|before| method.starts_with(before))
            && !KEPT_BACK.contains(&method);
        let Some(source) = served.source.as_ref().filter(|_| may_pass) else {
            return Err(RpcError::no_method(method));
        };
        let params = params.map_or("[]", RawValue::get);
        let answer = source.pass(method, params).await.map_err(RpcError::of_node)?;
        match serde_json::from_str::<&RawValue>(&answer) {
            Ok(_) => Ok(Answer::Text(answer.into_bytes())),
            Err(_) => Err(RpcError::unavailable("the node's answer is not JSON")),
        }
    }
}

fn client_version() -> String {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    format!("logmill/v{version}/{os}-{arch}")
}
