//! Usage as it is served: recorded, queried, and watched for changes.
//!
//! | module | role |
//! |---|---|
//! | [`relay`] | carries usage of chains to the meter, and shows what is not recorded yet |
//! | [`chain_usage`] | usage of one chain, as the relay reads it |
//! | [`key_sources`] | the sources under which API keys send usage |
//!
//! Guarantees: an outcome is returned once the event is on disk; watchers are notified after that. Leaves to others:
//! metering ([`logmill_meter`]), HTTP ([`crate::http`]), and the tasks behind it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use logmill_io::ErrorKind;
use logmill_meter::record::{Outcome, ReceivedEvent};
use logmill_meter::{Meter, Recorder};
use tokio::sync::watch;

use crate::readiness::stores::WriteAlarm;
use key_sources::KeySources;
use relay::Relays;

pub mod chain_usage;
pub mod key_sources;
pub mod relay;

/// Usage as it is served: recorded, queried, and watched for changes.
#[derive(Clone, Debug)]
pub struct Usage {
    pub meter: Meter,
    recorder: Recorder,
    pub(crate) watches: CustomerWatches,
    pub relays: Relays,
    /// Raised when recording fails because of the store, so that readiness tries to write.
    pub write_alarm: WriteAlarm,
    pub sources: KeySources,
}

impl Usage {
    pub fn new(meter: Meter, recorder: Recorder) -> Self {
        Self {
            meter,
            recorder,
            watches: CustomerWatches::default(),
            relays: Relays::default(),
            write_alarm: WriteAlarm::default(),
            sources: KeySources::default(),
        }
    }

    /// Records events; returns the outcome of each once all are on disk.
    pub(crate) async fn record(
        &self,
        events: Vec<ReceivedEvent>,
    ) -> logmill_meter::Result<Vec<Outcome>> {
        let changed = self.watches.among(&events);
        let outcomes = self.recorder.record(events).await.inspect_err(|error| {
            if matches!(error.kind(), ErrorKind::Transient | ErrorKind::Internal) {
                self.write_alarm.raise();
            }
        })?;
        for customer in changed {
            customer.send_modify(|changes| *changes = changes.wrapping_add(1));
        }
        Ok(outcomes)
    }
}

/// The watched customers: watchers are notified when this process has recorded usage of theirs.
#[derive(Clone, Debug, Default)]
pub(crate) struct CustomerWatches(Arc<WatchTable>);

#[derive(Debug, Default)]
struct WatchTable {
    /// Number of watchers, so that recording skips the lookup if there are none.
    count: AtomicUsize,
    customers: RwLock<HashMap<String, watch::Sender<u64>>>,
}

impl CustomerWatches {
    /// Watches a customer until the returned value is dropped.
    pub(crate) fn watch(&self, customer: &str) -> CustomerWatcher {
        let mut customers = self.0.customers.write().unwrap_or_else(PoisonError::into_inner);
        let sender = customers.entry(customer.to_owned()).or_insert_with(|| watch::channel(0).0);
        let changes = sender.subscribe();
        self.0.count.store(customers.len(), Ordering::Release);
        CustomerWatcher {
            watches: self.clone(),
            customer: customer.to_owned(),
            changes: Some(changes),
        }
    }

    /// The watched customers among those of the events.
    fn among(&self, events: &[ReceivedEvent]) -> Vec<watch::Sender<u64>> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let customers = self.0.customers.read().unwrap_or_else(PoisonError::into_inner);
        let mut found: HashMap<&str, &watch::Sender<u64>> = HashMap::new();
        for received in events {
            if let Some((name, sender)) = customers.get_key_value(&received.event.customer) {
                found.insert(name, sender);
            }
        }
        found.into_values().cloned().collect()
    }
}

/// A watcher of one customer.
#[derive(Debug)]
pub(crate) struct CustomerWatcher {
    watches: CustomerWatches,
    customer: String,
    /// `None` once it is dropped.
    changes: Option<watch::Receiver<u64>>,
}

impl CustomerWatcher {
    /// Waits until usage was recorded by this process.
    pub(crate) async fn changed(&mut self) {
        let changed = match &mut self.changes {
            Some(changes) => changes.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for CustomerWatcher {
    fn drop(&mut self) {
        let watches = &self.watches.0;
        let mut customers = watches.customers.write().unwrap_or_else(PoisonError::into_inner);
        self.changes = None;
        let is_last = |sender: &watch::Sender<u64>| sender.receiver_count() == 0;
        if customers.get(&self.customer).is_some_and(is_last) {
            customers.remove(&self.customer);
        }
        watches.count.store(customers.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_customer_without_watchers_is_removed() {
        let watches = CustomerWatches::default();
        let (one, two) = (watches.watch("acme"), watches.watch("acme"));
        drop(one);
        assert_eq!(watches.0.count.load(Ordering::Acquire), 1);
        drop(two);
        assert_eq!(watches.0.count.load(Ordering::Acquire), 0);
        assert!(watches.0.customers.read().expect("not poisoned").is_empty());
    }
}
