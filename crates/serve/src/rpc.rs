//! JSON-RPC 2.0 for Ethereum clients, answered from stored data.
//!
//! ```text
//!   body ─▶ request (calls) ─▶ answers: call by call ─▶ method ─▶ one view of the chain ─▶ pieces of JSON
//! ```
//!
//! | module | content |
//! |---|---|
//! | `request` | bodies, batches, ids |
//! | [`methods`] | the table of methods, and the documents generated from it |
//! | `params`, `criteria`, `hex` | parsing of parameters and filters |
//! | `logs`, `blocks`, `raw`, `fees`, `sync` | read methods |
//! | `filters`, `subscriptions` | changes by polling and by WebSocket; `fanout` renders each change once |
//! | [`forward`] | methods passed on to nodes |
//! | `answer`, `answers` | the result of a call; streaming of results |
//! | `block_wait` | short waits for blocks that are being ingested |
//! | `error` | every error code |
//!
//! Guarantees: an answer comes from one view of the chain; a query about blocks that are not stored is an error, never
//! an empty answer; every call is bounded in time, blocks, results and bytes. Leaves to others: HTTP, keys, sockets
//! ([`crate::http`]). `docs/rpc.md` is the reference for clients.

mod answer;
pub(crate) mod answers;
mod block_wait;
mod blocks;
mod criteria;
pub(crate) mod error;
pub(crate) mod fanout;
mod fees;
mod filters;
pub mod forward;
mod hex;
mod logs;
pub mod methods;
mod params;
mod raw;
mod request;
pub(crate) mod subscriptions;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::{Block, NodeSource};
use logmill_io::{Clock, Entropy};
use logmill_pipeline::Chain;
use logmill_pipeline::derive::Reader;
use logmill_pipeline::ingest::Progress;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use answer::Answer;
use answers::Answers;
use blocks::block_selector;
use error::{RpcError, RpcResult};
use fanout::Fanout;
use filters::Filters;
use forward::{ForwardLimits, Forwarder};
use params::{Data, Params};
use request::Request;
use subscriptions::Subscriptions;

/// Limits of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls per batch.
    pub max_batch: usize,
    /// Logs per answer; the logs of a single block are never split.
    pub max_results: usize,
    /// Blocks per query; 0 for no limit.
    pub max_blocks: u64,
    /// Bytes of the answer to a request; a batch shares it.
    pub max_response_bytes: usize,
    /// Time limit of a request; a batch shares it.
    pub timeout: Duration,
    /// Lifetime of a filter that is not polled.
    pub filter_ttl: Duration,
    /// Filters per process.
    pub max_filters: usize,
    /// Subscriptions per connection.
    pub max_subscriptions: usize,
    /// How many blocks the stored head may be behind the nodes before `eth_syncing` reports a lag.
    pub sync_lag_blocks: u64,
    pub forward: ForwardLimits,
}

/// A chain that is served.
#[derive(Clone, Debug)]
pub struct ServedChain {
    pub chain: Chain,
    /// The nodes of the chain, if any are configured.
    pub source: Option<Arc<dyn NodeSource>>,
    pub status: Arc<dyn ChainStatus>,
    /// Reads the derived tables, if there are any.
    pub reader: Option<Reader>,
}

/// Status of a chain that is not part of its stored data.
pub trait ChainStatus: Send + Sync + std::fmt::Debug {
    /// Progress of ingest, if this process ingests the chain.
    fn progress(&self) -> Option<&Progress> {
        None
    }

    /// Progress of ingest and derivation.
    fn status_json(&self) -> serde_json::Value;

    /// The highest block that a node has reported, to this process or to the writer.
    fn reported_head(&self) -> Option<u64>;

    /// Why fees may be missing although every block is covered: the contract of this chain is neither configured nor
    /// known. It matters only while there is no fee at all.
    fn assumed_fees(&self) -> Option<String> {
        None
    }
}

/// Answers the calls of all chains.
#[derive(Debug)]
pub(crate) struct Rpc {
    limits: Limits,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    filters: Filters,
    forwarder: Forwarder,
    fanout: Arc<Fanout>,
}

impl Rpc {
    pub(crate) fn new(limits: Limits, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let forwarder = Forwarder::new(limits.forward.clone());
        Self {
            limits,
            clock,
            entropy,
            filters: Filters::default(),
            forwarder,
            fanout: Arc::default(),
        }
    }

    /// The renderings that all subscriptions share.
    pub(crate) fn fanout(&self) -> Arc<Fanout> {
        Arc::clone(&self.fanout)
    }

