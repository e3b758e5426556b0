//! The rule about `docs/brief.md`: what it says about the code can be looked up in the code.
//!
//! Guarantees: ids are unique and states are known. A row that is done, or kept otherwise, names modules that
//! exist, and at least one test or command; every test that any row names exists. A module that is still to be
//! written is marked `later:`, in an open row only, and the mark must go when the module comes. Leaves to
//! others: whether a test shows what its row promises.

use std::collections::BTreeSet;

use super::assert_none;
use super::scan::Scan;
use super::tree::{TextFile, get_text, paths, rust_files};

const PAGE: &str = "docs/brief.md";
const STATES: [&str; 3] = ["done", "open", "otherwise"];
/// The mark of modules that are still to be written.
const LATER: &str = "later: ";
/// The macro that runs the functions it is given on both engines, and the tests that it makes of them.
const BOTH_ENGINES: &str = "on_both_engines!";
const BOTH_ENGINES_SQLITE: &str = "on_sqlite";
const BOTH_ENGINES_POSTGRESQL: &str = "on_postgresql_all_answers_are_the_same";

#[test]
fn every_row_of_the_brief_names_modules_and_tests_that_exist() {
    let page = get_text(PAGE).expect("the brief is there");
    let tree = Tree::of(paths(), &rust_files(), &get_text("Makefile").unwrap_or_default());
    let faults = faults(&page, &tree);
    assert_none(
        &faults,
        &format!("{PAGE} names what is not there (its top says how to write a row):"),
    );
}

/// What a row can name.
struct Tree {
    /// Files, and the folders that they are in.
    places: BTreeSet<String>,
    /// Tests as the page writes them: `sim: work::once::it_holds`.
    tests: BTreeSet<String>,
    /// Targets of the Makefile.
    targets: BTreeSet<String>,
}

impl Tree {
    fn of(paths: Vec<String>, sources: &[TextFile], makefile: &str) -> Self {
        let mut places = BTreeSet::new();
        for path in paths {
            let folders = path.match_indices('/').map(|(at, _)| path[..at].to_owned());
            places.extend(folders);
            places.insert(path);
        }
        let target = |line: &str| Some(line.split_once(':')?.0.to_owned());
        Self {
            places,
            tests: sources.iter().flat_map(tests).collect(),
            targets: makefile.lines().filter_map(target).collect(),
        }
    }

    /// Whether `place` is a module (`work::queue`), a crate (`sim`) or a path of the tree.
    fn has_place(&self, place: &str) -> bool {
        let (name, module) = place.split_once("::").unwrap_or((place, ""));
        let name = if name == "finalized_log_index" { "finalized-log-index" } else { name };
        let source = format!("crates/{name}/src");
        let module = module.replace("::", "/");
        let is_module = match module.as_str() {
            "" => self.places.contains(&source),
            _ => self.places.contains(&format!("{source}/{module}.rs")),
        };
        is_module || (place.contains('/') && self.places.contains(place))
    }

    /// What is wrong with the command, if it is one that shows something.
    fn command(&self, text: &str) -> Option<Result<(), String>> {
        let words: Vec<_> = text.split(' ').collect();
        let after = |flag| words.iter().skip_while(|word| **word != flag).nth(1).copied();
        match words[..] {
            ["make", target, ..] => Some(match self.targets.contains(target) {
                true => Ok(()),
                false => Err(format!("the Makefile has no target `{target}`")),
            }),
            ["cargo", "test" | "run" | "bench", ..] => {
                let folder =
                    format!("crates/{}", after("-p").unwrap_or("?").replace("logmill-", ""));
                let program = after("--bench").map(|name| format!("{folder}/benches/{name}"));
                let program =
                    program.or(after("--example").map(|name| format!("{folder}/examples/{name}")));
                let path = program.unwrap_or(folder);
                let exists =
                    self.places.contains(&path) || self.places.contains(&format!("{path}.rs"));
                Some(if exists {
                    Ok(())
                } else {
                    Err(format!("`{text}` runs {path}, which does not exist"))
                })
            }
            _ => None,
        }
    }

