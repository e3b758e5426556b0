//! The configuration: plain data, from four sources.
//!
//! Defaults (`config.default.toml`, compiled in) lie under the config file, that under the environment, that
//! under flags. [`layers`] merges them, [`secret`] hides what nobody should see.
//!
//! Guarantees: an unknown key, a value of the wrong type and a value out of bounds are errors that name the key
//! and where it came from, before anything is opened; no secret is part of such an error. Leaves to others:
//! opening what is configured ([`crate::stores`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use logmill_io::blob::S3Settings;
use logmill_io::sql::{Durability, PostgresSettings};
use logmill_pipeline::ingest::IngestSettings;
use serde::Deserialize;

use crate::error::{Error, Result};
use index::Index;
use layers::Layers;

mod chain;
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

/// The default file, with a sentence for every key.
pub(crate) const DEFAULTS: &str = include_str!("../config.default.toml");

/// The name of the config file that is looked for.
const FILE: &str = "logmill.toml";
/// The most slots of one kind: each is a task and a claimed job.
const SLOTS_MAX: usize = 1_000;
/// The most connections of one process: more than a server usually has.
const CONNECTIONS_MAX: usize = 1_000;
/// The longest of all times in milliseconds: a day.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// The shortest lease: heartbeats come three times as often, and a commit takes its time.
const LEASE_MS_MIN: u64 = 100;
/// How much of the time of a stop is left for giving jobs back, at most.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);
/// The longest retention: a hundred years.
const RETENTION_HOURS_MAX: u64 = 100 * 365 * 24;

/// What is said of a variable that our ancestors had.
const MONGO_WARNING: &str = "MONGO_URI is not used: tables are in SQLite in the data folder, or in PostgreSQL if \
    database.url (the variable LOGMILL_DATABASE_URL) names one";

/// All settings.
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
    pub(crate) ingest: chain::Ingest,
    pub(crate) derive: derive::Derive,
    pub(crate) collect: collect::Collect,
    pub(crate) ready: ready::Ready,
    pub(crate) server: server::Server,
    pub(crate) rpc: server::Rpc,
    pub(crate) meter: meter::Meter,
    pub(crate) secrets: secrets::Secrets,
    /// Whether databases that hold less than they once did are opened: a flag of one start, and no key.
    #[serde(skip)]
    pub(crate) accept_loss: bool,
}

/// Where the database is.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Database {
    url: String,
    schema: String,
    connections: usize,
    durability: DurabilityName,
}

/// [`Durability`] as it is written.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DurabilityName {
    Full,
    Relaxed,
}

/// How jobs are run.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Work {
    pub(crate) slots: usize,
    lease_ms: u64,
    slow_poll_ms: u64,
    stop_deadline_ms: u64,
    retention_hours: u64,
}

/// What is logged, and how.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) level: Level,
    pub(crate) format: Format,
}

/// How much is logged.
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

/// How a log line looks.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    Text,
    Json,
}

/// Where blobs are.
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

impl Settings {
    /// How to reach PostgreSQL; none if the database is SQLite in the data folder.
    pub(crate) fn postgres(&self) -> Option<PostgresSettings> {
        let Database { url, schema, connections, .. } = &self.database;
        if url.is_empty() {
            return None;
        }
        let mut settings = PostgresSettings::new(url.clone());
        settings.schema = given(schema);
        settings.connections = *connections;
        settings.durability = self.durability();
        Some(settings)
    }

    /// Whether commits wait for the disk.
    pub(crate) fn durability(&self) -> Durability {
        match self.database.durability {
            DurabilityName::Full => Durability::Full,
            DurabilityName::Relaxed => Durability::Relaxed,
        }
    }

    /// How ingest works.
    pub(crate) fn ingest(&self) -> IngestSettings {
        self.ingest.settings(!self.ingest.raw_only && self.derive.is_on())
    }

    /// How to reach S3; none if blobs are files in the data folder.
    pub(crate) fn s3(&self) -> Option<S3Settings> {
        let blobs = &self.blobs;
        match blobs.kind {
            BlobKind::Files => None,
            BlobKind::S3 => Some(S3Settings {
                bucket: blobs.bucket.clone(),
                endpoint: given(&blobs.endpoint),
                region: blobs.region.clone(),
                access_key: blobs.access_key.clone(),
                secret_key: blobs.secret_key.clone(),
                prefix: blobs.prefix.clone(),
                allow_http: blobs.allow_http,
            }),
        }
    }

