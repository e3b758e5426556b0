//! The log index: where it lives, and how it is opened.
//!
//! | what | embedded | many machines |
//! |---|---|---|
//! | records | `index.db` in the data folder | the PostgreSQL database |
//! | chunks | files in the data folder | S3 |
//!
//! The keys and blobs of a chain begin with `log-index/CHAIN_ID`.
//!
//! Guarantees: who opens to read writes nothing, and finds no index where there is none. Leaves to others: the
//! folder's lock, which who opens to write has, and the writer lease.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use finalized_log_index::LogIndex;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::SqliteSettings;
use logmill_io::{BlobStore, Key, KeyRange, OsEntropy, Sql, SystemClock};
use logmill_pipeline::sighting::Sightings;
use logmill_pipeline::{Chain, Tip};

use super::open_blobs;
use crate::config::Settings;
use crate::error::{Error, Result};

/// The database of the log index: a file of its own, or its commits, one for every few blocks, would have jobs and
/// their heartbeats wait for the one thread that writes a file.
const DATABASE: &str = "index.db";
/// What the keys and blobs of all log indexes begin with.
const PREFIX: &str = "log-index/";
/// What the keys of all tips begin with.
const TIP_PREFIX: &str = "chain/";
/// The most chains of one database.
const CHAINS_MAX: usize = 10_000;

/// What the log indexes of all chains stand on.
pub(crate) struct IndexStores {
    stores: finalized_log_index::Stores,
    sql: Sql,
    settings: finalized_log_index::Settings,
    /// Where the records are, for people.
    place: String,
}

impl IndexStores {
    /// To be changed, on SQLite by who has the folder; made if missing.
    pub(crate) async fn open_to_write(settings: &Settings) -> Result<Self> {
        Self::open(settings, false).await
    }

    /// To be looked at, beside a writer or without one.
    pub(crate) async fn open_to_read(settings: &Settings) -> Result<Self> {
        expect_database(settings)?;
        Self::open(settings, true).await
    }

    async fn open(settings: &Settings, read_only: bool) -> Result<Self> {
        let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
        let file = database(&settings.data);
        let (sql, place) = match settings.postgres() {
            Some(postgres) => {
                let sql = Sql::postgres(&postgres, clock.clone(), entropy.clone()).await?;
                (sql, "the PostgreSQL database".to_owned())
            }
            None => {
                let place = file.display().to_string();
                let file =
                    SqliteSettings { read_only, ..super::sqlite_file(settings, file.clone()) };
                (Sql::sqlite(&file, clock.clone(), entropy.clone()).await?, place)
            }
        };
        if !read_only {
            super::take_over(&sql, None).await?;
        }
        let (meta, blobs) = (SqlMeta::shared(sql.clone()), open_blobs(settings)?);
        let stores = finalized_log_index::Stores { meta, blobs, clock, entropy };
        Ok(Self { stores, sql, settings: settings.index(), place })
    }

    /// The same, for who asks little: no chunk is read before it is needed. A damaged one is then no obstacle to
    /// looking at the index and healing it.
    pub(crate) fn without_warm_up(mut self) -> Self {
        self.settings.warm_chunks = 0;
        self
    }

    /// The database, and the blobs: what readiness asks.
    pub(crate) fn probed(&self) -> (&Sql, &Arc<dyn BlobStore>) {
        (&self.sql, &self.stores.blobs)
    }

    /// The chains that have an index, lowest first.
    pub(crate) async fn chains(&self) -> Result<Vec<u64>> {
        let mut range = KeyRange::prefix(PREFIX);
        let mut chains = Vec::new();
        for _ in 0..CHAINS_MAX {
            let found = self.stores.meta.scan(&range, 1).await?;
            let Some((key, _)) = found.first() else {
                break;
            };
            let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
            let name = key.strip_prefix(PREFIX).and_then(|rest| rest.split('/').next());
            let name = name.unwrap_or_default();
            chains.extend(name.parse::<u64>().ok());
            // The sign after the slash: just after all keys of this chain.
            range.start = Bound::Included(Key::from(format!("{PREFIX}{name}0")));
        }
        chains.sort_unstable();
        Ok(chains)
    }

    /// The chain that is meant: the one that was named, which must have an index, or the only one that has.
    pub(crate) async fn choose(&self, named: Option<u64>) -> Result<u64> {
        let known = self.chains().await?;
        match (named, known.as_slice()) {
            (_, []) => Err(Error::NoIndex { place: self.place.clone() }),
            (Some(chain), known) if known.contains(&chain) => Ok(chain),
            (Some(chain), _) => Err(Error::NoIndexOfChain { chain, known }),
            (None, [chain]) => Ok(*chain),
            (None, _) => Err(Error::ManyIndexes { known }),
        }
    }

    /// What is stored of a chain: its index, and its tip.
    pub(crate) async fn chain(&self, chain: u64) -> Result<Chain> {
        let index = self.index(chain).await?;
        let tip = Tip::open(self.stores.meta.clone(), format!("{TIP_PREFIX}{chain}")).await?;
        Ok(Chain::new(chain, index, tip))
    }

    /// The head of a chain as the process that writes last saw it.
    pub(crate) fn sightings(&self, chain: u64) -> Sightings {
        Sightings::new(self.stores.meta.clone(), &format!("{TIP_PREFIX}{chain}"))
    }

    /// The index of a chain; made if missing, unless these stores only read.
    pub(crate) async fn index(&self, chain: u64) -> Result<LogIndex> {
        let prefix = format!("{PREFIX}{chain}");
        let settings = finalized_log_index::Settings { prefix, ..self.settings.clone() };
        let opened = LogIndex::open(self.stores.clone(), settings).await;
        opened.map_err(Error::of_index(chain))
    }
}

/// Refuses a folder without an index, so that a mistyped name makes no new one.
pub(crate) fn expect_database(settings: &Settings) -> Result<()> {
    if settings.postgres().is_some() {
        return Ok(());
    }
    let path = database(&settings.data);
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NoIndex { place: path.display().to_string() }),
        Err(source) => Err(logmill_io::Error::File { doing: "look for", path, source }.into()),
    }
}

pub(super) fn database(data: &Path) -> PathBuf {
    data.join(DATABASE)
}
