//! The section `[secrets]`: the keys that encrypt webhook secrets at rest.
//!
//! Guarantees: keys that pass [`Secrets::fault`] can be used. Leaves to others: reading the file
//! ([`crate::secrets`]).

use std::path::{Path, PathBuf};

use logmill_meter::webhooks::SecretKeys;
use serde::Deserialize;

use super::Fault;
use super::secret::Secret;

/// Which keys encrypt secrets.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Secrets {
    pub(crate) keys: Secret,
    key_file: PathBuf,
}

impl Secrets {
    /// The file of keys, if one is named.
    pub(crate) fn key_file(&self) -> Option<&Path> {
        Some(self.key_file.as_path()).filter(|file| !file.as_os_str().is_empty())
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let error = SecretKeys::parse(self.keys.expose()).err()?;
        Some(("secrets.keys", error.to_string()))
    }
}
