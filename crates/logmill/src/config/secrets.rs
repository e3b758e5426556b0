//! The section `[secrets]`: the keys that encrypt webhook secrets at rest.
//!
//! Guarantees: keys that pass [`Secrets::fault`] can be used. Leaves to others: reading the key file
//! ([`crate::server::usage`]).

use std::path::{Path, PathBuf};

use logmill_meter::webhooks::SecretKeys;
use serde::Deserialize;

use super::InvalidKey;
use super::secret::Secret;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Secrets {
    pub(crate) keys: Secret,
    key_file: PathBuf,
}

impl Secrets {
    pub(crate) fn key_file(&self) -> Option<&Path> {
        Some(self.key_file.as_path()).filter(|file| !file.as_os_str().is_empty())
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let error = SecretKeys::parse(self.keys.expose()).err()?;
        Some(("secrets.keys", error.to_string()))
    }
}