    /// Answers a request in at most `bytes_max` bytes, once `room` has a permit. Fails if no permit becomes free within
    /// the time limit of a request.
    pub(crate) async fn answers(
        self: &Arc<Self>,
        served: &Arc<ServedChain>,
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

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn call(
        &self,
        served: &ServedChain,
        method: &str,
        params: Option<&RawValue>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let started = self.clock.monotonic();
        let known = methods::find(method);
        // Names from clients must not become labels: their number is unbounded.
        let label = match known {
            Some(known) => known.name,
            None if self.forwarder.allows(method) => "passed_on",
            None => "other",
        };
        let answer = match known {
            Some(known) => match Params::read(params, known.params.len()) {
                Ok(read) => self.answer_known(served, known.name, &read, params, session).await,
                Err(error) => Err(error),
            },
            None => self.pass(served, method, params).await,
        };
        let took = self.clock.monotonic().saturating_sub(started);
        let outcome = if answer.is_ok() { "ok" } else { "error" };
        metrics::counter!("logmill_rpc_calls_total", "method" => label, "outcome" => outcome)
            .increment(1);
        metrics::histogram!("logmill_rpc_call_seconds", "method" => label).record(took);
        answer
    }

    /// Answers a method of the table.
    async fn answer_known(
        &self,
        served: &ServedChain,
        method: &str,
        params: &Params<'_>,
        raw: Option<&RawValue>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        match method {
            "eth_getLogs" => self.get_logs(served, params).await,
            "eth_blockNumber" => {
                self.wait_for_announced_block(served).await;
                self.block_number(served).await
            }
            "eth_getBlockByNumber" => {
                self.block(served, block_selector(params, false)?, params).await
            }
            "eth_getBlockByHash" => self.block(served, block_selector(params, true)?, params).await,
            "eth_getHeaderByNumber" => self.header(served, block_selector(params, false)?).await,
            "eth_getHeaderByHash" => self.header(served, block_selector(params, true)?).await,
            "eth_getBlockReceipts" => self.receipts(served, params.read_at(0)?).await,
            "eth_getBlockAccessList" => self.access_list(served, params.read_at(0)?).await,
            "eth_getTransactionByHash" => self.transaction(served, params).await,
            "eth_getTransactionReceipt" => {
                self.wait_for_announced_block(served).await;
                self.receipt(served, params).await
            }
            "eth_feeHistory" => self.fee_history(served, params, raw).await,
            "eth_baseFee" => self.base_fee(served).await,
            "eth_blobBaseFee" => self.blob_base_fee(served).await,
            "eth_syncing" => sync::answer(served, self.limits.sync_lag_blocks).await,
            _ => match self.answer_constant(served, method, params) {
                Some(answer) => answer,
                None => self.answer_by_position(served, method, params, session).await,
            },
        }
    }

    /// Methods that do not read the chain.
    fn answer_constant(
        &self,
        served: &ServedChain,
        method: &str,
        params: &Params<'_>,
    ) -> Option<RpcResult<Answer>> {
        Some(match method {
            "eth_chainId" => Ok(Answer::quantity(served.chain.chain_id())),
            "net_version" => Answer::json(&served.chain.chain_id().to_string()),
            "net_listening" => Answer::json(&true),
            "web3_clientVersion" => Answer::json(&client_version()),
            "web3_sha3" => params
                .read_at(0)
                .and_then(|Data(bytes)| Answer::json(&alloy_primitives::keccak256(&bytes))),
            "rpc_modules" => Answer::json(&methods::modules(&self.forwarder.names())),
            "rpc.discover" => {
                let version = env!("CARGO_PKG_VERSION");
                Answer::json(&methods::document(version, &self.forwarder.names()))
            }
            _ => return None,
        })
    }

    /// Parts of blocks by position, and raw bytes.
    async fn answer_by_position(
        &self,
        served: &ServedChain,
        method: &str,
        params: &Params<'_>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let is_by_hash = method.contains("ByBlockHash") || method.ends_with("ByHash");
        let selector = || block_selector(params, is_by_hash);
        match method {
            "eth_getTransactionByBlockHashAndIndex" | "eth_getTransactionByBlockNumberAndIndex" => {
                self.transaction_at(served, selector()?, params).await
            }
            "eth_getRawTransactionByBlockHashAndIndex"
            | "eth_getRawTransactionByBlockNumberAndIndex" => {
                self.raw_transaction_at(served, selector()?, params).await
            }
            "eth_getUncleByBlockHashAndIndex" | "eth_getUncleByBlockNumberAndIndex" => {
                self.uncle(served, selector()?, params).await
            }
            "eth_getBlockTransactionCountByHash" | "eth_getBlockTransactionCountByNumber" => {
                self.count(served, selector()?, Block::listed_transactions).await
            }
            "eth_getUncleCountByBlockHash" | "eth_getUncleCountByBlockNumber" => {
                self.count(served, selector()?, |block| block.uncles.len()).await
            }
            "debug_getRawTransaction" | "eth_getRawTransactionByHash" => {
                self.raw_transaction(served, params).await
            }
            "debug_getRawBlock" => self.raw_block(served, params.read_at(0)?).await,
            "debug_getRawHeader" => self.raw_header(served, params.read_at(0)?).await,
            "debug_getRawReceipts" => self.raw_receipts(served, params.read_at(0)?).await,
            _ => self.answer_stateful(served, method, params, session).await,
        }
    }

    /// Filters, subscriptions, and our own methods.
    async fn answer_stateful(
        &self,
        served: &ServedChain,
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

    async fn block_number(&self, served: &ServedChain) -> RpcResult<Answer> {
        let head = served.chain.view().await?.head();
        let head = head.ok_or_else(|| RpcError::unknown_block("latest"))?;
        Ok(Answer::quantity(head.number))
    }
}

fn client_version() -> String {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    format!("logmill/v{version}/{os}-{arch}")
}
