//! Rules about dependencies: licences, documented reasons, and which crates may access the outside world.
//!
//! Guarantees: the checks cover what Cargo resolves for this platform from `Cargo.lock`, without network. Leaves to
//! others: the workspace of the benchmarks (`bench/`), which ships nothing; sources, duplicates and bans
//! ([`super::lock`]); known vulnerabilities ([`super::advisories`]).

use std::collections::BTreeSet;
use std::process::Command;

use logmill_sim::workspace_root;
use serde_json::Value;

use super::assert_none;
use super::licence::is_allowed;
use super::tree::get_text;

const DECISION: &str = "docs/decisions/0001-dependencies.md";

/// Packages that we use despite their licence, with the reason.
const LICENCE_EXCEPTIONS: [(&str, &str); 0] = [];

/// Packages that give access to disk, network or randomness.
const OUTSIDE_WORLD: [&str; 9] = [
    "deadpool-postgres",
    "getrandom",
    "object_store",
    "rand",
    "refinery-core",
    "reqwest",
    "rusqlite",
    "tokio-postgres",
    "tokio-tungstenite",
];

#[test]
fn every_dependency_has_an_allowed_licence() {
    let metadata = Metadata::read(true);
    let excepted = |name: &str| LICENCE_EXCEPTIONS.iter().any(|(package, _)| *package == name);
    let mut faults = Vec::new();
    for package in metadata.packages() {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        if !is_allowed(licence) && !excepted(name) {
            faults.push(format!("{name} {}: {licence:?}", text(package, "version")));
        }
        if is_allowed(licence) && excepted(name) {
            faults.push(format!("{name} needs no exception"));
        }
    }
    assert_none(&faults, "replace the package, or write the exception and its reason here:");
}

#[test]
fn every_direct_dependency_has_a_decision() {
    let decided = rows(&get_text(DECISION).expect("the decision on dependencies exists"));
    let declared = declared(&get_text("Cargo.toml").expect("the workspace has a manifest"));
    let metadata = Metadata::read(false);
    let ours = metadata.own_names();
    let mut used: BTreeSet<String> = metadata.direct().map(|direct| direct.name).collect();
    used.extend(declared.iter().cloned());
    used.retain(|name| !ours.contains(name));
    let mut faults: Vec<_> =
        used.difference(&decided).map(|name| format!("{name} has no row")).collect();
    let stale = decided.difference(&used).map(|name| format!("{name} is no longer used"));
    faults.extend(stale);
    assert_none(&faults, &format!("{DECISION} must say what each is for, and why this one:"));
}

#[test]
fn only_io_uses_the_outside_world() {
    let metadata = Metadata::read(false);
    let faults: Vec<_> = metadata
        .direct()
        .filter(|direct| direct.is_normal && direct.of != "logmill-io")
        .filter(|direct| OUTSIDE_WORLD.contains(&direct.name.as_str()))
        .map(|direct| format!("{} uses {}", direct.of, direct.name))
        .collect();
    assert_none(&faults, "use `logmill-io`, where faults can be injected:");
}

/// Output of `cargo metadata`.
pub(super) struct Metadata(Value);

/// A dependency in a manifest.
struct DirectDependency {
    of: String,
    name: String,
    is_normal: bool,
}

impl Metadata {
    /// Runs `cargo metadata`, only for our own packages unless `all`.
    pub(super) fn read(all: bool) -> Self {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["metadata", "--format-version", "1", "--locked", "--offline"]);
        if all {
            // Packages of other platforms may not be on this disk.
            command.args(["--filter-platform", &host()]);
        } else {
            command.arg("--no-deps");
        }
        let output = command.current_dir(workspace_root()).output().expect("cargo runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo metadata failed: {said}");
        Self(serde_json::from_slice(&output.stdout).expect("cargo answers in JSON"))
    }

    fn packages(&self) -> impl Iterator<Item = &Value> {
        items(&self.0, "packages")
    }

    pub(super) fn own_names(&self) -> BTreeSet<String> {
        self.packages().map(|package| text(package, "name").to_owned()).collect()
    }

    fn direct(&self) -> impl Iterator<Item = DirectDependency> {
        self.packages().flat_map(|package| {
            items(package, "dependencies").map(|dependency| DirectDependency {
                of: text(package, "name").to_owned(),
                name: text(dependency, "name").to_owned(),
                is_normal: dependency["kind"].is_null(),
            })
        })
    }
}

fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Name and version of every package that is built here, including tests. `cargo metadata` lists more: also packages
/// of features that are not enabled.
pub(super) fn built() -> BTreeSet<(String, String)> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["tree", "--workspace", "--locked", "--offline", "--edges", "normal,build,dev"]);
    command.args(["--prefix", "none", "--format", "{p}"]);
    let output = command.current_dir(workspace_root()).output().expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree failed: {said}");
    let lines = String::from_utf8(output.stdout).expect("cargo answers in text");
    let package = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some((name.to_owned(), rest.split(' ').next()?.to_owned()))
    };
    lines.lines().filter_map(package).collect()
}

/// The target triple we build for.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let said = String::from_utf8(output.stdout).expect("rustc answers in text");
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc names its host").to_owned()
}

/// The packages that have a row, such as "| `bytes` | …".
fn rows(decision: &str) -> BTreeSet<String> {
    let named = decision.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    named.map(str::to_owned).collect()
}

/// The packages under `[workspace.dependencies]`.
fn declared(manifest: &str) -> BTreeSet<String> {
    let lines =
        manifest.lines().skip_while(|line| line.trim() != "[workspace.dependencies]").skip(1);
    let section = lines.take_while(|line| !line.starts_with('['));
    let keys = section.filter_map(|line| line.split(['=', '.']).next());
    let is_name = |key: &&str| !key.is_empty() && !key.starts_with('#');
    keys.map(str::trim).filter(is_name).map(str::to_owned).collect()
}

#[test]
fn manifests_and_rows_are_read() {
    let manifest = "[workspace]\na = 1\n[workspace.dependencies]\n# why\nb = \"1\"\n\n\
                    c.path = \"c\"\n[lints]\nd = 1\n";
    assert_eq!(declared(manifest), BTreeSet::from(["b".to_owned(), "c".to_owned()]));
    let decision = "| crate | role |\n|---|---|\n| `b` | x `y` |\n| `c` | z |\n";
    assert_eq!(rows(decision), BTreeSet::from(["b".to_owned(), "c".to_owned()]));
}
