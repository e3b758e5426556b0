//! The data folder, for commands that need exclusive access to it.
//!
//! Guarantees: an error names the process that holds it. Leaves to others: opening what is in it.

use logmill_io::sql::DataFolder;

use crate::config::Settings;
use crate::error::{Error, Result};

/// The folder, for a command that needs exclusive access; `None` on PostgreSQL.
pub(super) fn take_folder(settings: &Settings) -> Result<Option<DataFolder>> {
    if settings.postgres().is_some() {
        return Ok(None);
    }
    match DataFolder::take(&settings.data) {
        Err(logmill_io::Error::FolderInUse { folder, pid }) => {
            Err(Error::FolderNeeded { folder, pid })
        }
        taken => Ok(Some(taken?)),
    }
}
