//! Merges the sources of the configuration, one key at a time.
//!
//! After each key is set, the whole table is parsed as [`Settings`], so that an error names the key that caused it and
//! the source of its value.
//!
//! Guarantees: only keys of the default file can be set; every source can set every key. Outside a file, a list is
//! written as text with commas, or as TOML like the tables with free names. Leaves to others: bounds
//! ([`super::Settings::fault`]).

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Table, Value};

use super::{DEFAULTS, Settings, secret};
use crate::error::{Error, Result};

/// Prefix of the variables that set keys.
const PREFIX: &str = "LOGMILL_";
/// Variables shared with other programs or known from Logmill's predecessors; variables with [`PREFIX`] override them.
const OTHER_VARIABLES: &[(&str, &str)] = &[
    ("LOG_LEVEL", "log.level"),
    ("LATEST_WORKER_COUNT", "ingest.latest_worker_count"),
    ("LATEST_BATCH_SIZE", "ingest.latest_batch_size"),
    ("HISTORY_WORKER_COUNT", "ingest.history_worker_count"),
    ("HISTORY_BATCH_SIZE", "ingest.history_batch_size"),
    ("HISTORY_STOP_HEIGHT", "ingest.history_stop_height"),
    ("ENABLE_FORWARD_INGESTER", "ingest.forward"),
    ("ENABLE_HISTORY_INGESTER", "ingest.history"),
    ("RAW_ONLY", "ingest.raw_only"),
    ("MAX_REORG_DEPTH", "ingest.max_reorg_depth"),
    ("ENABLE_LIVE_DERIVERS", "derive.live"),
    ("LIVE_DERIVERS_CHUNK", "derive.live_chunk"),
    ("LIVE_DERIVERS_HEAD_BACKFILL_BLOCKS", "derive.head_backfill_blocks"),
    ("ENABLE_HISTORY_DERIVERS", "derive.history"),
    ("HISTORY_DERIVERS_CHUNK", "derive.history_chunk"),
    ("HISTORY_DERIVERS_SLEEP_MS", "derive.history_sleep_ms"),
    ("ENABLE_TOKEN_WORKER", "derive.processors.token_worker"),
    ("ENABLE_EVM_WORKER", "derive.processors.evm_worker"),
    ("ENABLE_META_WORKER", "derive.processors.meta_worker"),
    ("ENABLE_ACCOUNTS_WORKER", "derive.processors.accounts_worker"),
    ("ENABLE_FT_HOLDINGS_WORKER", "derive.processors.ft_holdings_worker"),
    ("ENABLE_NFT_OWNERSHIP_WORKER", "derive.processors.nft_ownership_worker"),
    ("ENABLE_TOKEN_METADATA_WORKER", "derive.processors.token_metadata_worker"),
    ("ENABLE_TX_CONTRACTS_WORKER", "derive.processors.tx_contracts_worker"),
    ("ENABLE_TX_METRICS_WORKER", "derive.processors.tx_metrics_worker"),
    ("ENABLE_STAKING_WORKER", "derive.processors.staking_worker"),
    ("ENABLE_DEFI_WORKER", "derive.processors.defi_worker"),
    ("ENABLE_DAILY_BALANCE_WORKER", "derive.processors.daily_balance_worker"),
    ("ENABLE_FEES_WORKER", "derive.processors.fees_worker"),
    ("ENABLE_NFT_ITEM_METADATA_WORKER", "derive.processors.nft_item_metadata_worker"),
    ("ENABLE_NFT_RECONCILER", "derive.processors.nft_reconciler"),
    ("RPC_URL", "chain.rpc_urls"),
    ("ACTIVE_CHAIN", "chain.id"),
    ("CONTRACT_ADDRESS", "collect.contract_address"),
    ("EVENT", "collect.event"),
    ("START_POINT", "collect.start_point"),
    ("BATCH_SIZE", "collect.batch_size"),
    ("JOB_LEASE_TTL_MS", "collect.job_lease_ttl_ms"),
    ("HISTORICAL_POLL_INTERVAL_MS", "collect.historical_poll_interval_ms"),
    ("REALTIME_POLL_INTERVAL_MS", "collect.realtime_poll_interval_ms"),
    ("DEV_MULTIPLE_WORKERS", "collect.dev_multiple_workers"),
    ("APP_ENV", "collect.app_env"),
    ("API_PORT", "collect.api_port"),
    ("DRY_RUN", "meter.delivery.dry_run"),
];

/// Tables whose keys the operator chooses; each is one value and set as a whole.
const OPEN_TABLES: [&str; 1] = ["meter.events"];

