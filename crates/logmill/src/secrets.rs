//! `logmill secrets …`, and the keys that encrypt webhook secrets at rest.
//!
//! | keys come from | when |
//! |---|---|
//! | `secrets.keys`, then `secrets.key_file` | if any of them is given |
//! | `secrets.key` in the data folder, made if missing | with SQLite, if none is given |
//! | nowhere | with PostgreSQL, if none is given: webhooks are refused |
//!
//! Guarantees: no key is printed or logged; the file that is made is its owner's alone. Leaves to others: encrypting
//! ([`logmill_meter::webhooks`]).

use logmill_io::{OsEntropy, private};
use logmill_meter::webhooks::{SecretKeys, Webhooks};
use logmill_work::Queue;

use crate::cli;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::meter;
use crate::output;
use crate::stores;

/// The file of the key, where none is given.
const KEY_FILE: &str = "secrets.key";

/// Runs one command.
pub(crate) async fn run(command: cli::Secrets, settings: &Settings) -> Result<()> {
    match command {
        cli::Secrets::Rekey => rekey(settings).await,
        cli::Secrets::Generate => output::line(&SecretKeys::generate(&OsEntropy)),
    }
}

async fn rekey(settings: &Settings) -> Result<()> {
    stores::meter::expect_database(settings)?;
    // On SQLite no server may run meanwhile; on PostgreSQL servers may.
    let _folder = match settings.postgres() {
        None => Some(stores::take(&settings.data).await?),
        Some(_) => None,
    };
    let opened = meter::open(settings).await?.ok_or(Error::NothingMetered)?;
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

/// The keys that encrypt the secrets of webhooks.
pub(crate) async fn keys(settings: &Settings, queue: &Queue) -> Result<SecretKeys> {
    let given = given_keys(settings)?;
    if !given.is_empty() {
        return Ok(given);
    }
    if settings.postgres().is_none() {
        return embedded_keys(settings);
    }
    let needed = !settings.meter.webhooks().is_empty() || Webhooks::has_secrets(queue).await?;
    if needed { Err(Error::NoSecretKey) } else { Ok(SecretKeys::missing()) }
}

fn given_keys(settings: &Settings) -> Result<SecretKeys> {
    let keys = SecretKeys::parse(settings.secrets.keys.expose())?;
    let Some(file) = settings.secrets.key_file() else { return Ok(keys) };
    let text = private::read_text(file)?;
    let text = text.ok_or_else(|| logmill_io::Error::NotFound {
        what: format!("the key file {}", file.display()),
    })?;
    let in_file = SecretKeys::parse(&text)?;
    if in_file.is_empty() {
        let what = format!("the key file {} has no key", file.display());
        return Err(logmill_io::Error::Invalid { what }.into());
    }
    Ok(keys.followed_by(&in_file))
}

/// The key of the data folder. It is never replaced by itself: what it encrypted would be lost.
fn embedded_keys(settings: &Settings) -> Result<SecretKeys> {
    let path = settings.data.join(KEY_FILE);
    if let Some(text) = private::read_text(&path)? {
        private::narrow_file(&path)?;
        let keys = SecretKeys::parse(&text)?;
        if keys.is_empty() {
            let what = format!("the key file {} has no key", path.display());
            return Err(logmill_io::Error::Invalid { what }.into());
        }
        return Ok(keys);
    }
    let key = SecretKeys::generate(&OsEntropy);
    let text = format!(
        "# Encrypts the secrets of webhooks in meter.db. Keep it apart from backups.\n{key}\n"
    );
    private::write_new(&path, &text)?;
    tracing::info!(file = %path.display(), "made a key that encrypts webhook secrets");
    Ok(SecretKeys::parse(&text)?)
}
