//! The sources under which API keys send usage, looked up for every request.
//!
//! Guarantees: the mark that a key has sent usage is on disk before any of its usage is. Leaves to others: which
//! source a key has ([`logmill_meter::sources`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use logmill_meter::Meter;
use logmill_meter::sources::KeySource;

/// The sources of all keys that may send usage, by key name.
#[derive(Clone, Debug, Default)]
pub struct KeySources(Arc<BTreeMap<String, Entry>>);

#[derive(Debug)]
struct Entry {
    source: Arc<str>,
    fingerprint: String,
    used: AtomicBool,
}

impl KeySources {
    pub fn new(sources: &[KeySource]) -> Self {
        let entries = sources.iter().map(|key| {
            let entry = Entry {
                source: key.source.as_str().into(),
                fingerprint: key.fingerprint.clone(),
                used: AtomicBool::new(key.used),
            };
            (key.name.clone(), entry)
        });
        Self(Arc::new(entries.collect()))
    }

    /// The source of a key.
    pub(crate) fn of(&self, name: &str) -> Option<Arc<str>> {
        self.0.get(name).map(|entry| Arc::clone(&entry.source))
    }

    /// Records that a key sends usage.
    pub(crate) async fn mark_used(&self, name: &str, meter: &Meter) -> logmill_meter::Result<()> {
        let Some(entry) = self.0.get(name) else { return Ok(()) };
        if !entry.used.load(Ordering::Acquire) {
            meter.mark_key_used(&entry.fingerprint).await?;
            entry.used.store(true, Ordering::Release);
        }
        Ok(())
    }
}