    /// How the log index of a chain works, all but its prefix.
    pub(crate) fn index(&self) -> finalized_log_index::Settings {
        self.index.settings()
    }

    /// The first key whose value is out of bounds, and why.
    fn fault(&self) -> Option<Fault> {
        let work = &self.work;
        let s3 = matches!(self.blobs.kind, BlobKind::S3);
        let named = |key, value: &str| {
            (s3 && value.is_empty()).then(|| (key, "blobs of kind s3 need it".to_owned()))
        };
        let schema = &self.database.schema;
        let faults = [
            self.data.as_os_str().is_empty().then(|| ("data", "a folder is needed".to_owned())),
            secret::url_fault(&self.database.url).map(|why| ("database.url", why.to_owned())),
            (!schema_is_fine(schema)).then(|| {
                let why = "lower-case letters, digits and underscores, at most 63";
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
                let why = "it starts with https://, or with http:// if blobs.allow_http is true";
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

    /// How long a stop may take in all.
    pub(crate) fn stop_deadline(&self) -> Duration {
        Duration::from_millis(self.stop_deadline_ms)
    }

    /// How long a stop waits for jobs that run: a part is left for giving back those that do not end.
    pub(crate) fn job_stop_deadline(&self) -> Duration {
        let all = self.stop_deadline();
        all.saturating_sub((all / 4).min(GIVE_BACK_MAX))
    }

    pub(crate) fn retention(&self) -> Duration {
        Duration::from_secs(self.retention_hours.saturating_mul(3_600))
    }
}

/// A key, and what is wrong with its value.
type Fault = (&'static str, String);

fn within(key: &'static str, value: u64, least: u64, most: u64) -> Option<Fault> {
    let why = || format!("{value} is not within {least} and {most}");
    (!(least..=most).contains(&value)).then(|| (key, why()))
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn given(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn schema_is_fine(schema: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    schema.len() <= 63 && schema.bytes().all(plain)
}

/// What the command line and the environment say.
#[derive(Default)]
pub(crate) struct Given {
    /// The config file that was named.
    pub(crate) file: Option<PathBuf>,
    /// The variables of the environment.
    pub(crate) environment: BTreeMap<String, String>,
    /// Keys and their values, in the order of the flags.
    pub(crate) flags: Vec<(String, String)>,
}

/// Settings, and where each that is not a default came from.
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// What a server is told when it starts.
    pub(crate) warnings: Vec<&'static str>,
    layers: Layers,
}

impl Config {
    /// Merges all sources and checks the outcome.
    pub(crate) fn load(given: &Given) -> Result<Self> {
        let mut layers = Layers::defaults()?;
        if let Some(file) = find_file(given)? {
            layers.add_file(&file, &read(&file)?)?;
        }
        layers.add_environment(&given.environment)?;
        layers.add_flags(&given.flags)?;
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
        let mongo = given.environment.get("MONGO_URI").filter(|uri| !uri.is_empty());
        let warnings = mongo.map(|_| MONGO_WARNING).into_iter().collect();
        Ok(Self { settings, warnings, layers })
    }

    /// The effective configuration as TOML, with secrets hidden, and where it comes from.
    pub(crate) fn shown(&self) -> Result<String> {
        self.layers.shown()
    }
}

/// The file that was named; else one in the data folder, as far as that is known without a file; else one here.
fn find_file(given: &Given) -> Result<Option<PathBuf>> {
    if given.file.is_some() {
        return Ok(given.file.clone());
    }
    let mut layers = Layers::defaults()?;
    layers.add_environment(&given.environment)?;
    layers.add_flags(&given.flags)?;
    let places = [layers.settings()?.data.join(FILE), PathBuf::from(FILE)];
    Ok(places.into_iter().find(|file| file.is_file()))
}

#[expect(clippy::disallowed_methods, reason = "settings are read before any store exists")]
fn read(file: &Path) -> Result<String> {
    let at = |source| Error::ConfigFile { path: file.to_path_buf(), source };
    std::fs::read_to_string(file).map_err(at)
}
