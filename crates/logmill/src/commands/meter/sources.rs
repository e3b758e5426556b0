//! `logmill meter sources`: the sources under which API keys send usage.
//!
//! Guarantees: the source of a used key changes only with `--force`. Leaves to others: which source a key has
//! ([`logmill_meter::sources`]).

use serde_json::json;

use super::folder::take_folder;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::server::usage::{Opener, SourceChange, open_as};
use crate::stores::{Database, Databases, OpenMode};

/// Prints the sources of all keys; with `force`, accepts configured sources that differ from those of used keys.
pub(super) async fn list(settings: &Settings, force: bool, as_json: bool) -> Result<()> {
    if !force {
        Database::Meter.expect(settings)?;
    }
    let _folder = take_folder(settings)?;
    let change = if force { SourceChange::Accept } else { SourceChange::Refuse };
    let databases = Databases::open(settings, OpenMode::Write).await?;
    let metered = open_as(Opener::Command, &databases, change).await?;
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
