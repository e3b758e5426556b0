//! Sources of API keys: the source under which each key sends usage.
//!
//! Source and id together identify an event. So a key must keep its source when it is renamed: otherwise events that
//! are sent again after the rename would count twice. The source of a key is the configured one, else the one that it
//! had before, else its name. A key is recognised by its secret and, if the secret was replaced, by its name.
//!
//! Guarantees: a key keeps its source until the configuration changes it; another source for a key that has sent usage
//! is refused unless it is forced. A new key does not get the source of another key merely by its name. A key whose
//! name and secret both changed at once cannot be recognised: a warning says so. Only fingerprints of secrets are
//! stored. Leaves to others: which keys there are.

use std::collections::BTreeSet;

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};

use crate::Meter;
use crate::error::{Error, Result};
use crate::settings::check_name;
use crate::store::head::Head;

/// A key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredKey {
    pub name: String,
    /// A one-way hash of its secret.
    pub fingerprint: String,
    /// The configured source.
    pub source: Option<String>,
}

/// The source of an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySource {
    /// Name of the key.
    pub name: String,
    /// A one-way hash of its secret.
    pub fingerprint: String,
    /// The source of events that it sends without one.
    pub source: String,
    /// Whether it has sent usage.
    pub used: bool,
}

impl Meter {
    /// Determines and stores the sources of all keys. Another source for a key that has sent usage is an error unless
    /// `force` is set, and so is a new key whose name is the source of another.
    pub async fn sync_key_sources(
        &self,
        keys: &[ConfiguredKey],
        force: bool,
    ) -> Result<Vec<KeySource>> {
        for key in keys {
            check_name("the source of a key", key.source.as_deref().unwrap_or(&key.name))?;
        }
        let synced = self.sql.write(|tx| async move { sync_in(&tx, keys, force).await });
        let (sources, possible_rename) = synced.await?;
        if let Some(PossibleRename { gone, new }) = possible_rename {
            tracing::warn!(
                gone = gone.join(", "),
                new = new.join(", "),
                "API keys that have sent usage are gone, and there are new ones without a source: if one of them \
                 replaces another, give it the same source, or events that are sent again count twice"
            );
        }
        Ok(sources)
    }

    pub async fn mark_key_used(&self, fingerprint: &str) -> Result<()> {
        let text = "UPDATE meter_key_source SET used = 1 WHERE fingerprint = $1 AND used = 0";
        self.sql.execute(text, params![fingerprint]).await?;
        Ok(())
    }
}

/// Used keys that are gone since the last start, and new keys without a source.
#[derive(Debug, PartialEq, Eq)]
struct PossibleRename {
    /// Each with its source.
    gone: Vec<String>,
    new: Vec<String>,
}

/// Used keys that may have been renamed and got a new secret at once. `known` is sorted newest first.
fn possible_rename(known: &[(KeySource, i64)], keys: &[ConfiguredKey]) -> Option<PossibleRename> {
    let last_start = known.first().map(|(_, seen_ms)| *seen_ms)?;
    let all: Vec<KeySource> = known.iter().map(|(key, _)| key.clone()).collect();
    let is_there = |known: &KeySource| {
        keys.iter().any(|key| key.name == known.name || key.fingerprint == known.fingerprint)
    };
    let gone =
        known.iter().filter(|(key, seen_ms)| *seen_ms == last_start && key.used && !is_there(key));
    let gone: Vec<String> =
        gone.map(|(key, _)| format!("{} (source {})", key.name, key.source)).collect();
    let new = keys.iter().filter(|key| key.source.is_none() && before(&all, keys, key).is_none());
    let new: Vec<String> = new.map(|key| key.name.clone()).collect();
    (!gone.is_empty() && !new.is_empty()).then_some(PossibleRename { gone, new })
}

async fn sync_in(
    tx: &Tx,
    keys: &[ConfiguredKey],
    force: bool,
) -> Result<(Vec<KeySource>, Option<PossibleRename>)> {
    // Serializes processes that start together.
    let head = Head::lock(tx).await?;
    let known = known_in(tx).await?;
    let possible_rename = possible_rename(&known, keys);
    let known: Vec<KeySource> = known.into_iter().map(|(key, _)| key).collect();
    // Before sources were stored, the name was the source, and it is unknown which keys were used.
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
    Ok((sources, possible_rename))
}

/// All stored keys, with the time when each was last configured, newest first.
async fn known_in(tx: &Tx) -> Result<Vec<(KeySource, i64)>> {
    let text = "SELECT key_name, fingerprint, source, used, seen_ms FROM meter_key_source
        ORDER BY seen_ms DESC, fingerprint";
    let found = tx.execute(text, params![]).await?;
    let known = found.rows.iter().map(|row| {
        let key = KeySource {
            name: row.text(0)?.to_owned(),
            fingerprint: row.text(1)?.to_owned(),
            source: row.text(2)?.to_owned(),
            used: row.int(3)? != 0,
        };
        Ok((key, row.int(4)?))
    });
    known.collect()
}

/// The stored entry of a key: by its secret, else by its name if the secret of that name is no longer in use.
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

/// A new key without a configured source must not share the source of a key that used to have its name.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_key_that_is_gone_while_a_new_one_came_may_have_been_renamed() {
        let known = |name: &str, secret: &str, used, seen_ms| {
            let (name, fingerprint) = (name.to_owned(), secret.to_owned());
            (KeySource { source: name.clone(), name, fingerprint, used }, seen_ms)
        };
        let key = |name: &str, secret: &str, source: Option<&str>| ConfiguredKey {
            name: name.to_owned(),
            fingerprint: secret.to_owned(),
            source: source.map(str::to_owned),
        };
        let before = [known("till", "1", true, 9), known("shop", "2", true, 9)];
        let shop = || key("shop", "2", None);
        let found = possible_rename(&before, &[key("desk", "3", None), shop()]).expect("a warning");
        let (gone, new) = (vec!["till (source till)".to_owned()], vec!["desk".to_owned()]);
        assert_eq!(found, PossibleRename { gone, new });
        for fine in [
            vec![key("till", "3", None), shop()],
            vec![key("desk", "1", None), shop()],
            vec![key("desk", "3", Some("till")), shop()],
            vec![shop()],
            vec![key("till", "1", None), shop(), key("desk", "3", None)],
        ] {
            assert_eq!(possible_rename(&before, &fine), None, "{fine:?}");
        }
        let unused = [known("till", "1", false, 9), known("shop", "2", true, 9)];
        assert_eq!(possible_rename(&unused, &[key("desk", "3", None), shop()]), None);
        // It was already gone at the last start, which warned then.
        let earlier = [known("shop", "2", true, 9), known("till", "1", true, 8)];
        assert_eq!(possible_rename(&earlier, &[key("desk", "3", None), shop()]), None);
        assert_eq!(possible_rename(&[], &[shop()]), None);
    }
}
