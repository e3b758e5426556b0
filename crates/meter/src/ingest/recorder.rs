//! `Recorder`: many requests, few transactions.
//!
//! Requests that arrive during a transaction are recorded together by the next one, so that they share one wait for the
//! disk ([`logmill_io::group_commit`]). Groups are formed here, because recording has a task, and with SQLite a thread,
//! of its own, and a group is limited by its events.
//!
//! Guarantees: a request is answered once its events are on disk, all of them or none. A request that cannot be
//! recorded fails alone. The number of waiting requests is bounded. Leaves to others: running it as long as there are
//! callers.

use std::future::Future;
use std::sync::Arc;

use logmill_io::group_commit::{GroupWriter, WaitingItem, commit_group};
use tokio::sync::{mpsc, oneshot};

use crate::Meter;
use crate::error::{Error, Result};
use crate::ingest::new_events::ReceivedEvent;
use crate::ingest::record::Outcome;

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

/// The events of a request, and the channel for their outcomes.
type RecordRequest = WaitingItem<Vec<ReceivedEvent>, Vec<Outcome>, Error>;

impl Recorder {
    /// A recorder, and the future that runs it until the last clone is dropped. The future ends with an error if the
    /// store has failed for good: later requests are then refused at once.
    pub fn new(meter: Meter) -> (Self, impl Future<Output = Result<()>> + Send + 'static) {
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        (Self { requests }, run(meter, waiting))
    }

    /// Records events; returns the outcome of each once all are on disk.
    pub async fn record(&self, events: Vec<ReceivedEvent>) -> Result<Vec<Outcome>> {
        let (answer, outcomes) = oneshot::channel();
        let stopped = || Error::unavailable("the recorder has stopped");
        let request = RecordRequest { item: events, answer };
        self.requests.send(request).await.map_err(|_| stopped())?;
        outcomes.await.map_err(|_| stopped())?
    }
}

/// Ends with an error if nothing can be recorded any more: the channels of waiting requests close with it.
async fn run(meter: Meter, mut waiting: mpsc::Receiver<RecordRequest>) -> Result<()> {
    let writer = EventWriter(meter);
    while let Some(first) = waiting.recv().await {
        let mut events = first.item.len();
        let mut group = vec![first];
        while events < EVENTS_PER_COMMIT
            && let Ok(next) = waiting.try_recv()
        {
            events += next.item.len();
            group.push(next);
        }
        let are_recorded = commit_group(&writer, &mut (), group).await?;
        if are_recorded && let Err(error) = writer.0.seal_soon().await {
            tracing::warn!(error = error.chain(), "cannot enqueue the sealing of keys");
        }
    }
    Ok(())
}

/// Records the events of several requests together.
struct EventWriter(Meter);

impl GroupWriter for EventWriter {
    type Item = Vec<ReceivedEvent>;
    type Outcome = Vec<Outcome>;
    type Error = Error;
    type State = ();

    async fn commit(
        &self,
        (): &mut (),
        requests: &mut Vec<Vec<ReceivedEvent>>,
    ) -> Result<Vec<Vec<Outcome>>> {
        let counts: Vec<usize> = requests.iter().map(Vec::len).collect();
        let mut all = Vec::with_capacity(counts.iter().sum());
        requests.drain(..).for_each(|mut events| all.append(&mut events));
        let all = Arc::new(all);
        match self.0.record(Arc::clone(&all)).await {
            Ok(outcomes) => Ok(split(outcomes, &counts)),
            Err(error) => {
                *requests = split(Arc::unwrap_or_clone(all), &counts);
                if requests.len() > 1 && !error.is_fatal() {
                    tracing::debug!(
                        error = error.chain(),
                        "recording a group of requests failed, recording them one by one"
                    );
                }
                Err(error)
            }
        }
    }

    fn is_fatal(&self, error: &Error) -> bool {
        error.is_fatal()
    }
}

/// Parts of these lengths.
fn split<T>(all: Vec<T>, lengths: &[usize]) -> Vec<Vec<T>> {
    let mut all = all.into_iter();
    lengths.iter().map(|length| all.by_ref().take(*length).collect()).collect()
}