/// The keys of [`OTHER_VARIABLES`] whose value is one of a few words.
const WORDS: [&str; 2] = ["log.level", "collect.app_env"];

/// All keys with their current values, and the sources of those that were set.
pub(super) struct Layers {
    table: Table,
    origins: BTreeMap<String, String>,
}

impl Layers {
    pub(super) fn defaults() -> Result<Self> {
        let origin = "config.default.toml";
        let table = DEFAULTS.parse().map_err(|error| syntax(origin, DEFAULTS, &error))?;
        Ok(Self { table, origins: BTreeMap::new() })
    }

    pub(super) fn add_file(&mut self, file: &Path, text: &str) -> Result<()> {
        let origin = file.display().to_string();
        let table: Table = text.parse().map_err(|error| syntax(&origin, text, &error))?;
        let mut found = Vec::new();
        flatten("", &table, &mut found);
        found.into_iter().try_for_each(|(key, value)| self.set(&key, value, &origin))
    }

    pub(super) fn add_environment(&mut self, variables: &BTreeMap<String, String>) -> Result<()> {
        for &(name, key) in OTHER_VARIABLES {
            if let Some(text) = variables.get(name).filter(|text| !text.is_empty()) {
                let origin = format!("the variable {name}");
                // Words are accepted in any case; addresses and events keep theirs.
                let is_word = matches!(slot(&mut self.table, key), Some(Value::Boolean(_)))
                    || WORDS.contains(&key);
                let lower = text.to_ascii_lowercase();
                self.set_text(key, if is_word { &lower } else { text }, &origin)?;
            }
        }
        let mut keys = BTreeMap::new();
        for (key, _) in self.leaves() {
            let name = key.replace('.', "_").to_ascii_uppercase();
            keys.insert(format!("{PREFIX}{name}"), key);
        }
        let sections = self.table.iter().filter(|(_, value)| value.is_table());
        let sections: Vec<String> =
            sections.map(|(name, _)| format!("{PREFIX}{}_", name.to_ascii_uppercase())).collect();
        for (name, text) in variables {
            let origin = || format!("the variable {name}");
            match keys.get(name) {
                Some(key) => self.set_text(key, text, &origin())?,
                // Other variables with the prefix may belong to the user; one with the name of a section is a typo.
                None if sections.iter().any(|section| name.starts_with(section)) => {
                    return Err(Error::UnknownKey {
                        origin: "the environment".to_owned(),
                        key: name.clone(),
                    });
                }
                None => {}
            }
        }
        Ok(())
    }

    pub(super) fn add_flags(&mut self, flags: &[(String, String)]) -> Result<()> {
        flags.iter().try_for_each(|(key, text)| self.set_text(key, text, "the command line"))
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    pub(super) fn settings(&self) -> Result<Settings> {
        Settings::try_from_table(&self.table).map_err(|error| Error::BadValue {
            origin: "the configuration".to_owned(),
            key: "a key".to_owned(),
            why: error.message().to_owned(),
        })
    }

    /// Sets a key from a file that a setting refers to, unless another source has set the key.
    pub(super) fn add_named(&mut self, key: &str, value: Value, origin: &str) -> Result<()> {
        match self.origins.contains_key(key) {
            true => Ok(()),
            false => self.set(key, value, origin),
        }
    }

    /// The source of a key's value.
    pub(super) fn origin(&self, key: &str) -> String {
        self.origins.get(key).map_or("the defaults", String::as_str).to_owned()
    }

    pub(super) fn redacted_toml(&self) -> Result<String> {
        let mut table = self.table.clone();
        for (key, value) in self.leaves() {
            if let Some(slot) = slot(&mut table, &key) {
                *slot = match value {
                    Value::String(text) => Value::String(secret::redact(&key, &text)),
                    other => secret::redact_list(&key, other),
                };
            }
        }
        let mut shown =
            "# The effective configuration. Keys that are not listed here have their defaults.\n"
                .to_owned();
        for (key, origin) in &self.origins {
            shown.push_str(&format!("# {key}: {origin}\n"));
        }
        let text = toml::to_string(&table);
        let text = text.map_err(|error| Error::Internal { what: error.to_string() })?;
        Ok(format!("{shown}\n{text}"))
    }

    /// Sets a key from text, parsed as the type of its default.
    fn set_text(&mut self, key: &str, text: &str, origin: &str) -> Result<()> {
        let value = match slot(&mut self.table, key) {
            Some(Value::Integer(_)) => text.parse().map(Value::Integer).ok(),
            Some(Value::Boolean(_)) => text.parse().map(Value::Boolean).ok(),
            Some(Value::Array(_)) if !text.trim_start().starts_with('[') => Some(list(text)),
            Some(Value::Array(_) | Value::Table(_)) => toml_value(text),
            _ => None,
        };
        // Text that is not of that type fails below, with a suitable message.
        self.set(key, value.unwrap_or_else(|| Value::String(text.to_owned())), origin)
    }

    fn set(&mut self, key: &str, value: Value, origin: &str) -> Result<()> {
        let known = slot(&mut self.table, key);
        let is_open = OPEN_TABLES.contains(&key);
        let empty_section = value.as_table().is_some_and(Table::is_empty);
        let fits = |known: &&mut Value| !known.is_table() || empty_section || is_open;
        let Some(known) = known.filter(fits) else {
            // A table in the place of a value: the error names the known setting, not the table's unknown keys.
            let above = key.rsplit_once('.').map(|(above, _)| above);
            let above =
                above.filter(|above| slot(&mut self.table, above).is_some_and(|it| !it.is_table()));
            if let Some((above, why)) = above.and_then(|above| Some((above, expected(above)?))) {
                let (origin, key) = (origin.to_owned(), above.to_owned());
                return Err(Error::BadValue { origin, key, why: why.to_owned() });
            }
            return Err(Error::UnknownKey { origin: origin.to_owned(), key: key.to_owned() });
        };
        if known.is_table() && !is_open {
            return Ok(());
        }
        // False for a list in the place of a table, or the reverse.
        let has_shape = known.same_type(&value);
        *known = value;
        if let Err(error) = Settings::try_from_table(&self.table) {
            // The message of serde may contain the value.
            let why = match secret::expected_form(key) {
                Some(expected_form) => expected_form,
                None if has_shape => error.message(),
                None => expected(key).unwrap_or_else(|| error.message()),
            };
            let (origin, key, why) = (origin.to_owned(), key.to_owned(), why.trim().to_owned());
            return Err(Error::BadValue { origin, key, why });
        }
        self.origins.insert(key.to_owned(), origin.to_owned());
        Ok(())
    }

    pub(super) fn leaves(&self) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        flatten("", &self.table, &mut found);
        found
    }
}

