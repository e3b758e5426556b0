//! The subscriptions of one WebSocket: `newHeads`, `logs` and `syncing`.
//!
//! ```text
//!   changes of the chain (bounded) ─▶ pending: a block for a subscription ─▶ messages from the shared rendering
//! ```
//!
//! Guarantees: a subscription is notified of every change after its creation, and logs of replaced blocks carry
//! `removed: true`; a connection that reads too slowly is closed with a reason, so that no change is skipped silently.
//! Leaves to others: the socket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use finalized_log_index::{Blocks, Filter};
use logmill_io::Clock;
use logmill_pipeline::Change;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::answer::Answer;
use super::criteria::Criteria;
use super::error::{RpcError, RpcResult};
use super::fanout::{Announcement, Fanout, FilterKey};
use super::filters::Id;
use super::params::Params;
use super::sync::SyncProgress;
use super::{Rpc, ServedChain};

/// Poll interval of the sync state, for subscriptions of `syncing`.
const SYNC_LOOK: Duration = Duration::from_secs(2);
/// Messages per send; a single block may exceed it.
const TOGETHER_MAX: usize = 64;

/// Next action of a socket.
#[derive(Debug)]
pub(crate) enum SocketAction {
    Send(Vec<Utf8Bytes>),
    /// Close the socket with this reason.
    Close(&'static str),
}

/// The subscriptions of one socket.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    served: Arc<ServedChain>,
    fanout: Arc<Fanout>,
    clock: Arc<dyn Clock>,
    /// How many blocks the stored head may be behind before the chain counts as syncing.
    lag_max: u64,
    changes: Option<Receiver<Arc<Change>>>,
    known: BTreeMap<Id, Subscription>,
    pending: VecDeque<PendingBlock>,
    /// Monotonic time of the next poll of the sync state.
    next_look: Duration,
}

#[derive(Debug)]
struct Subscription {
    kind: Arc<Kind>,
    /// How many of the pending changes are older than this subscription.
    skip: usize,
    /// For `syncing`: the last state sent to the client, if any.
    sent_syncing: Option<bool>,
}

#[derive(Debug)]
enum Kind {
    NewHeads,
    Logs(Filter, Arc<FilterKey>),
    Syncing,
}

/// One block for one subscription.
#[derive(Debug)]
struct PendingBlock {
    id: Id,
    kind: Arc<Kind>,
    announcement: Arc<Announcement>,
    /// Position of the block in the announcement.
    block: usize,
}

impl Subscriptions {
    pub(crate) fn new(rpc: &Rpc, served: Arc<ServedChain>) -> Self {
        Self {
            served,
            fanout: rpc.fanout(),
            clock: Arc::clone(&rpc.clock),
            lag_max: rpc.limits.sync_lag_blocks,
            changes: None,
            known: BTreeMap::new(),
            pending: VecDeque::new(),
            next_look: Duration::ZERO,
        }
    }

    fn add(&mut self, id: Id, kind: Kind) {
        let changes = self.changes.get_or_insert_with(|| self.served.chain.changes());
        let skip = changes.len();
        if matches!(kind, Kind::Syncing) {
            self.next_look = Duration::ZERO;
        }
        self.known.insert(id, Subscription { kind: Arc::new(kind), skip, sent_syncing: None });
    }

    fn remove(&mut self, id: Id) -> bool {
        let was_there = self.known.remove(&id).is_some();
        self.pending.retain(|block| block.id != id);
        if self.known.is_empty() {
            self.changes = None;
        }
        was_there
    }

    /// Waits for the next action. Cancel safe: dropping the future while it waits loses nothing.
    pub(crate) async fn next(&mut self) -> SocketAction {
        loop {
            let mut messages = Vec::new();
            while messages.len() < TOGETHER_MAX
                && let Some(block) = self.pending.pop_front()
            {
                if block.write(&mut messages).is_err() {
                    return SocketAction::Close("a block cannot be rendered");
                }
            }
            if !messages.is_empty() {
                return SocketAction::Send(messages);
            }
            let look = self.wait_for_look();
            let Some(changes) = &mut self.changes else {
                return std::future::pending().await;
            };
            tokio::select! {
                biased;
                change = changes.recv() => match change {
                    Ok(change) => self.take(&change),
                    Err(RecvError::Lagged(_)) => {
                        return SocketAction::Close("client too slow, changes were skipped: subscribe again");
                    }
                    Err(RecvError::Closed) => {
                        return SocketAction::Close("the chain is no longer served");
                    }
                },
                () = look => {
                    let messages = self.sync_messages().await;
                    if !messages.is_empty() {
                        return SocketAction::Send(messages);
                    }
                }
            }
        }
    }

