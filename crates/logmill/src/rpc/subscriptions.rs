//! The subscriptions of one WebSocket: `newHeads` and `logs`.
//!
//! ```text
//!   changes of the chain (bounded) ─▶ units: one block for one subscription ─▶ messages, rendered when they are sent
//! ```
//!
//! Guarantees: a subscription hears of every change after it was made, logs of blocks that were replaced with
//! `removed: true`; who reads too slowly is told so and dropped, and never misses something unknowingly. Leaves to
//! others: the socket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use finalized_log_index::{Blocks, Filter};
use logmill_chain::Block;
use logmill_chain::render::Render;
use logmill_pipeline::{Chain, Change, block};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::answer::{Answer, write_log};
use super::criteria::Criteria;
use super::error::{RpcError, RpcResult};
use super::filters::Id;
use super::params::Params;
use super::{Rpc, Served};

/// What a socket should do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send these.
    Send(Vec<Utf8Bytes>),
    /// Say why, and go.
    Close(&'static str),
}

/// The subscriptions of one socket.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    chain: Chain,
    changes: Option<Receiver<Arc<Change>>>,
    known: BTreeMap<Id, Subscription>,
    units: VecDeque<Unit>,
}

#[derive(Debug)]
struct Subscription {
    kind: Arc<Kind>,
    /// How many of the changes that wait are older than it.
    skip: usize,
}

#[derive(Debug)]
enum Kind {
    NewHeads,
    Logs(Filter),
}

/// One block for one subscription.
#[derive(Debug)]
struct Unit {
    id: Id,
    kind: Arc<Kind>,
    block: Arc<Block>,
    removed: bool,
}

impl Subscriptions {
    /// None yet, of this chain.
    pub(crate) fn new(chain: Chain) -> Self {
        Self { chain, changes: None, known: BTreeMap::new(), units: VecDeque::new() }
    }

    fn add(&mut self, id: Id, kind: Kind) {
        let changes = self.changes.get_or_insert_with(|| self.chain.changes());
        let skip = changes.len();
        self.known.insert(id, Subscription { kind: Arc::new(kind), skip });
    }

    fn remove(&mut self, id: Id) -> bool {
        let was_there = self.known.remove(&id).is_some();
        self.units.retain(|unit| unit.id != id);
        if self.known.is_empty() {
            self.changes = None;
        }
        was_there
    }

    /// Waits for something to send. Nothing is lost if it is given up while waiting.
    pub(crate) async fn next(&mut self) -> Next {
        loop {
            while let Some(unit) = self.units.pop_front() {
                match unit.messages() {
                    Ok(messages) if messages.is_empty() => {}
                    Ok(messages) => return Next::Send(messages),
                    Err(_) => return Next::Close("a block can not be shown"),
                }
            }
            let Some(changes) = &mut self.changes else {
                return std::future::pending().await;
            };
            match changes.recv().await {
                Ok(change) => self.take(&change),
                Err(RecvError::Lagged(_)) => {
                    return Next::Close("too slow: changes were lost, subscribe again");
                }
                Err(RecvError::Closed) => return Next::Close("the chain is not served any more"),
            }
        }
    }

    fn take(&mut self, change: &Change) {
        for (id, subscription) in &mut self.known {
            if subscription.skip > 0 {
                subscription.skip -= 1;
                continue;
            }
            let kind = &subscription.kind;
            let removed = change.removed.iter().map(|block| (block, true));
            let added = change.added.iter().map(|block| (block, false));
            let unit = |(block, removed)| Unit {
                id: *id,
                kind: Arc::clone(kind),
                block: Arc::clone(block),
                removed,
            };
            self.units.extend(removed.chain(added).map(unit));
        }
    }
}

impl Unit {
    fn messages(&self) -> RpcResult<Vec<Utf8Bytes>> {
        match &*self.kind {
            Kind::NewHeads if self.removed => Ok(Vec::new()),
            Kind::NewHeads => {
                let mut out = self.begin();
                Render::of(&self.block)?.header(&mut out)?;
                Ok(vec![finish(out)?])
            }
            Kind::Logs(filter) => {
                let logs = block::logs_of(&self.block).filter(|log| filter.matches(&log.log));
                let message = |log| {
                    let mut out = self.begin();
                    write_log(&mut out, &log, self.removed);
                    finish(out)
                };
                logs.map(message).collect()
            }
        }
    }

    fn begin(&self) -> Vec<u8> {
        let before = "{\"jsonrpc\":\"2.0\",\"method\":\"eth_subscription\",\"params\":";
        format!("{before}{{\"subscription\":\"{}\",\"result\":", self.id).into_bytes()
    }
}

fn finish(mut out: Vec<u8>) -> RpcResult<Utf8Bytes> {
    out.extend_from_slice(b"}}");
    Utf8Bytes::try_from(out).map_err(|_| RpcError::internal())
}

impl Rpc {
    /// `eth_subscribe`.
    pub(super) fn subscribe(
        &self,
        served: &Served,
        params: &Params<'_>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let session = session.ok_or_else(no_session)?;
        let kind = match params.read_at::<String>(0)?.as_str() {
            "newHeads" => Kind::NewHeads,
            "logs" => {
                let filter = match params.get::<Criteria>(1)? {
                    None => Filter::covered(0..=u64::MAX),
                    Some(wanted) => {
                        wanted.check_terms(&served.chain)?;
                        wanted.filter(Blocks::Covered(0..=u64::MAX))
                    }
                };
                Kind::Logs(filter)
            }
            other => {
                let name: String = other.chars().take(64).collect();
                return Err(RpcError::params(format!("unsupported subscription {name:?}")));
            }
        };
        let max = self.limits.max_subscriptions;
        if session.known.len() >= max {
            let limit = u64::try_from(max).unwrap_or(u64::MAX);
            let why = format!("too many subscriptions of this connection, at most {max}");
            return Err(RpcError::limit(why, limit));
        }
        let id = Id::new(&*self.entropy);
        session.add(id, kind);
        Answer::json(&id.to_string())
    }

    /// `eth_unsubscribe`.
    pub(super) fn unsubscribe(
        &self,
        params: &Params<'_>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let session = session.ok_or_else(no_session)?;
        match session.remove(params.read_at(0)?) {
            true => Answer::json(&true),
            false => Err(RpcError::unknown("subscription not found")),
        }
    }
}

fn no_session() -> RpcError {
    RpcError::params("subscriptions need a WebSocket: notifications not supported")
}
