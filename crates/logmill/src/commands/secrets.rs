//! `logmill secrets …`: operator commands for the keys that encrypt webhook secrets.
//!
//! Guarantees: no key is logged, and none is printed but a new one. Leaves to others: finding the keys
//! ([`crate::server::usage`]), encrypting ([`logmill_meter::webhooks`]).

use logmill_io::OsEntropy;
use logmill_meter::webhooks::SecretKeys;

use crate::cli;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::server::usage;
use crate::stores::{self, Database, Databases, OpenMode};

pub(crate) async fn run(command: cli::Secrets, settings: &Settings) -> Result<()> {
    match command {
        cli::Secrets::Rekey => rekey(settings).await,
        cli::Secrets::Generate => output::line(&SecretKeys::generate(&OsEntropy)),
    }
}

async fn rekey(settings: &Settings) -> Result<()> {
    Database::Meter.expect(settings)?;
    // On SQLite no server may run meanwhile; on PostgreSQL servers may.
    let _folder = match settings.postgres() {
        None => Some(stores::take(&settings.data).await?),
        Some(_) => None,
    };
    let databases = Databases::open(settings, OpenMode::Write).await?;
    let opened = usage::open_for_command(&databases).await?;
    let rekeyed = opened.meter.webhooks().rekey().await?;
    output::line(&format!(
        "{} secrets encrypted again, {} already had the first key, {} cannot be decrypted",
        rekeyed.encrypted, rekeyed.kept, rekeyed.unreadable
    ))?;
    match rekeyed.unreadable {
        0 => Ok(()),
        secrets => Err(Error::SecretsUnreadable { secrets }),
    }
}
