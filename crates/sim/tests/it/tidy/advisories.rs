//! Known security advisories about our dependencies, if a copy of RustSec's database is available.
//!
//! The folder is `LOGMILL_ADVISORY_DB`, or `~/.cargo/advisory-db`. Tests have no network, so without a copy nothing
//! is checked, and `tools/test.sh` prints a line about it; this does not count as a skipped test.
//!
//! Guarantees: an advisory that is not withdrawn and covers a version built here is a fault, unless it is a listed
//! exception with a reason; unneeded exceptions are faults too. Leaves to others: keeping the copy up to date.

use std::fs;
use std::path::{Path, PathBuf};

use semver::{Version, VersionReq};

use super::assert_none;
use super::dependencies::built;

/// Advisories that we accept, with the reason.
const EXCEPTIONS: [(&str, &str); 1] = [(
    "RUSTSEC-2024-0436",
    "`paste` is not maintained; `alloy-primitives` needs it, and it is a finished macro that runs at build time",
)];

#[test]
fn no_dependency_has_a_known_advisory() {
    let Some(database) = database() else {
        println!("advisories: not checked, no database available");
        return;
    };
    let built = built();
    let mut seen = Vec::new();
    let mut faults = Vec::new();
    for (name, version) in &built {
        let parsed = Version::parse(version).expect("a version of Cargo");
        for advisory in advisories_of(&database, name) {
            if !advisory.covers(&parsed) {
                continue;
            }
            if !EXCEPTIONS.iter().any(|(id, _)| *id == advisory.id) {
                faults.push(format!("{name} {version}: {}", advisory.id));
            }
            seen.push(advisory.id);
        }
    }
    let stale = EXCEPTIONS.iter().filter(|(id, _)| !seen.iter().any(|seen| seen == id));
    faults.extend(stale.map(|(id, _)| format!("the exception for {id} is not needed")));
    println!("advisories: {} packages checked against {}", built.len(), database.display());
    assert_none(
        &faults,
        "update or replace the package, or write the exception and its reason here:",
    );
}

/// The folder with the database, if any. If `LOGMILL_ADVISORY_DB` is set, it must exist.
fn database() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("LOGMILL_ADVISORY_DB").map(PathBuf::from) {
        assert!(
            named.join("crates").is_dir(),
            "LOGMILL_ADVISORY_DB is not a copy of RustSec's database"
        );
        return Some(named);
    }
    let usual = Path::new(&std::env::var_os("HOME")?).join(".cargo/advisory-db");
    usual.join("crates").is_dir().then_some(usual)
}

/// The advisories about a package.
fn advisories_of(database: &Path, package: &str) -> Vec<Advisory> {
    let folder = database.join("crates").join(package);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let files = entries.map(|entry| entry.expect("the folder can be read").path());
    let texts = files.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let advisory = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("an advisory can be read");
        Advisory::read(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
    };
    texts.map(advisory).collect()
}

/// A known problem of some versions of a package.
#[derive(Debug, PartialEq, Eq)]
struct Advisory {
    id: String,
    withdrawn: bool,
    /// Versions without the problem: those with a fix, and those that never had it.
    fine: Vec<VersionReq>,
}

impl Advisory {
    /// Parses the table at the beginning of an advisory.
    fn read(text: &str) -> Result<Self, String> {
        let rest = text.split_once("```toml").ok_or("no table")?.1;
        let table = rest.split_once("```").ok_or("a table without an end")?.0;
        let table: toml::Table = table.parse().map_err(|error| format!("{error}"))?;
        let advisory = table.get("advisory").ok_or("no [advisory]")?;
        let id = advisory.get("id").and_then(toml::Value::as_str).ok_or("no id")?.to_owned();
        let withdrawn = advisory.get("withdrawn").is_some();
        let versions = table.get("versions");
        let lists = ["patched", "unaffected"].map(|name| versions.and_then(|all| all.get(name)));
        let texts = lists.into_iter().flatten().filter_map(toml::Value::as_array).flatten();
        let parsed = texts.map(|text| {
            let text = text.as_str().ok_or("a version that is no text")?;
            VersionReq::parse(text).map_err(|error| format!("{text}: {error}"))
        });
        Ok(Self { id, withdrawn, fine: parsed.collect::<Result<_, String>>()? })
    }

    fn covers(&self, version: &Version) -> bool {
        !self.withdrawn && !self.fine.iter().any(|fine| fine.matches(version))
    }
}

#[test]
fn advisories_cover_the_versions_without_a_fix() {
    let table = |extra: &str, versions: &str| {
        format!(
            "```toml\n[advisory]\nid = \"RUSTSEC-1\"\n{extra}\n[versions]\n{versions}\n```\n# Text\n"
        )
    };
    let two = r#"patched = [">= 0.11.6, < 0.12.0", ">= 0.12.1"]"#;
    for (text, version, covered) in [
        (table("", two), "0.11.5", true),
        (table("", two), "0.11.6", false),
        (table("", two), "0.12.0", true),
        (table("", two), "0.14.0", false),
        (table("", "patched = []\nunaffected = [\"< 1.0\"]"), "0.9.9", false),
        (table("", "patched = []\nunaffected = [\"< 1.0\"]"), "1.0.0", true),
        (table("", "patched = []"), "3.0.0", true),
        (table("withdrawn = \"2025-03-12\"", "patched = []"), "3.0.0", false),
    ] {
        let advisory = Advisory::read(&text).expect("it can be read");
        let version = Version::parse(version).expect("a version");
        assert_eq!(advisory.covers(&version), covered, "{text} {version}");
    }
    for wrong in ["", "```toml\n[advisory]\n", "```toml\n[x]\n```", "```toml\n[advisory]\n```"] {
        Advisory::read(wrong).expect_err(wrong);
    }
}

#[test]
fn a_package_with_an_advisory_is_found_in_a_database() {
    let folder = tempfile::tempdir().expect("a folder");
    let crates = folder.path().join("crates/leaky");
    fs::create_dir_all(&crates).expect("made");
    let text = "```toml\n[advisory]\nid = \"RUSTSEC-7\"\n[versions]\npatched = [\">= 2\"]\n```\n";
    fs::write(crates.join("RUSTSEC-7.md"), text).expect("written");
    let version = Version::parse("1.4.0").expect("a version");
    let found = advisories_of(folder.path(), "leaky");
    assert_eq!(found.iter().map(|one| one.covers(&version)).collect::<Vec<_>>(), [true]);
    assert_eq!(advisories_of(folder.path(), "fine"), []);
}
