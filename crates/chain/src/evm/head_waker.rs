//! Announcements of new blocks. A WebSocket only wakes the caller; its contents are not trusted.
//!
//! Guarantees: a socket that breaks, lies or falls silent costs only its wake-ups. Leaves to others: fetching the
//! heads, which the caller also does on its own schedule.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logmill_io::wire::{Feed, Limits, TextStream};
use logmill_io::{Clock, Entropy, error_chain};
use logmill_work::Backoff;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::rpc::quantity;

/// A header is a few kilobytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Maximum time to open a socket.
const OPEN_MAX: Duration = Duration::from_secs(20);

/// A socket that is silent this long is considered dead. Slower chains lose a wake-up or two.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Wait between two attempts to open a socket.
const RETRY: Backoff = Backoff::Exponential {
    first: Duration::from_secs(1),
    max: Duration::from_secs(120),
    jitter_percent: 20,
};

const SUBSCRIBE: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}"#;

/// Maximum announcements kept until they are taken.
const ANNOUNCED_MAX: usize = 256;

/// Wakes callers that wait for a new head.
#[derive(Debug)]
pub(super) struct HeadWaker {
    signals: watch::Sender<u64>,
    seen: AtomicU64,
    /// The heads that nodes announced, and when.
    announced: Mutex<VecDeque<(u64, Duration)>>,
}

impl HeadWaker {
    pub(super) fn new() -> Arc<Self> {
        let (signals, seen, announced) =
            (watch::Sender::new(0), AtomicU64::new(0), Mutex::default());
        Arc::new(Self { signals, seen, announced })
    }

    fn announce(&self, head: Option<u64>, now: Duration) {
        if let Some(head) = head {
            let mut announced = self.announced();
            announced.push_back((head, now));
            let over = announced.len().saturating_sub(ANNOUNCED_MAX);
            announced.drain(..over);
        }
        self.ring();
    }

    /// Whether there was a wake-up since the last [`HeadWaker::wait`] or [`HeadWaker::take_announced`].
    pub(super) fn has_rung(&self) -> bool {
        self.seen.load(Ordering::Relaxed) != *self.signals.borrow()
    }

    /// The announcements since the last call, oldest first, each with its age. They no longer wake a caller.
    pub(super) fn take_announced(&self, now: Duration) -> Vec<(u64, Duration)> {
        // Before taking the announcements, so that a wake-up in between is not lost.
        self.seen.store(*self.signals.borrow(), Ordering::Relaxed);
        let announced = std::mem::take(&mut *self.announced());
        announced.into_iter().map(|(head, at)| (head, now.saturating_sub(at))).collect()
    }

    fn announced(&self) -> MutexGuard<'_, VecDeque<(u64, Duration)>> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self) {
        self.signals.send_modify(|times| *times = times.wrapping_add(1));
    }

    /// Completes when there was a wake-up since the last call, or after `at_most`.
    pub(super) async fn wait(&self, clock: &dyn Clock, at_most: Duration) {
        let mut signals = self.signals.subscribe();
        let now = *signals.borrow_and_update();
        if self.seen.swap(now, Ordering::Relaxed) != now {
            return;
        }
        tokio::select! {
            biased;
            _ = signals.changed() => {
                self.seen.store(*signals.borrow(), Ordering::Relaxed);
            }
            () = clock.sleep(at_most) => {}
        }
    }
}

/// Listens to a node for as long as it is polled.
pub(super) async fn listen(
    node: String,
    feed: Arc<dyn Feed>,
    wake: Arc<HeadWaker>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
) {
    let limits = Limits { bytes_max: MESSAGE_BYTES_MAX, timeout: OPEN_MAX };
    let mut failed = 0;
    loop {
        match feed.open(SUBSCRIBE.to_owned(), limits).await {
            Ok(texts) => {
                if forward_heads(texts, &wake, &*clock).await {
                    failed = 0;
                }
                tracing::debug!(%node, "a node's WebSocket closed");
            }
            Err(error) => {
                tracing::debug!(%node, error = error_chain(&error), "cannot open a node's WebSocket, retrying");
            }
        }
        failed += 1;
        clock.sleep(RETRY.wait(failed, &*entropy)).await;
    }
}

/// Wakes callers at each subscription message; returns whether there was one.
async fn forward_heads(
    mut texts: Box<dyn TextStream>,
    wake: &HeadWaker,
    clock: &dyn Clock,
) -> bool {
    let mut received = false;
    loop {
        let text = tokio::select! {
            biased;
            text = texts.next() => text,
            () = clock.sleep(SILENCE_MAX) => return received,
        };
        let Ok(Some(text)) = text else {
            return received;
        };
        if let Some(head) = announced_head(&text) {
            received = true;
            wake.announce(head, clock.monotonic());
        }
    }
}

/// The head in a subscription message, if it names one; `None` for other messages.
fn announced_head(text: &[u8]) -> Option<Option<u64>> {
    #[derive(serde::Deserialize)]
    struct Message<'a> {
        #[serde(borrow, default)]
        method: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        params: Option<&'a RawValue>,
    }
    #[derive(serde::Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        result: Header<'a>,
    }
    #[derive(serde::Deserialize)]
    struct Header<'a> {
        #[serde(borrow)]
        number: Cow<'a, str>,
    }
    let message: Message<'_> = serde_json::from_slice(text).ok()?;
    if message.method.as_deref() != Some("eth_subscription") {
        return None;
    }
    let params = message.params.and_then(|json| serde_json::from_str(json.get()).ok());
    Some(params.and_then(|params: Params<'_>| quantity(&params.result.number)))
}
