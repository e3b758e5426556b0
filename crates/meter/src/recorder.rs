//! `Recorder`: many requests, few transactions.
//!
//! Requests that arrive while a transaction is under way are recorded together by the next one, so that they share one
//! wait for the disk.
//!
//! Guarantees: a request is answered after its events are on disk, and all of them or none; one that can not be
//! recorded fails alone; the number of events that wait is bounded. Leaves to others: running it, for as long as there
//! is somebody who records.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::record::{Arrived, Outcome};

/// The most requests that wait.
const WAITING_MAX: usize = 4_096;
/// The most events of one transaction; a larger request is on its own. The more there are, the more of them share a
/// page that is written, and the longer others wait for SQLite's only writer: a tenth of a second.
const EVENTS_PER_COMMIT: usize = 10_000;

/// Records events of many callers. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    requests: mpsc::Sender<Request>,
}

#[derive(Debug)]
struct Request {
    events: Vec<Arrived>,
    answer: oneshot::Sender<Result<Vec<Outcome>>>,
}

/// How many events somebody sent, and where the answer goes.
type Asker = (usize, oneshot::Sender<Result<Vec<Outcome>>>);

impl Recorder {
    /// A recorder, and what runs it until its last clone is gone. It ends with an error when the store can never work
    /// again: requests that come later are then refused at once.
    pub fn new(meter: Meter) -> (Self, impl Future<Output = Result<()>> + Send + 'static) {
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        (Self { requests }, run(meter, waiting))
    }

    /// Records events; gives what became of each once all are on disk.
    pub async fn record(&self, events: Vec<Arrived>) -> Result<Vec<Outcome>> {
        let (answer, answered) = oneshot::channel();
        let stopped = || Error::unavailable("the recorder has stopped");
        self.requests.send(Request { events, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

async fn run(meter: Meter, mut waiting: mpsc::Receiver<Request>) -> Result<()> {
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

/// Records a group and answers each request; the error is one after which nothing can be recorded.
async fn record_group(meter: &Meter, group: Vec<Request>) -> Result<()> {
    let mut all = Vec::new();
    let mut askers = Vec::with_capacity(group.len());
    for mut request in group {
        askers.push((request.events.len(), request.answer));
        all.append(&mut request.events);
    }
    let all = Arc::new(all);
    let mut outcomes = match meter.record(Arc::clone(&all)).await {
        Ok(outcomes) => outcomes.into_iter(),
        Err(error) => return record_apart(meter, &all, askers, error).await,
    };
    for (events, asker) in askers {
        answer(asker, Ok(outcomes.by_ref().take(events).collect()));
    }
    if let Err(error) = meter.seal_soon().await {
        tracing::warn!(error = error.chain(), "keys in memory are not sealed yet");
    }
    Ok(())
}

/// One of several may be at fault, so that each is tried alone.
async fn record_apart(
    meter: &Meter,
    all: &[Arrived],
    mut askers: Vec<Asker>,
    error: Error,
) -> Result<()> {
    if error.is_fatal() {
        // The others are told by their channels, which close with this task.
        return Err(error);
    }
    if askers.len() == 1 {
        if let Some((_, asker)) = askers.pop() {
            answer(asker, Err(error));
        }
        return Ok(());
    }
    tracing::debug!(error = error.chain(), "records requests one by one");
    let mut rest = all;
    for (events, asker) in askers {
        let (own, others) = rest.split_at(events);
        rest = others;
        let recorded = meter.record(own.to_vec()).await;
        match recorded {
            Err(error) if error.is_fatal() => return Err(error),
            recorded => answer(asker, recorded),
        }
    }
    Ok(())
}

/// Whoever asked may be gone; what was recorded stays.
fn answer(to: oneshot::Sender<Result<Vec<Outcome>>>, outcomes: Result<Vec<Outcome>>) {
    drop(to.send(outcomes));
}