impl Settings {
    pub(super) fn try_from_table(table: &Table) -> Result<Self, toml::de::Error> {
        table.clone().try_into()
    }
}

/// Collects the dotted keys of a table and its subtables; an empty or open table is one value.
pub(super) fn flatten(before: &str, table: &Table, found: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let key = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
        match value {
            Value::Table(inner) if !inner.is_empty() && !OPEN_TABLES.contains(&key.as_str()) => {
                flatten(&key, inner, found);
            }
            _ => found.push((key, value.clone())),
        }
    }
}

/// The expected form of a setting that is easily written wrong, with an example; `None` where the parser's error is
/// clear enough.
fn expected(key: &str) -> Option<&'static str> {
    secret::expected_form(key).or(match key {
        "meter.events" => Some(
            "expected a table of event types, each with an operation, for example [meter.events] with \
             \"api.calls\" = { op = \"sum\" }",
        ),
        "meter.rules" => Some(
            "expected a list of tables, for example [[meter.rules]] with name = \"transfers\", event = \
             \"Transfer(address indexed from, address indexed to, uint256 value)\", event_type = \
             \"transfers\" and customer = \"from\"",
        ),
        "meter.alerts" => Some(
            "expected a list of tables, for example [[meter.alerts]] with name = \"quota\", event_type = \
             \"api.calls\", period = \"monthly\" and thresholds = [\"1000\"]",
        ),
        "meter.periods" => Some(
            "expected a list of names and tables, for example periods = [\"daily\", { name = \
             \"billing\", anchor = \"2026-01-15T00:00\", length = \"1 month\" }]",
        ),
        _ => None,
    })
}

/// Parses comma-separated texts.
fn list(text: &str) -> Value {
    let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    Value::Array(texts.map(|text| Value::String(text.to_owned())).collect())
}

/// Parses a TOML value.
fn toml_value(text: &str) -> Option<Value> {
    format!("it = {text}").parse::<Table>().ok()?.remove("it")
}

/// The value of a dotted key.
pub(super) fn slot<'a>(table: &'a mut Table, key: &str) -> Option<&'a mut Value> {
    match key.split_once('.') {
        Some((section, rest)) => slot(table.get_mut(section)?.as_table_mut()?, rest),
        None => table.get_mut(key),
    }
}

/// A syntax error with the line number, but without the line, which may contain a secret.
fn syntax(origin: &str, text: &str, error: &toml::de::Error) -> Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    Error::ConfigSyntax { origin: origin.to_owned(), line, why: error.message().trim().to_owned() }
}
