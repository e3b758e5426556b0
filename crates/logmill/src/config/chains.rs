//! The list `[[chains]]`: several chains in one process, each with its own settings.
//!
//! ```toml
//! [[chains]]
//! id = 1
//! rpc_urls = "https://…"
//! [chains.ingest]
//! history_stop_height = 15000000
//! ```
//!
//! An entry has the keys of `[chain]`, and tables `ingest`, `derive` and `collect` with the keys of those sections.
//! Keys that it does not set are taken from those sections, except for `collect.contract_address`, because a contract
//! belongs to one chain.
//!
//! Guarantees: every entry has a unique id; an error names the entry and the key, and contains no secret. Leaves to
//! others: following the chains ([`crate::server::chains`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use toml::{Table, Value};

use super::layers::{Layers, flatten, slot};
use super::{Settings, secret};
use crate::error::{Error, Result};

/// The key of the list.
const KEY: &str = "chains";
/// Maximum chains per process: each has its own tasks and connections.
const CHAINS_MAX: usize = 100;
/// Sections that an entry may set for its chain.
const SECTIONS: [&str; 3] = ["ingest", "derive", "collect"];

/// The settings of every chain in the list.
pub(super) fn settings(layers: &Layers, all: &Settings) -> Result<Vec<Arc<Settings>>> {
    let wrong = |key: String, why: &str| {
        Err(Error::BadValue { origin: layers.origin(KEY), key, why: why.to_owned() })
    };
    let entries = &all.chains;
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    if all.chain.is_given() || all.chain.id().is_some() {
        let why = "[chain] names a chain too (chain.rpc_urls, chain.era1 or chain.id, or RPC_URL or ACTIVE_CHAIN): \
            list all chains in [[chains]], or set one in [chain]";
        return wrong(KEY.to_owned(), why);
    }
    if entries.len() > CHAINS_MAX {
        return wrong(KEY.to_owned(), &format!("at most {CHAINS_MAX} chains are allowed"));
    }
    let mut ids = BTreeSet::new();
    let mut chains = Vec::new();
    for (position, entry) in entries.iter().enumerate() {
        let name = format!("{KEY}[{position}]");
        let settings = of_entry(layers, &name, entry)?;
        let Some(id) = settings.chain.id() else {
            return wrong(format!("{name}.id"), "must be set to the chain id");
        };
        if !settings.chain.is_given() {
            return wrong(
                format!("{name}.rpc_urls"),
                "must name a node, unless era1 names a folder",
            );
        }
        if !ids.insert(id) {
            return wrong(format!("{name}.id"), &format!("chain {id} is listed twice"));
        }
        chains.push(Arc::new(settings));
    }
    Ok(chains)
}

/// All settings, overridden by those of an entry.
fn of_entry(layers: &Layers, name: &str, entry: &Table) -> Result<Settings> {
    let mut table = layers.table().clone();
    table.insert(KEY.to_owned(), Value::Array(Vec::new()));
    if let Some(contract) = slot(&mut table, "collect.contract_address") {
        *contract = Value::String(String::new());
    }
    let mut given = Vec::new();
    flatten("", entry, &mut given);
    let origin = layers.origin(KEY);
    for (key, value) in given {
        let full = full_key(&key);
        let is_empty_section = value.as_table().is_some_and(Table::is_empty);
        if is_empty_section && SECTIONS.contains(&key.as_str()) {
            continue;
        }
        let Some(known) = slot(&mut table, &full).filter(|known| !known.is_table()) else {
            return Err(Error::UnknownKey { origin, key: format!("{name}.{key}") });
        };
        *known = value;
        if let Err(error) = Settings::try_from_table(&table) {
            let why = secret::expected_form(&full).unwrap_or_else(|| error.message());
            let (key, why) = (format!("{name}.{key}"), why.trim().to_owned());
            return Err(Error::BadValue { origin, key, why });
        }
    }
    let settings = Settings::try_from_table(&table);
    let settings = settings.map_err(|error| Error::BadValue {
        origin: origin.clone(),
        key: name.to_owned(),
        why: error.message().to_owned(),
    })?;
    match settings.fault() {
        None => Ok(settings),
        Some((key, why)) => {
            let key = key.strip_prefix("chain.").unwrap_or(key);
            Err(Error::BadValue { origin, key: format!("{name}.{key}"), why })
        }
    }
}