    /// Where a test of the same name is, for the message.
    fn similar(&self, test: &str) -> String {
        let name = test.rsplit([':', ' ']).next().unwrap_or(test);
        let is_same = |other: &&String| other.rsplit([':', ' ']).next() == Some(name);
        self.tests
            .iter()
            .find(is_same)
            .map(|other| format!("; there is `{other}`"))
            .unwrap_or_default()
    }
}

/// The tests of a file, as the page writes them.
fn tests(file: &TextFile) -> Vec<String> {
    let mut parts = file.path.trim_end_matches(".rs").split('/');
    let (Some("crates"), Some(name)) = (parts.next(), parts.next()) else { return Vec::new() };
    let mut module: Vec<_> = match parts.next() {
        Some("tests") => parts.skip(1).collect(),
        Some("src") => parts.collect(),
        _ => return Vec::new(),
    };
    module.pop_if(|last| matches!(*last, "lib" | "main"));
    let scan = Scan::new(&file.text);
    let mut found = scan.tests();
    let on_both = scan.macro_words(BOTH_ENGINES);
    if !on_both.is_empty() {
        found.push(BOTH_ENGINES_POSTGRESQL.to_owned());
    }
    found.extend(on_both.iter().map(|test| format!("{BOTH_ENGINES_SQLITE}::{test}")));
    let prefix: String = module.iter().map(|part| format!("{part}::")).collect();
    found.iter().map(|test| format!("{name}: {prefix}{test}")).collect()
}

/// All that is wrong with the page.
fn faults(page: &str, tree: &Tree) -> Vec<String> {
    let mut ids = BTreeSet::new();
    let mut faults = Vec::new();
    for (number, line) in page.lines().enumerate() {
        let is_row =
            line.starts_with('|') && !line.starts_with("|---") && !line.starts_with("| id |");
        if !is_row {
            continue;
        }
        let at = format!("{PAGE}:{}", number + 1);
        let Some(row) = Row::parse(line) else {
            faults.push(format!("{at}: not `| id | promise | where | shown by | state |`: {line}"));
            continue;
        };
        let mut found = row.faults(tree);
        if !ids.insert(row.id) {
            found.push("the id is used twice".to_owned());
        }
        faults.extend(found.iter().map(|fault| format!("{at}: {}: {fault}", row.id)));
    }
    faults
}

struct Row<'a> {
    id: &'a str,
    place: &'a str,
    shown_by: &'a str,
    state: &'a str,
}

impl<'a> Row<'a> {
    /// A line of a table; `\|` is no border of a cell.
    fn parse(line: &'a str) -> Option<Self> {
        let inside = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let cells: Vec<_> = inside.split(" | ").collect();
        let [id, _promise, place, shown_by, state] = cells[..] else { return None };
        let (document, number) = id.split_once('-')?;
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_id = document.len() == 3
            && is_number(document)
            && is_number(number.strip_prefix('T').unwrap_or(number));
        is_id.then_some(Self { id, place, shown_by, state })
    }

    fn faults(&self, tree: &Tree) -> Vec<String> {
        let mut faults = Vec::new();
        if !STATES.contains(&self.state) {
            faults.push(format!("the state is `{}`, not one of {STATES:?}", self.state));
        }
        faults.extend(self.place_faults(tree));
        let mut proofs = 0;
        for text in quoted(self.shown_by) {
            if tree.tests.contains(text) {
                proofs += 1;
            } else if let Some(outcome) = tree.command(text) {
                proofs += 1;
                faults.extend(outcome.err());
            } else if is_test_name(text) {
                faults.push(format!("there is no test `{text}`{}", tree.similar(text)));
                proofs += 1;
            }
        }
        if self.state != "open" && proofs == 0 {
            faults
                .push(format!("the row is {} and names neither a test nor a command", self.state));
        }
        faults
    }

