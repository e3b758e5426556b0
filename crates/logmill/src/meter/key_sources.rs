//! The sources under which API keys send usage: looked up for every request, and `logmill meter sources`.
//!
//! Guarantees: the mark that a key has sent usage is on disk before any of its usage is. Leaves to others: which
//! source a key has ([`logmill_meter::sources`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use logmill_meter::Meter;
use logmill_meter::sources::KeySource;
use serde_json::json;

use super::{Opener, SourceChange, open_as};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::stores;

/// The sources of all keys that may send usage, by key name.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySources(Arc<BTreeMap<String, Entry>>);

#[derive(Debug)]
struct Entry {
    source: Arc<str>,
    fingerprint: String,
    used: AtomicBool,
}

impl KeySources {
    pub(crate) fn new(sources: &[KeySource]) -> Self {
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

/// Prints the sources of all keys; with `force`, accepts configured sources that differ from those of used keys.
pub(super) async fn run(settings: &Settings, force: bool, as_json: bool) -> Result<()> {
    if !force {
        stores::meter::expect_database(settings)?;
    }
    let _folder = super::command::folder(settings)?;
    let change = if force { SourceChange::Accept } else { SourceChange::Refuse };
    let metered = open_as(Opener::Command, settings, change).await?;
    let metered = metered.ok_or(Error::NothingMetered)?;
    if as_json {
        let keys = metered
            .keys
            .iter()
            .map(|key| json!({"name": key.name, "source": key.source, "used": key.used}));
        return output::json(&keys.collect::<Vec<_>>());
    }
    let head = ["key", "source", "used"].map(str::to_owned).to_vec();
    let rows = metered.keys.iter().map(|key| {
        let used = if key.used { "yes" } else { "no" };
        vec![output::one_line(&key.name), output::one_line(&key.source), used.to_owned()]
    });
    output::table(&[head].into_iter().chain(rows).collect::<Vec<_>>())
}
