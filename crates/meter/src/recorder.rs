//! `Recorder`: many requests, few transactions.
//!
//! Requests that arrive while a transaction is under way are recorded together by the next one, so that they share one
//! wait for the disk.
//!
//! Guarantees: a request is answered after its events are on disk, and all of them or none; one that can not be
//! recorded fails alone; the number of events that wait is bounded. Leaves to others: running it, for as long as there
//! is somebody who records.

use std::future::Future;

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

impl Recorder {
    /// A recorder, and what runs it until its last clone is gone.
    pub fn new(meter: Meter) -> (Self, impl Future<Output = ()> + Send + 'static) {
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

async fn run(meter: Meter, mut waiting: mpsc::Receiver<Request>) {
    while let Some(first) = waiting.recv().await {
        let mut events = first.events.len();
        let mut group = vec![first];
        while events < EVENTS_PER_COMMIT
            && let Ok(next) = waiting.try_recv()
        {
            events += next.events.len();
            group.push(next);
        }
        record_group(&meter, group).await;
    }
}

async fn record_group(meter: &Meter, mut group: Vec<Request>) {
    let sizes: Vec<usize> = group.iter().map(|request| request.events.len()).collect();
    // Copied, as one that is at fault makes the others be recorded again.
    let all = group.iter().flat_map(|request| request.events.iter().cloned()).collect();
    let outcomes = match meter.record(all).await {
        Ok(outcomes) => outcomes,
        Err(error) if group.len() > 1 => {
            tracing::debug!(error = error.chain(), "records requests one by one");
            for request in group {
                answer(request.answer, meter.record(request.events).await);
            }
            return;
        }
        Err(error) => {
            if let Some(request) = group.pop() {
                answer(request.answer, Err(error));
            }
            return;
        }
    };
    let mut outcomes = outcomes.into_iter();
    for (request, size) in group.into_iter().zip(sizes) {
        answer(request.answer, Ok(outcomes.by_ref().take(size).collect()));
    }
}

/// Whoever asked may be gone; what was recorded stays.
fn answer(to: oneshot::Sender<Result<Vec<Outcome>>>, outcomes: Result<Vec<Outcome>>) {
    drop(to.send(outcomes));
}
