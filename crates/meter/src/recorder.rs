//! `Recorder`: many requests, few transactions.
//!
//! Requests that arrive during a transaction are recorded together by the next one, so that they share one wait for the
//! disk.
//!
//! Guarantees: a request is answered once its events are on disk, all of them or none. A request that cannot be
//! recorded fails alone. The number of waiting requests is bounded. Leaves to others: running it as long as there are
//! callers.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::record::{Outcome, ReceivedEvent};

/// Maximum number of waiting requests.
const WAITING_MAX: usize = 4_096;
/// Maximum number of events in one transaction; a larger request is on its own. With more events, more of them share
/// each written page, but others wait longer for SQLite's only writer: a tenth of a second.
const EVENTS_PER_COMMIT: usize = 10_000;

/// Records events of many callers. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    requests: mpsc::Sender<RecordRequest>,
}

#[derive(Debug)]
struct RecordRequest {
    events: Vec<ReceivedEvent>,
    reply: oneshot::Sender<Result<Vec<Outcome>>>,
}

/// Number of events of a request, and the channel for its reply.
type PendingReply = (usize, oneshot::Sender<Result<Vec<Outcome>>>);

impl Recorder {
    /// A recorder, and the future that runs it until the last clone is dropped. The future ends with an error if the
    /// store has failed for good: later requests are then refused at once.
    pub fn new(meter: Meter) -> (Self, impl Future<Output = Result<()>> + Send + 'static) {
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        (Self { requests }, run(meter, waiting))
    }

    /// Records events; returns the outcome of each once all are on disk.
    pub async fn record(&self, events: Vec<ReceivedEvent>) -> Result<Vec<Outcome>> {
        let (reply, outcomes) = oneshot::channel();
        let stopped = || Error::unavailable("the recorder has stopped");
        self.requests.send(RecordRequest { events, reply }).await.map_err(|_| stopped())?;
        outcomes.await.map_err(|_| stopped())?
    }
}

async fn run(meter: Meter, mut waiting: mpsc::Receiver<RecordRequest>) -> Result<()> {
    while let Some(first) = waiting.recv().await {
        let mut events = first.events.len();
        let mut group = vec![first];
        while events < EVENTS_PER_COMMIT
            && let Ok(next) = waiting.try_recv()
        {
            events += next.events.len();
            group.push(next);
        }
        record_group(&meter, group).await?;
    }
    Ok(())
}

/// Records a group and answers each request; returns an error only if nothing can be recorded any more.
async fn record_group(meter: &Meter, group: Vec<RecordRequest>) -> Result<()> {
    let mut all = Vec::new();
    let mut replies = Vec::with_capacity(group.len());
    for mut request in group {
        replies.push((request.events.len(), request.reply));
        all.append(&mut request.events);
    }
    let all = Arc::new(all);
    let mut outcomes = match meter.record(Arc::clone(&all)).await {
        Ok(outcomes) => outcomes.into_iter(),
        Err(error) => return record_apart(meter, &all, replies, error).await,
    };
    for (events, reply) in replies {
        send(reply, Ok(outcomes.by_ref().take(events).collect()));
    }
    if let Err(error) = meter.seal_soon().await {
        tracing::warn!(error = error.chain(), "cannot enqueue the sealing of keys");
    }
    Ok(())
}

/// Tries each request alone, because one of several may be the cause of the failure.
async fn record_apart(
    meter: &Meter,
    all: &[ReceivedEvent],
    mut replies: Vec<PendingReply>,
    error: Error,
) -> Result<()> {
    if error.is_fatal() {
        // The others are notified by their channels, which close with this task.
        return Err(error);
    }
    if replies.len() == 1 {
        if let Some((_, reply)) = replies.pop() {
            send(reply, Err(error));
        }
        return Ok(());
    }
    tracing::debug!(
        error = error.chain(),
        "recording a group of requests failed, recording them one by one"
    );
    let mut rest = all;
    for (events, reply) in replies {
        let (own, others) = rest.split_at(events);
        rest = others;
        let recorded = meter.record(own.to_vec()).await;
        match recorded {
            Err(error) if error.is_fatal() => return Err(error),
            recorded => send(reply, recorded),
        }
    }
    Ok(())
}

/// The caller may be gone; what was recorded stays.
fn send(to: oneshot::Sender<Result<Vec<Outcome>>>, outcomes: Result<Vec<Outcome>>) {
    drop(to.send(outcomes));
}
