//! Derived tables: where they live, and how they are opened.
//!
//! Embedded they are `tables.db` in the data folder, a file of its own, so that large commits of tables hold up neither
//! jobs nor the log index; on PostgreSQL they are in the one database.
//!
//! Guarantees: who opens to read writes nothing. Leaves to others: the folder's lock, which who opens to write has.

use std::path::{Path, PathBuf};

use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::derive::Tables;

use crate::config::Settings;
use crate::error::{Error, Result};

const DATABASE: &str = "tables.db";

/// To be changed, on SQLite by who has the folder; made if missing.
pub(crate) async fn open_to_write(settings: &Settings) -> Result<Tables> {
    let tables = Tables::open(open(settings, false).await?).await?;
    super::take_over(tables.sql(), Some(tables.queue())).await?;
    Ok(tables)
}

/// To be looked at, beside a writer or without one.
pub(crate) async fn open_to_read(settings: &Settings) -> Result<Tables> {
    let path = database(&settings.data);
    if settings.postgres().is_none() && !path.try_exists().unwrap_or(false) {
        return Err(Error::NoDatabase { path });
    }
    Ok(Tables::open_read_only(open(settings, true).await?).await?)
}

async fn open(settings: &Settings, read_only: bool) -> Result<Sql> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    Ok(match settings.postgres() {
        Some(postgres) => Sql::postgres(&postgres, clock, entropy).await?,
        None => {
            let file = super::sqlite_file(settings, database(&settings.data));
            Sql::sqlite(&SqliteSettings { read_only, ..file }, clock, entropy).await?
        }
    })
}

pub(super) fn database(data: &Path) -> PathBuf {
    data.join(DATABASE)
}
