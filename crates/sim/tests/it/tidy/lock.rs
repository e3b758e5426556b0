//! Rules about `Cargo.lock`: where packages come from, which have several versions, and which are banned.
//!
//! Guarantees: sources are checked for every locked package, including those of other platforms; duplicates and bans
//! for those that are built here, including tests. Lists of exceptions only shrink: an unneeded exception is a fault.
//! Leaves to others: licences and documented reasons ([`super::dependencies`]), vulnerabilities
//! ([`super::advisories`]).

use std::collections::{BTreeMap, BTreeSet};

use super::assert_none;
use super::dependencies::{Metadata, built};
use super::tree::get_text;

/// The only source of packages; our own have none.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Packages with two or more versions, and which dependency causes it. Each version is compiled, so we avoid more of
/// them where there is a choice.
const DUPLICATES: [(&str, &str); 19] = [
    (
        "base64",
        "`object_store` and we are at 0.23, `axum` and PostgreSQL's client at 0.22; tests of webhooks 0.21",
    ),
    ("block-buffer", "comes with `digest`"),
    ("cpufeatures", "`const-hex` and the older `sha2` are at 0.2"),
    ("crypto-common", "comes with `digest`"),
    (
        "darling",
        "macros of `croner`, `alloy-consensus` and `serde_with`, each with its own; none of it ships",
    ),
    ("darling_core", "comes with `darling`"),
    ("darling_macro", "comes with `darling`"),
    ("digest", "`alloy-eips` and `crc-fast` are at 0.10; PostgreSQL's client and we at 0.11"),
    ("fallible-iterator", "`rusqlite` is at 0.3, PostgreSQL's client at 0.2"),
    ("getrandom", "comes with `rand`"),
    ("hashbrown", "`metrics-util` is at 0.16, all others at 0.17"),
    ("itertools", "`object_store` is at 0.15, `alloy-rpc-types-eth` at 0.13"),
    ("phf", "PostgreSQL's client is at 0.13; `chrono-tz`, in tests only, at 0.12"),
    ("phf_shared", "comes with `phf`"),
    ("rand", "`metrics-util` and `axum` are at 0.9, `object_store` and `proptest` at 0.10"),
    ("rand_chacha", "comes with `rand`"),
    ("rand_core", "comes with `rand`"),
    ("sha2", "`alloy-eips` is at 0.10, PostgreSQL's client and we at 0.11"),
    ("syn", "macros are moving from 2 to 3; none of it ships"),
];

/// Packages that we do not use, and why.
const BANNED: [(&str, &str); 19] = [
    ("ansi_term", "not maintained"),
    ("async-std", "discontinued, and there is one runtime"),
    ("atty", "not maintained; the standard library has it"),
    ("backoff", "not maintained"),
    ("chrono-english", "not maintained"),
    ("derivative", "not maintained"),
    ("dotenv", "not maintained"),
    ("failure", "not maintained"),
    ("fxhash", "not maintained"),
    ("instant", "not maintained"),
    ("native-tls", "TLS is rustls'"),
    ("number_prefix", "not maintained"),
    ("openssl", "TLS is rustls'"),
    ("openssl-sys", "TLS is rustls', and the program needs no library of the system"),
    ("paste", "not maintained"),
    ("proc-macro-error", "not maintained"),
    ("rustls-pemfile", "not maintained; `rustls-pki-types` has it"),
    ("serde_yaml", "not maintained"),
    ("yaml-rust", "not maintained"),
];

/// Banned packages that a dependency needs, where there is no choice.
const BAN_EXCEPTIONS: [(&str, &str); 1] =
    [("paste", "`alloy-primitives` needs it; a finished macro that runs at build time")];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    name: String,
    /// None for our own packages.
    source: Option<String>,
}

/// Parses a lock file.
fn packages(lock: &str) -> Vec<Package> {
    let lock: toml::Table = lock.parse().expect("Cargo.lock is TOML");
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let text = |package: &toml::Value, field: &str| {
        package.get(field).and_then(toml::Value::as_str).map(str::to_owned)
    };
    let package = |package: &toml::Value| {
        let name = text(package, "name").expect("a name");
        Package { name, source: text(package, "source") }
    };
    packages.expect("there are packages").iter().map(package).collect()
}

fn locked() -> Vec<Package> {
    packages(&get_text("Cargo.lock").expect("the workspace is locked"))
}

#[test]
fn every_package_comes_from_the_registry_or_is_ours() {
    let ours = Metadata::read(false).own_names();
    assert_none(&strangers(&locked(), &ours), "use packages of the public registry:");
}

fn strangers(packages: &[Package], ours: &BTreeSet<String>) -> Vec<String> {
    let fault = |package: &Package| match &package.source {
        Some(source) if source == REGISTRY => None,
        Some(source) => Some(format!("{} comes from {source}", package.name)),
        None if ours.contains(&package.name) => None,
        None => Some(format!("{} comes from a folder outside of the workspace", package.name)),
    };
    packages.iter().filter_map(fault).collect()
}

#[test]
fn no_package_has_two_versions_without_a_reason() {
    let built = versions();
    let twice = built.iter().filter(|(_, versions)| versions.len() > 1).map(|(name, _)| name);
    let faults = differences(twice.map(String::as_str), &DUPLICATES);
    let advice =
        "choose versions that others use too, or write here which package causes it and why:";
    assert_none(&faults, advice);
}

#[test]
fn no_banned_package_is_built() {
    let built = versions();
    let found = BANNED.iter().map(|(name, _)| *name).filter(|name| built.contains_key(*name));
    let faults = differences(found, &BAN_EXCEPTIONS);
    assert_none(&faults, "see the reasons here, and use another package:");
    let banned: BTreeSet<&str> = BANNED.iter().map(|(name, _)| *name).collect();
    assert!(BAN_EXCEPTIONS.iter().all(|(name, _)| banned.contains(name)));
}

/// Names that are found but not excepted, and names that are excepted but not found.
fn differences<'a>(
    found: impl Iterator<Item = &'a str>,
    excepted: &[(&'a str, &str)],
) -> Vec<String> {
    let found: BTreeSet<&str> = found.collect();
    let excepted: BTreeSet<&str> = excepted.iter().map(|(name, _)| *name).collect();
    let new = found.difference(&excepted).map(|name| format!("{name} is new"));
    let stale = excepted.difference(&found).map(|name| format!("{name} needs no exception"));
    new.chain(stale).collect()
}

#[test]
fn strangers_and_differences_are_found() {
    let lock = r#"
        version = 4
        [[package]]
        name = "fine"
        version = "1.0.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
        [[package]]
        name = "ours"
        version = "0.1.0"
        [[package]]
        name = "lost"
        version = "0.1.0"
        [[package]]
        name = "forked"
        version = "2.0.0"
        source = "git+https://example.org/forked#1234"
    "#;
    let found = strangers(&packages(lock), &BTreeSet::from(["ours".to_owned()]));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("lost comes from a folder"), "{found:?}");
    assert!(found[1].starts_with("forked comes from git+"), "{found:?}");
    let both = [("a", "why"), ("b", "why")];
    assert_eq!(differences(["a", "b"].into_iter(), &both), Vec::<String>::new());
    let faults = differences(["a", "c"].into_iter(), &both);
    assert_eq!(faults, ["c is new", "b needs no exception"]);
}

/// The versions of each package that is built here.
fn versions() -> BTreeMap<String, BTreeSet<String>> {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, version) in built() {
        versions.entry(name).or_default().insert(version);
    }
    versions
}
