//! The keys that encrypt webhook secrets at rest.
//!
//! | source of keys | when |
//! |---|---|
//! | `secrets.keys`, `secrets.key_file`, then `secrets.key` of the data folder | if one of the first two is set |
//! | `secrets.key` in the data folder, created by a server if missing | with SQLite, if none is set |
//! | none | with PostgreSQL, if none is set: webhooks are refused |
//!
//! Guarantees: no key is printed or logged. A created key file is readable only by its owner. None is created while
//! there are encrypted secrets that it could not decrypt: then the server runs without a key, its endpoints are held,
//! and new ones are refused. Commands create none. Leaves to others: encrypting ([`logmill_meter::webhooks`]).

use std::path::{Path, PathBuf};

use logmill_io::{OsEntropy, private};
use logmill_meter::webhooks::{SecretKeys, Webhooks};
use logmill_work::Queue;

use super::Opener;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;

/// Key file used if no key is configured.
const KEY_FILE: &str = "secrets.key";

/// Keys that encrypt the secrets of webhooks.
pub(super) async fn open(opener: Opener, settings: &Settings, queue: &Queue) -> Result<SecretKeys> {
    let given = given_keys(settings)?;
    let file = settings.data.join(KEY_FILE);
    if !given.is_empty() {
        return Ok(match folder_keys(&file) {
            Ok(Some(before)) => given.followed_by(&before),
            Ok(None) => given,
            Err(error) => {
                let error = output::brief(&logmill_io::error_chain(&error));
                tracing::warn!(file = %file.display(), error, "cannot use the key file, only the configured keys");
                given
            }
        });
    }
    if settings.postgres().is_some() {
        let needed = !settings.meter.webhooks().is_empty() || Webhooks::has_secrets(queue).await?;
        let refused = needed && opener == Opener::Server;
        return if refused { Err(Error::NoSecretKey) } else { Ok(SecretKeys::missing()) };
    }
    match (folder_keys(&file)?, opener) {
        (Some(keys), _) => Ok(keys),
        (None, Opener::Command) => Ok(SecretKeys::missing()),
        (None, Opener::Server) => make_key(file, queue).await,
    }
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
        let what = format!("the key file {} contains no key", file.display());
        return Err(logmill_io::Error::Invalid { what }.into());
    }
    Ok(keys.followed_by(&in_file))
}

/// Key of the data folder; `None` if there is no file, or it is empty as an earlier version may have left it.
fn folder_keys(file: &Path) -> Result<Option<SecretKeys>> {
    let Some(text) = private::read_text(file)? else { return Ok(None) };
    if text.trim().is_empty() {
        return Ok(None);
    }
    private::narrow_file(file)?;
    let keys = SecretKeys::parse(&text).map_err(|error| {
        let why = logmill_io::error_chain(&error);
        logmill_io::Error::Invalid { what: format!("the key file {}: {why}", file.display()) }
    })?;
    if keys.is_empty() {
        let what = format!("the key file {} contains no key", file.display());
        return Err(logmill_io::Error::Invalid { what }.into());
    }
    Ok(Some(keys))
}

/// Creates the key of the data folder. It is never replaced automatically: that would hide the loss of what it
/// encrypted.
async fn make_key(file: PathBuf, queue: &Queue) -> Result<SecretKeys> {
    let ids = Webhooks::keys_in_use(queue).await?;
    if !ids.is_empty() {
        let keys: Vec<String> = ids.into_iter().collect();
        tracing::warn!(
            file = %file.display(),
            keys = keys.join(", "),
            "the key file is missing or empty: endpoints whose secrets it encrypted are disabled, and new ones are \
             refused; see docs/runbooks/webhook-secret-keys.md"
        );
        return Ok(SecretKeys::missing());
    }
    let key = SecretKeys::generate(&OsEntropy);
    let text = format!(
        "# Encrypts the secrets of webhooks in meter.db. Keep it apart from backups.\n{key}\n"
    );
    private::remove_empty(&file)?;
    if !private::write_new(&file, &text)? {
        let what = format!(
            "another process created the key file {} at the same time: start again",
            file.display()
        );
        return Err(logmill_io::Error::Conflict { what }.into());
    }
    tracing::info!(file = %file.display(), "created a key file to encrypt webhook secrets");
    Ok(SecretKeys::parse(&text)?)
}
