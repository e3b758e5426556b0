//! Sources of API keys: as who a key sends usage.
//!
//! The source and the id of an event make it this event and no other. So what a key sends must have the same source
//! whatever the key is called, or events that are sent again after a key was renamed would count twice. The source of
//! a key is the one that the configuration gives it, else the one that it had, else its name. A key is recognised by
//! its secret, and, if the secret was replaced, by its name.
//!
//! Guarantees: what a key was given stays until somebody says otherwise; another source for a key that has sent usage
//! is refused unless it is forced. A new key does not get the source of another by its name alone. Secrets are not
//! kept, only fingerprints of them. Leaves to others: which keys there are.

use std::collections::BTreeSet;

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};

use crate::error::{Error, Result};
use crate::meter::{Head, Meter};
use crate::settings::check_name;

/// A key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredKey {
    /// Its name.
    pub name: String,
    /// A hash of its secret that does not lead back to it.
    pub fingerprint: String,
    /// The source that the configuration gives it.
    pub source: Option<String>,
}

/// As who a key sends usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySource {
    /// The key's name.
    pub name: String,
    /// A hash of its secret.
    pub fingerprint: String,
    /// The source of events that it sends without one.
    pub source: String,
    /// Whether it has sent usage.
    pub used: bool,
}

impl Meter {
    /// Finds the sources of all keys and remembers them. Another source for a key that has sent usage is an error
    /// unless `force` is set, and so is a new key whose name is the source of another.
    pub async fn sync_key_sources(
        &self,
        keys: &[ConfiguredKey],
        force: bool,
    ) -> Result<Vec<KeySource>> {
        for key in keys {
            check_name("the source of a key", key.source.as_deref().unwrap_or(&key.name))?;
        }
        let synced = self.sql.write(|tx| async move { Ok(sync_in(&tx, keys, force).await?) });
        Ok(synced.await?)
    }

    /// Remembers that a key has sent usage.
    pub async fn mark_key_used(&self, fingerprint: &str) -> Result<()> {
        let text = "UPDATE meter_key_source SET used = 1 WHERE fingerprint = $1 AND used = 0";
        self.sql.execute(text, params![fingerprint]).await?;
        Ok(())
    }
}

async fn sync_in(tx: &Tx, keys: &[ConfiguredKey], force: bool) -> Result<Vec<KeySource>> {
    // Processes that start together take turns.
    let head = Head::lock(tx).await?;
    let known = known_in(tx).await?;
    // Before sources were remembered the name was the source, and nobody knows which keys were used.
    let used_before = known.is_empty() && head.seq > 1;
    let mut sources: Vec<KeySource> = Vec::with_capacity(keys.len());
    for key in keys {
        let before = before(&known, keys, key);
        let source = match (&key.source, before) {
            (Some(source), Some(before)) if *source != before.source => {
                if before.used && !force {
                    return Err(changed(key, &before.source, source));
                }
                source
            }
            (Some(source), _) => source,
            (None, Some(before)) => &before.source,
            (None, None) => &key.name,
        };
        sources.push(KeySource {
            name: key.name.clone(),
            fingerprint: key.fingerprint.clone(),
            source: source.clone(),
            used: before.map_or(used_before, |before| before.used),
        });
        if key.source.is_none() && before.is_none() && !used_before {
            check_unshared(&known, keys, key)?;
        }
    }
    let text = "
        INSERT INTO meter_key_source (fingerprint, key_name, source, used, seen_ms)
        VALUES ($1, $2, $3, $4, now_ms())
        ON CONFLICT (fingerprint) DO UPDATE SET key_name = excluded.key_name,
            source = excluded.source, used = excluded.used, seen_ms = excluded.seen_ms";
    let rows = sources.iter().map(|key| {
        params![key.fingerprint.as_str(), key.name.as_str(), key.source.as_str(), key.used]
    });
    tx.execute_many(text, rows.collect::<Vec<_>>()).await?;
    Ok(sources)
}

/// All that is remembered, the newest first.
async fn known_in(tx: &Tx) -> Result<Vec<KeySource>> {
    let text = "SELECT key_name, fingerprint, source, used FROM meter_key_source
        ORDER BY seen_ms DESC, fingerprint";
    let found = tx.execute(text, params![]).await?;
    let known = found.rows.iter().map(|row| {
        Ok(KeySource {
            name: row.text(0)?.to_owned(),
            fingerprint: row.text(1)?.to_owned(),
            source: row.text(2)?.to_owned(),
            used: row.int(3)? != 0,
        })
    });
    known.collect()
}

/// What is remembered of a key: by its secret, else by its name where the secret of that name is no longer used.
fn before<'a>(
    known: &'a [KeySource],
    keys: &[ConfiguredKey],
    key: &ConfiguredKey,
) -> Option<&'a KeySource> {
    let by_secret = known.iter().find(|known| known.fingerprint == key.fingerprint);
    let in_use: BTreeSet<&str> = keys.iter().map(|key| key.fingerprint.as_str()).collect();
    by_secret.or_else(|| {
        known
            .iter()
            .find(|known| known.name == key.name && !in_use.contains(known.fingerprint.as_str()))
    })
}

/// A new key without a source of its own must not share that of a key which used to have its name.
fn check_unshared(known: &[KeySource], keys: &[ConfiguredKey], key: &ConfiguredKey) -> Result<()> {
    let other = keys.iter().filter(|other| other.name != key.name).find(|other| {
        let source = before(known, keys, other).map(|before| before.source.as_str());
        other.source.as_deref().or(source) == Some(key.name.as_str())
    });
    match other {
        None => Ok(()),
        Some(other) => Err(Error::invalid(format!(
            "the API key {} would send usage as the source {}, as the key {} does: give it a source, as the fourth \
             part of its entry in server.keys",
            key.name, key.name, other.name
        ))),
    }
}

fn changed(key: &ConfiguredKey, before: &str, now: &str) -> Error {
    Error::invalid(format!(
        "the API key {} has sent usage as the source {before}, and server.keys now says {now}: events that are sent \
         again would count twice. Give it the source {before}, or accept the change with \
         `logmill meter sources --force`",
        key.name
    ))
}
