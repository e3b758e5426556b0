//! Filters that clients poll: `eth_newFilter`, `eth_newBlockFilter` and the methods that use them.
//!
//! A filter is a position in the chain's stream of changes and stores no results. It is removed if it is polled so
//! rarely that changes were dropped, because its answer would be incomplete, or if its time to live passes without a
//! poll.
//!
//! Guarantees: a poll returns every change since the last one, including logs removed by a reorganisation; there are
//! never more filters than allowed. Leaves to others: matching logs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use finalized_log_index::Filter;
use logmill_pipeline::{Change, block};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use super::answer::{Answer, write_log};
use super::criteria::{BlockSelection, Criteria};
use super::error::{RpcError, RpcResult};
use super::logs::write_hash;
use super::params::{Params, Tag};
use super::{Rpc, ServedChain};

/// All filters of the process.
#[derive(Debug, Default)]
pub(super) struct Filters {
    known: Mutex<BTreeMap<Id, Arc<PolledFilter>>>,
}

#[derive(Debug)]
struct PolledFilter {
    chain_id: u64,
    kind: Kind,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    changes: Receiver<Arc<Change>>,
    used: Duration,
}

#[derive(Debug)]
enum Kind {
    Blocks,
    Logs(Box<Logs>),
}

#[derive(Debug)]
struct Logs {
    criteria: Criteria,
    filter: Filter,
    from: u64,
    to: u64,
}

/// Id of a filter or subscription: random, so that a client cannot guess the id of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Id(u128);

impl Id {
    pub(super) fn new(entropy: &dyn logmill_io::Entropy) -> Self {
        Self((u128::from(entropy.next_u64()) << 64) | u128::from(entropy.next_u64()))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

impl TryFrom<String> for Id {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = text.strip_prefix("0x").ok_or("an id must start with 0x")?;
        if digits.starts_with('+') {
            return Err("an id must have hexadecimal digits");
        }
        u128::from_str_radix(digits, 16).map(Self).map_err(|_| "an id must have hexadecimal digits")
    }
}

impl Filters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, Arc<PolledFilter>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes expired filters, and fails if there is still no room for one more.
    fn make_room(&self, now: Duration, ttl: Duration, max: usize) -> RpcResult<()> {
        let mut known = self.lock();
        known.retain(|_, filter| now.saturating_sub(filter.state().used) <= ttl);
        metrics::gauge!("logmill_rpc_filters").set(u32::try_from(known.len()).unwrap_or(u32::MAX));
        if known.len() >= max {
            let limit = u64::try_from(max).unwrap_or(u64::MAX);
            return Err(RpcError::limit(format!("too many filters, at most {max}"), limit));
        }
        Ok(())
    }
}

impl PolledFilter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rpc {
    /// `eth_newFilter`.
    pub(super) async fn new_filter(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let criteria: Criteria = params.read_at(0)?;
        criteria.check_terms(&served.chain)?;
        let BlockSelection::Range { from, to } = criteria.blocks else {
            return Err(RpcError::params("a filter takes a block range, not a block hash"));
        };
        let changes = served.chain.changes();
        let view = served.chain.view().await?;
        // `latest` leaves the range open: new blocks are above the block that the tag names now.
        let bound = |tag: Option<Tag>, open: u64| match tag {
            Some(Tag::Pending) => Err(RpcError::params("pending logs are not supported")),
            None | Some(Tag::Latest) => Ok(open),
            Some(tag) => tag.resolve(&view),
        };
        let (from, to) = (bound(from, 0)?, bound(to, u64::MAX)?);
        if from > to {
            return Err(RpcError::params("invalid block range params"));
        }
        let filter = criteria.filter(finalized_log_index::Blocks::Covered(from..=to));
        let logs = Logs { criteria, filter, from, to };
        self.install(served, Kind::Logs(Box::new(logs)), changes)
    }

    /// `eth_newBlockFilter`.
    pub(super) fn new_block_filter(&self, served: &ServedChain) -> RpcResult<Answer> {
        self.install(served, Kind::Blocks, served.chain.changes())
    }

