//! Derived tables: where they are stored, and how they are opened.
//!
//! Embedded they are `tables.db` in the data folder, a file of its own, so that large commits of tables delay neither
//! jobs nor the log index; on PostgreSQL they are in the one database.
//!
//! Guarantees: opening to read writes nothing. Leaves to others: the folder's lock, held by the process that writes.

use logmill_pipeline::derive::Tables;

use super::{Database, Databases, OpenMode};
use crate::error::{Error, Result};

pub(crate) async fn open(databases: &Databases) -> Result<Tables> {
    if databases.mode == OpenMode::Write {
        return Ok(Tables::open_beside(databases.queue(Database::Tables).await?).await?);
    }
    if !databases.exists(Database::Tables) {
        let path = Database::Tables.file(&databases.settings.data);
        return Err(Error::NoDatabase { path });
    }
    Ok(Tables::read_beside(databases.queue(Database::Tables).await?).await?)
}