    /// Completes when the next poll of the sync state is due; never without a subscription of `syncing`.
    fn wait_for_look(&self) -> impl Future<Output = ()> + Send + use<> {
        let syncing = |subscription: &Subscription| matches!(*subscription.kind, Kind::Syncing);
        let is_wanted = self.known.values().any(syncing);
        let wait = self.next_look.saturating_sub(self.clock.monotonic());
        let clock = Arc::clone(&self.clock);
        async move {
            match is_wanted {
                true => clock.sleep(wait).await,
                false => std::future::pending().await,
            }
        }
    }

    /// Polls the sync state, and returns messages for the subscriptions of `syncing` that do not have it yet. If the
    /// future is dropped, the next call polls again.
    async fn sync_messages(&mut self) -> Vec<Utf8Bytes> {
        let looked = SyncProgress::of(&self.served, self.lag_max).await;
        self.next_look = self.clock.monotonic() + SYNC_LOOK;
        // A failed read is retried at the next poll.
        let Ok(progress) = looked else { return Vec::new() };
        let mut messages = Vec::new();
        for (id, subscription) in &mut self.known {
            let is_news = subscription.sent_syncing != Some(progress.is_some());
            if !is_news || !matches!(*subscription.kind, Kind::Syncing) {
                continue;
            }
            subscription.sent_syncing = Some(progress.is_some());
            let result = match progress {
                Some(progress) => json!({"syncing": true, "status": progress.json()}),
                None => json!(false),
            };
            messages.extend(message(id, result.to_string().as_bytes()).ok());
        }
        messages
    }

    fn take(&mut self, change: &Arc<Change>) {
        let announcement = self.fanout.of(change);
        for (id, subscription) in &mut self.known {
            if subscription.skip > 0 {
                subscription.skip -= 1;
                continue;
            }
            let kind = &subscription.kind;
            if matches!(**kind, Kind::Syncing) {
                continue;
            }
            let pending = |block| PendingBlock {
                id: *id,
                kind: Arc::clone(kind),
                announcement: Arc::clone(&announcement),
                block,
            };
            self.pending.extend((0..announcement.len()).map(pending));
        }
    }
}

impl PendingBlock {
    fn write(&self, messages: &mut Vec<Utf8Bytes>) -> RpcResult<()> {
        match &*self.kind {
            Kind::Syncing => {}
            Kind::NewHeads => {
                let header = self.announcement.header(self.block).ok_or_else(RpcError::internal)?;
                if let Some(header) = header {
                    messages.push(message(&self.id, header)?);
                }
            }
            Kind::Logs(filter, key) => {
                for log in self.announcement.logs(self.block, filter, key) {
                    messages.push(message(&self.id, log)?);
                }
            }
        }
        Ok(())
    }
}

/// Wraps a shared result in a notification with the id of a subscription.
fn message(id: &Id, result: &[u8]) -> RpcResult<Utf8Bytes> {
    let before = "{\"jsonrpc\":\"2.0\",\"method\":\"eth_subscription\",\"params\":";
    let mut out = format!("{before}{{\"subscription\":\"{id}\",\"result\":").into_bytes();
    out.reserve_exact(result.len() + 2);
    out.extend_from_slice(result);
    out.extend_from_slice(b"}}");
    Utf8Bytes::try_from(out).map_err(|_| RpcError::internal())
}

impl Rpc {
    /// `eth_subscribe`.
    pub(super) fn subscribe(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
        session: Option<&mut Subscriptions>,
    ) -> RpcResult<Answer> {
        let session = session.ok_or_else(no_session)?;
        let kind = match params.read_at::<String>(0)?.as_str() {
            "newHeads" => Kind::NewHeads,
            "syncing" => Kind::Syncing,
            "logs" => {
                let filter = match params.get::<Criteria>(1)? {
                    None => Filter::covered(0..=u64::MAX),
                    Some(criteria) => {
                        criteria.check_terms(&served.chain)?;
                        criteria.filter(Blocks::Covered(0..=u64::MAX))
                    }
                };
                let key = Arc::new(FilterKey::of(&filter));
                Kind::Logs(filter, key)
            }
            other => {
                let name: String = other.chars().take(64).collect();
                return Err(RpcError::params(format!("unsupported subscription {name:?}")));
            }
        };
        let max = self.limits.max_subscriptions;
        if session.known.len() >= max {
            let limit = u64::try_from(max).unwrap_or(u64::MAX);
            let why = format!("too many subscriptions on this connection, at most {max}");
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
