//! Filters that clients poll: `eth_newFilter` and its kin.
//!
//! A filter is a place in the chain's stream of changes: it holds nothing itself. One that is not asked for so long
//! that changes were dropped is gone, as it could not tell all; so is one that is not asked for its time to live.
//!
//! Guarantees: what a filter tells is every change since it was asked last, those that a reorganisation took back
//! included; there are never more filters than allowed. Leaves to others: which logs match.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use finalized_log_index::Filter;
use logmill_pipeline::{Change, block};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use super::answer::{Answer, write_log};
use super::criteria::{Criteria, Wanted};
use super::error::{RpcError, RpcResult};
use super::logs::write_hash;
use super::params::{Params, Tag};
use super::{Rpc, Served};

/// All filters of the process, by their ids.
#[derive(Debug, Default)]
pub(super) struct Filters {
    known: Mutex<BTreeMap<Id, Arc<Polled>>>,
}

#[derive(Debug)]
struct Polled {
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
    wanted: Criteria,
    filter: Filter,
    from: u64,
    to: u64,
}

/// The name of a filter or subscription: random, so that nobody guesses another's.
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
        let digits = text.strip_prefix("0x").ok_or("an id starts with 0x")?;
        u128::from_str_radix(digits, 16).map(Self).map_err(|_| "an id has hexadecimal digits")
    }
}

impl Filters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, Arc<Polled>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what nobody asked for its time to live, and refuses one more if there are too many still.
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

impl Polled {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rpc {
    /// `eth_newFilter`.
    pub(super) async fn new_filter(
        &self,
        served: &Served,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let wanted: Criteria = params.read_at(0)?;
        wanted.check_terms(&served.chain)?;
        let Wanted::Range { from, to } = wanted.blocks else {
            return Err(RpcError::params("a filter has a range of blocks, not a hash"));
        };
        let changes = served.chain.changes();
        let view = served.chain.view().await?;
        // What is new is above the tags, whatever block they name by then.
        let bound = |tag: Option<Tag>, open: u64| match tag {
            Some(Tag::Pending) => Err(RpcError::params("pending logs are not supported")),
            None | Some(Tag::Latest) => Ok(open),
            Some(tag) => tag.resolve(&view),
        };
        let (from, to) = (bound(from, 0)?, bound(to, u64::MAX)?);
        if from > to {
            return Err(RpcError::params("invalid block range params"));
        }
        let filter = wanted.filter(finalized_log_index::Blocks::Covered(from..=to));
        let logs = Logs { wanted, filter, from, to };
        self.install(served, Kind::Logs(Box::new(logs)), changes)
    }

    /// `eth_newBlockFilter`.
    pub(super) fn new_block_filter(&self, served: &Served) -> RpcResult<Answer> {
        self.install(served, Kind::Blocks, served.chain.changes())
    }

    fn install(
        &self,
        served: &Served,
        kind: Kind,
        changes: Receiver<Arc<Change>>,
    ) -> RpcResult<Answer> {
        let used = self.clock.monotonic();
        self.filters.make_room(used, self.limits.filter_ttl, self.limits.max_filters)?;
        let id = Id::new(&*self.entropy);
        let chain_id = served.chain.chain_id();
        let polled = Polled { chain_id, kind, state: Mutex::new(State { changes, used }) };
        self.filters.lock().insert(id, Arc::new(polled));
        Answer::json(&id.to_string())
    }

    /// `eth_uninstallFilter`.
    pub(super) fn uninstall(&self, served: &Served, params: &Params<'_>) -> RpcResult<Answer> {
        let id: Id = params.read_at(0)?;
        let was_there = self.filter(served, id).is_ok();
        if was_there {
            self.filters.lock().remove(&id);
        }
        Answer::json(&was_there)
    }

    /// `eth_getFilterChanges`.
    pub(super) fn filter_changes(&self, served: &Served, params: &Params<'_>) -> RpcResult<Answer> {
        let id: Id = params.read_at(0)?;
        let filter = self.filter(served, id)?;
        let mut told = Told { out: vec![b'['], count: 0 };
        let mut state = filter.state();
        state.used = self.clock.monotonic();
        while told.count < self.limits.max_results {
            match state.changes.try_recv() {
                Ok(change) => told.tell(&filter.kind, &change),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                Err(TryRecvError::Lagged(missed)) => {
                    drop(state);
                    self.filters.lock().remove(&id);
                    return Err(RpcError::unknown(format!(
                        "filter not found: it was asked too rarely and lost {missed} changes"
                    )));
                }
            }
        }
        told.out.push(b']');
        Ok(Answer::Text(told.out))
    }

    /// `eth_getFilterLogs`.
    pub(super) async fn filter_logs(
        &self,
        served: &Served,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let filter = self.filter(served, params.read_at(0)?)?;
        filter.state().used = self.clock.monotonic();
        match &filter.kind {
            Kind::Logs(logs) => self.logs_of(served, &logs.wanted).await,
            Kind::Blocks => Err(RpcError::unknown("filter not found: it is one of blocks")),
        }
    }

    fn filter(&self, served: &Served, id: Id) -> RpcResult<Arc<Polled>> {
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

/// What a filter has to tell, as a list that is still open.
struct Told {
    out: Vec<u8>,
    count: usize,
}

impl Told {
    fn tell(&mut self, kind: &Kind, change: &Change) {
        match kind {
            Kind::Blocks => change.added.iter().for_each(|block| {
                write_hash(self.next(), &block.at.hash);
            }),
            Kind::Logs(logs) => {
                let Logs { filter, from, to, .. } = &**logs;
                for (blocks, removed) in [(&change.removed, true), (&change.added, false)] {
                    let wanted =
                        blocks.iter().filter(|block| (*from..=*to).contains(&block.at.number));
                    for log in wanted.flat_map(|block| block::logs_of(block)) {
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