/// The full key that a key of an entry stands for.
fn full_key(key: &str) -> String {
    match key.split_once('.') {
        Some((section, _)) if SECTIONS.contains(&section) => key.to_owned(),
        _ => format!("chain.{key}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use logmill_chain::VerifyLevel;

    use super::*;

    /// Loads the chains of a config file.
    fn load(text: &str) -> Result<Vec<Arc<Settings>>> {
        let mut layers = Layers::defaults()?;
        layers.add_file(Path::new("f.toml"), text)?;
        settings(&layers, &layers.settings()?)
    }

    #[test]
    fn the_settings_of_a_chain_override_those_of_all_chains() {
        let text = r#"
            [chain]
            verify = "bloom"
            [ingest]
            poll_ms = 70
            [collect]
            contract_address = "0x0000000000000000000000000000000000000001"
            [[chains]]
            id = 1
            rpc_urls = "http://a:1/KEY"
            verify = "full"
            [chains.ingest]
            history_stop_height = 9
            [chains.derive.processors]
            defi_worker = false
            [[chains]]
            id = 10
            rpc_urls = "http://b:2/"
            confirmations = 7
            ingest = { }
            collect = { contract_address = "0x0000000000000000000000000000000000000002" }
        "#;
        let chains = load(text).expect("fine");
        let [one, ten] = chains.as_slice() else { panic!("{} chains", chains.len()) };
        assert_eq!((one.chain.id(), ten.chain.id()), (Some(1), Some(10)));
        assert_eq!(
            (one.chain.evm().verify, ten.chain.evm().verify),
            (VerifyLevel::Full, VerifyLevel::Bloom)
        );
        assert_eq!((one.chain.evm().confirmations, ten.chain.evm().confirmations), (None, Some(7)));
        assert_eq!((one.ingest.lowest(), ten.ingest.lowest()), (Some(9), Some(0)));
        assert_eq!(one.ingest().poll, ten.ingest().poll);
        assert_eq!(one.ingest().poll.as_millis(), 70, "a setting of all chains");
        assert!(!one.derive.enables("defi_worker") && ten.derive.enables("defi_worker"));
        assert!(one.collect.contracts().is_err(), "a contract belongs to one chain");
        assert_eq!(ten.collect.contracts().expect("one").len(), 1);
    }

    #[test]
    fn an_error_about_a_chain_names_the_key_and_contains_no_secret() {
        let one = "[[chains]]\nid = 1\nrpc_urls = \"http://a/SECRET\"\n";
        for (text, expected) in [
            ("[[chains]]\nrpc_urls = \"http://a/SECRET\"\n".to_owned(), "chains[0].id"),
            ("[[chains]]\nid = 1\n".to_owned(), "chains[0].rpc_urls"),
            (
                "[[chains]]\nid = 1\nrpc_urls = \"ftp://a/SECRET\"\n".to_owned(),
                "chains[0].rpc_urls",
            ),
            ("[[chains]]\nid = 1\nrpc_urls = [\"SECRET\"]\n".to_owned(), "chains[0].rpc_urls"),
            (format!("{one}verification = \"off\"\n"), "unknown key chains[0].verification"),
            (format!("{one}[chains.ingest]\npol_ms = 1\n"), "unknown key chains[0].ingest.pol_ms"),
            (format!("{one}[chains.server]\nlisten = \"\"\n"), "unknown key chains[0].server"),
            (format!("{one}[chains.ingest]\npoll_ms = 0\n"), "chains[0].ingest.poll_ms"),
            (format!("{one}{one}"), "chain 1 is listed twice"),
            (format!("{one}[chain]\nrpc_urls = \"http://b/SECRET\"\n"), "[chain]"),
            ("chains = \"SECRET\"\n".to_owned(), "expected a list of tables"),
            (one.repeat(CHAINS_MAX + 1), "at most 100"),
        ] {
            let error = logmill_io::error_chain(&load(&text).expect_err(&text));
            assert!(error.contains(expected) && error.contains("f.toml"), "{text}: {error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
        let mut layers = Layers::defaults().expect("the defaults");
        layers.add_file(Path::new("f.toml"), one).expect("fine");
        let shown = layers.redacted_toml().expect("shown");
        assert!(shown.contains("http://a:80") && !shown.contains("SECRET"), "{shown}");
    }
}
