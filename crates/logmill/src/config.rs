//! The configuration: plain data, from four sources.
//!
//! Flags override the environment, which overrides the config file, which overrides the defaults
//! (`config.default.toml`, compiled in). [`layers`] merges them, [`secret`] redacts secrets.
//!
//! Guarantees: an unknown key, a value of the wrong type and a value out of bounds are errors that name the key
//! and its source, before anything is opened; no such error contains a secret. Leaves to others: opening stores
//! ([`crate::stores`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use logmill_io::blob::S3Settings;
use logmill_io::sql::{Durability, PostgresSettings};
use logmill_pipeline::ingest::IngestSettings;
use serde::Deserialize;

use crate::error::{Error, Result};
use index::Index;
use layers::Layers;

mod chain;
mod chains;
pub(crate) mod collect;
mod derive;
mod index;
mod layers;
mod meter;
mod ready;
mod secret;
mod secrets;
mod server;
#[cfg(test)]
mod tests;

/// The default file, with a comment for every key.
pub(crate) const DEFAULTS: &str = include_str!("../config.default.toml");

/// Name of the config file in the data folder or the current folder.
const FILE: &str = "logmill.toml";
/// Maximum slots per kind: each is a task and a claimed job.
const SLOTS_MAX: usize = 1_000;
/// Maximum connections per process: more than a PostgreSQL server usually allows.
const CONNECTIONS_MAX: usize = 1_000;
/// Maximum of most settings in milliseconds: a day.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Minimum lease: it must leave time for three heartbeats, each of which is a commit.
const LEASE_MS_MIN: u64 = 100;
/// Maximum part of the stop deadline that is reserved for giving jobs back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);
/// Maximum retention: a hundred years.
const RETENTION_HOURS_MAX: u64 = 100 * 365 * 24;

/// Warning about a variable of Logmill's predecessors.
const MONGO_WARNING: &str = "MONGO_URI is not used: tables are in SQLite in the data folder, or in PostgreSQL if \
    database.url (the variable LOGMILL_DATABASE_URL) names one";

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) data: PathBuf,
    pub(crate) database: Database,
    pub(crate) work: Work,
    pub(crate) log: Log,
    pub(crate) blobs: Blobs,
    index: Index,
    pub(crate) chain: chain::Chain,
    /// The entries of `[[chains]]`, unparsed.
    chains: Vec<toml::Table>,
    pub(crate) ingest: chain::Ingest,
    pub(crate) derive: derive::Derive,
    pub(crate) collect: collect::Collect,
    pub(crate) ready: ready::ReadySettings,
    pub(crate) server: server::Server,
    pub(crate) rpc: server::Rpc,
    pub(crate) meter: meter::Meter,
    pub(crate) secrets: secrets::Secrets,
    /// Whether to open databases that have lost commits: a flag of a single start, not a key.
    #[serde(skip)]
    pub(crate) accept_loss: bool,
    /// The settings of each entry of `[[chains]]`.
    #[serde(skip)]
    listed_chains: Vec<Arc<Settings>>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Database {
    url: String,
    schema: String,
    connections: usize,
    durability: DurabilityName,
}