    fn install(
        &self,
        served: &ServedChain,
        kind: Kind,
        changes: Receiver<Arc<Change>>,
    ) -> RpcResult<Answer> {
        let used = self.clock.monotonic();
        self.filters.make_room(used, self.limits.filter_ttl, self.limits.max_filters)?;
        let id = Id::new(&*self.entropy);
        let chain_id = served.chain.chain_id();
        let filter = PolledFilter { chain_id, kind, state: Mutex::new(State { changes, used }) };
        self.filters.lock().insert(id, Arc::new(filter));
        Answer::json(&id.to_string())
    }

    /// `eth_uninstallFilter`.
    pub(super) fn uninstall(&self, served: &ServedChain, params: &Params<'_>) -> RpcResult<Answer> {
        let id: Id = params.read_at(0)?;
        let was_there = self.filter(served, id).is_ok();
        if was_there {
            self.filters.lock().remove(&id);
        }
        Answer::json(&was_there)
    }

    /// `eth_getFilterChanges`.
    pub(super) fn filter_changes(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let id: Id = params.read_at(0)?;
        let filter = self.filter(served, id)?;
        let mut writer = ChangeWriter { out: vec![b'['], count: 0 };
        let mut state = filter.state();
        state.used = self.clock.monotonic();
        while writer.count < self.limits.max_results {
            match state.changes.try_recv() {
                Ok(change) => writer.write_change(&filter.kind, &change),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Closed) => {
                    drop(state);
                    self.filters.lock().remove(&id);
                    return Err(RpcError::unknown(
                        "filter not found: the chain was reopened after the filter was created",
                    ));
                }
                Err(TryRecvError::Lagged(missed)) => {
                    drop(state);
                    self.filters.lock().remove(&id);
                    return Err(RpcError::unknown(format!(
                        "filter not found: it was polled too rarely and missed {missed} changes"
                    )));
                }
            }
        }
        writer.out.push(b']');
        Ok(Answer::Text(writer.out))
    }

    /// `eth_getFilterLogs`.
    pub(super) async fn filter_logs(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let filter = self.filter(served, params.read_at(0)?)?;
        filter.state().used = self.clock.monotonic();
        match &filter.kind {
            Kind::Logs(logs) => self.logs_of(served, &logs.criteria).await,
            Kind::Blocks => Err(RpcError::unknown("filter not found: it is a block filter")),
        }
    }

    fn filter(&self, served: &ServedChain, id: Id) -> RpcResult<Arc<PolledFilter>> {
        let now = self.clock.monotonic();
        let ttl = self.limits.filter_ttl;
        let found = self.filters.lock().get(&id).map(Arc::clone);
        let found = found.filter(|filter| {
            let is_alive = now.saturating_sub(filter.state().used) <= ttl;
            is_alive && filter.chain_id == served.chain.chain_id()
        });
        found.ok_or_else(|| RpcError::unknown("filter not found"))
    }
}

/// The changes of one poll, as an unfinished JSON array.
struct ChangeWriter {
    out: Vec<u8>,
    count: usize,
}

impl ChangeWriter {
    fn write_change(&mut self, kind: &Kind, change: &Change) {
        match kind {
            Kind::Blocks => change.added.iter().for_each(|block| {
                write_hash(self.next(), &block.at.hash);
            }),
            Kind::Logs(logs) => {
                let Logs { filter, from, to, .. } = &**logs;
                for (blocks, removed) in [(&change.removed, true), (&change.added, false)] {
                    let in_range =
                        blocks.iter().filter(|block| (*from..=*to).contains(&block.at.number));
                    for log in in_range.flat_map(|block| block::logs_of(block)) {
                        if filter.matches(&log.log) {
                            write_log(self.next(), &log, removed);
                        }
                    }
                }
            }
        }
    }

    fn next(&mut self) -> &mut Vec<u8> {
        if self.count > 0 {
            self.out.push(b',');
        }
        self.count += 1;
        &mut self.out
    }
}
