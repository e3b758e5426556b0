//! Being told of new blocks. A WebSocket is a wake-up and nothing else: what it says is not believed, only looked into.
//!
//! Guarantees: a socket that breaks, lies or falls silent costs nothing but its wake-ups. Leaves to others: asking for
//! the heads, at the latest when the caller's own time has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use logmill_io::wire::{Feed, Limits, Texts};
use logmill_io::{Clock, Entropy, chain};
use logmill_work::Backoff;
use tokio::sync::watch;

/// A header is a few kilobytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The longest until a socket stands.
const OPEN_MAX: Duration = Duration::from_secs(20);

/// A socket that says nothing for so long is taken to be dead. Chains that are slower lose a wake-up or two.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Between two attempts.
const AGAIN: Backoff = Backoff::Exponential {
    first: Duration::from_secs(1),
    max: Duration::from_secs(120),
    jitter_percent: 20,
};

const SUBSCRIBE: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}"#;

/// Wakes those who wait for a new head.
#[derive(Debug)]
pub(super) struct Wake {
    told: watch::Sender<u64>,
    seen: AtomicU64,
}

impl Wake {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { told: watch::Sender::new(0), seen: AtomicU64::new(0) })
    }

    fn ring(&self) {
        self.told.send_modify(|times| *times = times.wrapping_add(1));
    }

    /// Completes when there was a wake-up since the last time, or after `at_most`.
    pub(super) async fn wait(&self, clock: &dyn Clock, at_most: Duration) {
        let mut told = self.told.subscribe();
        let now = *told.borrow_and_update();
        if self.seen.swap(now, Ordering::Relaxed) != now {
            return;
        }
        tokio::select! {
            biased;
            _ = told.changed() => {
                self.seen.store(*told.borrow(), Ordering::Relaxed);
            }
            () = clock.sleep(at_most) => {}
        }
    }
}

/// Listens to a node for as long as it is polled.
pub(super) async fn listen(
    node: String,
    feed: Arc<dyn Feed>,
    wake: Arc<Wake>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
) {
    let limits = Limits { bytes_max: MESSAGE_BYTES_MAX, timeout: OPEN_MAX };
    let mut failed = 0;
    loop {
        match feed.open(SUBSCRIBE.to_owned(), limits).await {
            Ok(texts) => {
                if hear(texts, &wake, &*clock).await {
                    failed = 0;
                }
                tracing::debug!(%node, "the web socket closed");
            }
            Err(error) => tracing::debug!(%node, error = chain(&error), "no web socket"),
        }
        failed += 1;
        clock.sleep(AGAIN.wait(failed, &*entropy)).await;
    }
}

/// Rings at each message about a subscription; says whether there was one.
async fn hear(mut texts: Box<dyn Texts>, wake: &Wake, clock: &dyn Clock) -> bool {
    let mut heard = false;
    loop {
        let text = tokio::select! {
            biased;
            text = texts.next() => text,
            () = clock.sleep(SILENCE_MAX) => return heard,
        };
        let Ok(Some(text)) = text else {
            return heard;
        };
        if is_news(&text) {
            heard = true;
            wake.ring();
        }
    }
}

fn is_news(text: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Message<'a> {
        #[serde(borrow, default)]
        method: Option<std::borrow::Cow<'a, str>>,
    }
    let message: Option<Message<'_>> = serde_json::from_slice(text).ok();
    message.and_then(|message| message.method).as_deref() == Some("eth_subscription")
}