    fn place_faults(&self, tree: &Tree) -> Vec<String> {
        let (later, names) = match self.place.strip_prefix(LATER) {
            Some(names) => (true, names),
            None => (false, self.place),
        };
        let mut faults = Vec::new();
        if later && self.state != "open" {
            faults.push(format!("the row is {} and its module is still to be written", self.state));
        }
        if quoted(names).next().is_none() {
            faults.push("no module is named".to_owned());
        }
        for name in quoted(names) {
            match (tree.has_place(name), later) {
                (false, false) => faults.push(format!("there is no module `{name}`")),
                (true, true) => faults.push(format!("`{name}` exists: take `later:` away")),
                _ => {}
            }
        }
        faults
    }
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether the text has the form of a test's name: `sim: work::once::it_holds`.
fn is_test_name(text: &str) -> bool {
    let Some((name, path)) = text.split_once(": ") else { return false };
    let is_word = |part: &str, others: &str| {
        !part.is_empty()
            && part.chars().all(|letter| letter.is_alphanumeric() || others.contains(letter))
    };
    is_word(name, "-_") && is_word(path, "_:*…")
}

#[test]
fn false_rows_are_recognised() {
    let source = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
    let sources = [
        source("crates/work/src/queue.rs", "#[cfg(test)]\nmod tests { #[test]\nfn it_holds() {} }"),
        source(
            "crates/sim/tests/it/once.rs",
            "#[tokio::test(start_paused = true)]\nasync fn it_ends() {}",
        ),
        source(
            "crates/logmill/src/http/tests/lists.rs",
            "async fn a(_: E) {}\non_both_engines![\n  a,\n];",
        ),
    ];
    let paths = sources.iter().map(|file| file.path.clone()).collect();
    let tree = Tree::of(paths, &sources, "demo: ## run it\n");
    for (row, expected) in [
        ("| 000-1 | P. | `work::queue` | `work: queue::tests::it_holds` | done |", ""),
        ("| 000-T1 | P \\| Q. | `work`, `logmill` | R: `sim: once::it_ends`. | otherwise |", ""),
        ("| 000-1 | P. | `work::queue` | `make demo` | done |", ""),
        ("| 000-1 | P. | `crates/work/src` | `cargo test --doc -p logmill-work` | done |", ""),
        ("| 000-1 | P. | `logmill` | `logmill: http::tests::lists::on_sqlite::a` | done |", ""),
        ("| 000-1 | P. | later: `bill::document` | — | open |", ""),
        ("| 000-1 | P. | `work::que` | `make demo` | done |", "no module `work::que`"),
        ("| 000-1 | P. | later: `work::queue` | — | open |", "take `later:` away"),
        ("| 000-1 | P. | later: `bill` | `make demo` | done |", "still to be written"),
        ("| 000-1 | P. | — | `make demo` | done |", "no module is named"),
        ("| 000-1 | P. | `work` | `make tea` | done |", "no target `tea`"),
        (
            "| 000-1 | P. | `work` | `cargo bench -p logmill-work --bench q` | done |",
            "does not exist",
        ),
        (
            "| 000-1 | P. | `work` | `work: it_holds` | open |",
            "there is `work: queue::tests::it_holds`",
        ),
        ("| 000-1 | P. | `work` | `work: queue` | done |", "no test `work: queue`"),
        ("| 000-1 | P. | `logmill` | `logmill: http::tests::lists::a` | done |", "no test"),
        ("| 000-1 | P. | `work` | A reason alone. | otherwise |", "neither a test nor a command"),
        ("| 000-1 | P. | `work` | `make demo` | shown |", "the state is `shown`"),
        ("| 000-1 | P. | `work` | `make demo` |", "not `| id |"),
        ("| 0-1 | P. | `work` | `make demo` | done |", "not `| id |"),
        ("| 000-1 | P. | `work` | — | open |\n| 000-1 | P. | `work` | — | open |", "used twice"),
    ] {
        let found = faults(row, &tree);
        assert_eq!(found.len(), usize::from(!expected.is_empty()), "{row}: {found:?}");
        assert!(found.iter().all(|fault| fault.contains(expected)), "{row}: {found:?}");
    }
}
