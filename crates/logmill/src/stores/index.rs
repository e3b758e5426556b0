//! The log index: where it is stored, and how it is opened.
//!
//! | data | embedded | many machines |
//! |---|---|---|
//! | records | `index.db` in the data folder | the PostgreSQL database |
//! | chunks | files in the data folder | S3 |
//!
//! The keys and blobs of a chain begin with `log-index/CHAIN_ID`.
//!
//! Guarantees: opening to read writes nothing, and creates no index where there is none. Leaves to others: the
//! folder's lock, held by the process that writes, and the writer lease.

use std::ops::Bound;
use std::sync::Arc;

use finalized_log_index::LogIndex;
use logmill_io::meta::SqlMeta;
use logmill_io::{BlobStore, Key, KeyRange, Sql};
use logmill_pipeline::sighting::Sightings;
use logmill_pipeline::{Chain, Tip};

use super::{Database, Databases, OpenMode, open_blobs};
use crate::config::Settings;
use crate::error::{Error, Result};

/// Prefix of the keys and blobs of all log indexes.
const PREFIX: &str = "log-index/";
/// Prefix of the keys of all tips.
const TIP_PREFIX: &str = "chain/";
const CHAINS_MAX: usize = 10_000;

/// Stores of the log indexes of all chains.
pub(crate) struct IndexStores {
    stores: finalized_log_index::Stores,
    sql: Sql,
    settings: finalized_log_index::Settings,
    read_only: bool,
    /// Location of the records, for error messages.
    place: String,
}

impl IndexStores {
    /// Opens the index; to write, creates the database if missing.
    pub(crate) async fn open(databases: &Databases) -> Result<Self> {
        let settings = &databases.settings;
        let read_only = databases.mode == OpenMode::Read;
        if read_only {
            expect_database(settings)?;
        }
        let sql = databases.sql(Database::Index).await?;
        let (clock, entropy) = (Arc::clone(sql.clock()), Arc::clone(sql.entropy()));
        let (meta, blobs) = (SqlMeta::shared(sql.clone()), open_blobs(settings)?);
        let stores = finalized_log_index::Stores { meta, blobs, clock, entropy };
        let place = match settings.postgres() {
            Some(_) => "the PostgreSQL database".to_owned(),
            None => Database::Index.file(&settings.data).display().to_string(),
        };
        Ok(Self { stores, sql, settings: settings.index(), read_only, place })
    }

    /// Disables warm-up, for commands that read little: no chunk is read before it is needed. A damaged chunk then
    /// does not prevent commands from showing the index and healing it.
    pub(crate) fn without_warm_up(mut self) -> Self {
        self.settings.warm_chunks = 0;
        self
    }

    /// Database and blobs, for the readiness checks.
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
            // `0` is the character after `/`: the key just after all keys of this chain.
            range.start = Bound::Included(Key::from(format!("{PREFIX}{name}0")));
        }
        chains.sort_unstable();
        Ok(chains)
    }

    /// The chain to use: the named one, which must have an index, or the only one that has.
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

    /// Stored data of a chain: its index and its tip.
    pub(crate) async fn chain(&self, chain: u64) -> Result<Chain> {
        let index = self.index(chain).await?;
        let meta = SqlMeta::shared(self.sql.in_lane(chain));
        let tip = Tip::open(meta, format!("{TIP_PREFIX}{chain}")).await?;
        Ok(Chain::new(chain, index, tip))
    }

    /// Published head of a chain, as the writing process last saw it.
    pub(crate) fn sightings(&self, chain: u64) -> Sightings {
        Sightings::new(self.stores.meta.clone(), &format!("{TIP_PREFIX}{chain}"))
    }

    /// The index of a chain; created if missing, unless these stores are read-only.
    pub(crate) async fn index(&self, chain: u64) -> Result<LogIndex> {
        let prefix = format!("{PREFIX}{chain}");
        let label = chain.to_string();
        let mut settings =
            finalized_log_index::Settings { prefix, chain: label, ..self.settings.clone() };
        // Each chain waits for the writer thread in a lane of its own.
        let meta = SqlMeta::shared(self.sql.in_lane(chain));
        let stores = finalized_log_index::Stores { meta, ..self.stores.clone() };
        if self.read_only {
            let stored = LogIndex::with_stored_bounds(&stores, settings).await;
            settings = stored.map_err(Error::of_index(chain))?;
        }
        let opened = LogIndex::open(stores, settings).await;
        opened.map_err(Error::of_index(chain))
    }
}

/// Refuses a folder without an index, so that a mistyped name creates no new one.
pub(crate) fn expect_database(settings: &Settings) -> Result<()> {
    if settings.postgres().is_some() {
        return Ok(());
    }
    let path = Database::Index.file(&settings.data);
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NoIndex { place: path.display().to_string() }),
        Err(source) => Err(logmill_io::Error::File { doing: "look for", path, source }.into()),
    }
}