/// [`Durability`] as written in the configuration.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DurabilityName {
    Full,
    Relaxed,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Work {
    pub(crate) slots: usize,
    lease_ms: u64,
    slow_poll_ms: u64,
    stop_deadline_ms: u64,
    retention_hours: u64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) level: Level,
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    Text,
    Json,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Blobs {
    kind: BlobKind,
    bucket: String,
    endpoint: String,
    region: String,
    access_key: String,
    secret_key: String,
    prefix: String,
    allow_http: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BlobKind {
    Files,
    S3,
}

/// Prints no field, because settings hold secrets.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

impl Settings {
    /// Connection settings of PostgreSQL; `None` if the database is SQLite in the data folder.
    pub(crate) fn postgres(&self) -> Option<PostgresSettings> {
        let Database { url, schema, connections, .. } = &self.database;
        if url.is_empty() {
            return None;
        }
        let mut settings = PostgresSettings::new(url.clone());
        settings.schema = non_empty(schema);
        settings.connections = *connections;
        settings.durability = self.durability();
        Some(settings)
    }

    pub(crate) fn durability(&self) -> Durability {
        match self.database.durability {
            DurabilityName::Full => Durability::Full,
            DurabilityName::Relaxed => Durability::Relaxed,
        }
    }

    pub(crate) fn ingest(&self) -> IngestSettings {
        self.ingest.settings(!self.ingest.raw_only && self.derive.is_on())
    }

    /// The settings of every followed chain: the one of `[chain]`, or those of `[[chains]]`.
    pub(crate) fn followed(&self) -> Vec<Arc<Settings>> {
        match self.chain.is_given() {
            true => vec![Arc::new(self.clone())],
            false => self.listed_chains.clone(),
        }
    }

    /// The settings that apply to a chain: those of its entry in `[[chains]]`, if it has one.
    pub(crate) fn of_chain(&self, chain_id: u64) -> Settings {
        let listed = self.listed_chains.iter().find(|chain| chain.chain.id() == Some(chain_id));
        let settings = listed.map_or(self, |listed| listed);
        Settings { accept_loss: self.accept_loss, ..settings.clone() }
    }

    /// Whether no chain derives tables.
    pub(crate) fn derives_nothing(&self) -> bool {
        match self.listed_chains.as_slice() {
            [] => self.ingest.raw_only,
            listed => listed.iter().all(|chain| chain.ingest.raw_only),
        }
    }

    /// Connection settings of S3; `None` if blobs are files in the data folder.
    pub(crate) fn s3(&self) -> Option<S3Settings> {
        let blobs = &self.blobs;
        match blobs.kind {
            BlobKind::Files => None,
            BlobKind::S3 => Some(S3Settings {
                bucket: blobs.bucket.clone(),
                endpoint: non_empty(&blobs.endpoint),
                region: blobs.region.clone(),
                access_key: blobs.access_key.clone(),
                secret_key: blobs.secret_key.clone(),
                prefix: blobs.prefix.clone(),
                allow_http: blobs.allow_http,
            }),
        }
    }

    /// Settings of a chain's log index, except for its prefix.
    pub(crate) fn index(&self) -> finalized_log_index::Settings {
        self.index.settings()
    }

    /// The first key with an invalid value, and the reason.
    fn fault(&self) -> Option<InvalidKey> {
        let work = &self.work;
        let s3 = matches!(self.blobs.kind, BlobKind::S3);
        let named = |key, value: &str| {
            (s3 && value.is_empty()).then(|| (key, "must be set if blobs.kind is s3".to_owned()))
        };
        let schema = &self.database.schema;
        let faults = [
            self.data.as_os_str().is_empty().then(|| ("data", "must name a folder".to_owned())),
            secret::url_fault(&self.database.url).map(|why| ("database.url", why.to_owned())),
            (!schema_is_fine(schema)).then(|| {
                let why = "expected at most 63 lower-case letters, digits and underscores";
                ("database.schema", format!("{schema:?}: {why}"))
            }),
            within(
                "database.connections",
                count(self.database.connections),
                1,
                count(CONNECTIONS_MAX),
            ),
            within("work.slots", count(work.slots), 1, count(SLOTS_MAX)),
            within("work.lease_ms", work.lease_ms, LEASE_MS_MIN, TIME_MS_MAX),
            within("work.slow_poll_ms", work.slow_poll_ms, 1, work.lease_ms),
            within("work.stop_deadline_ms", work.stop_deadline_ms, 0, TIME_MS_MAX),
            within("work.retention_hours", work.retention_hours, 0, RETENTION_HOURS_MAX),
            named("blobs.bucket", &self.blobs.bucket),
            (s3 && !self.blobs.endpoint_is_fine()).then(|| {
                let why = "must start with https://, or with http:// if blobs.allow_http is true";
                ("blobs.endpoint", why.to_owned())
            }),
            named("blobs.region", &self.blobs.region),
            named("blobs.access_key", &self.blobs.access_key),
            named("blobs.secret_key", &self.blobs.secret_key),
            self.index.fault(),
            self.chain.fault(),
            self.ingest.fault(),
            self.derive.fault(),
            self.collect.fault(),
            self.ready.fault(),
            self.server.fault(),
            self.rpc.fault(),
            self.meter.fault(),
            self.secrets.fault(),
        ];
        faults.into_iter().flatten().next()
    }
}

impl Blobs {
    fn endpoint_is_fine(&self) -> bool {
        let endpoint = &self.endpoint;
        let plain = self.allow_http && endpoint.starts_with("http://");
        endpoint.is_empty() || endpoint.starts_with("https://") || plain
    }
}

impl Work {
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub(crate) fn slow_poll(&self) -> Duration {
        Duration::from_millis(self.slow_poll_ms)
    }

    /// Time limit of a whole stop.
    pub(crate) fn stop_deadline(&self) -> Duration {
        Duration::from_millis(self.stop_deadline_ms)
    }

    /// How long a stop waits for running jobs; the rest of the deadline is for giving back those that do not end.
    pub(crate) fn job_stop_deadline(&self) -> Duration {
        let all = self.stop_deadline();
        all.saturating_sub((all / 4).min(GIVE_BACK_MAX))
    }

    pub(crate) fn retention(&self) -> Duration {
        Duration::from_secs(self.retention_hours.saturating_mul(3_600))
    }
}

/// A key, and the reason why its value is invalid.
type InvalidKey = (&'static str, String);

fn within(key: &'static str, value: u64, least: u64, most: u64) -> Option<InvalidKey> {
    let why = || format!("{value} is not between {least} and {most}");
    (!(least..=most).contains(&value)).then(|| (key, why()))
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn schema_is_fine(schema: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    schema.len() <= 63 && schema.bytes().all(plain)
}

/// The sources of a configuration, without the defaults.
#[derive(Default)]
pub(crate) struct ConfigSources {
    /// The config file named on the command line.
    pub(crate) file: Option<PathBuf>,
    pub(crate) environment: BTreeMap<String, String>,
    /// Keys and values, in the order of the flags.
    pub(crate) flags: Vec<(String, String)>,
}

/// Settings, with the source of each that is not a default.
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// Warnings for the operator at the start of a server.
    pub(crate) warnings: Vec<&'static str>,
    layers: Layers,
}

impl Config {
    /// Merges all sources and checks the result.
    pub(crate) fn load(sources: &ConfigSources) -> Result<Self> {
        let mut layers = Layers::defaults()?;
        if let Some(file) = find_file(sources)? {
            layers.add_file(&file, &read(&file)?)?;
        }
        layers.add_environment(&sources.environment)?;
        layers.add_flags(&sources.flags)?;
        let mut settings = layers.settings()?;
        if let Some(file) = settings.meter.systemconfig() {
            let origin = file.display().to_string();
            for (key, value) in meter::read_systemconfig(&origin, &read(file)?)? {
                layers.add_named(key, value, &origin)?;
            }
            settings = layers.settings()?;
        }
        if let Some((key, why)) = settings.fault() {
            return Err(Error::BadValue { origin: layers.origin(key), key: key.to_owned(), why });
        }
        settings.listed_chains = chains::settings(&layers, &settings)?;
        let mongo = sources.environment.get("MONGO_URI").filter(|uri| !uri.is_empty());
        let warnings = mongo.map(|_| MONGO_WARNING).into_iter().collect();
        Ok(Self { settings, warnings, layers })
    }

    /// The effective configuration as TOML, with secrets redacted and the source of each setting.
    pub(crate) fn redacted_toml(&self) -> Result<String> {
        self.layers.redacted_toml()
    }
}

/// The named file; else one in the data folder that the other sources set; else one in the current folder.
fn find_file(sources: &ConfigSources) -> Result<Option<PathBuf>> {
    if sources.file.is_some() {
        return Ok(sources.file.clone());
    }
    let mut layers = Layers::defaults()?;
    layers.add_environment(&sources.environment)?;
    layers.add_flags(&sources.flags)?;
    let places = [layers.settings()?.data.join(FILE), PathBuf::from(FILE)];
    Ok(places.into_iter().find(|file| file.is_file()))
}

#[expect(clippy::disallowed_methods, reason = "settings are read before any store exists")]
fn read(file: &Path) -> Result<String> {
    let at = |source| Error::ConfigFile { path: file.to_path_buf(), source };
    std::fs::read_to_string(file).map_err(at)
}
