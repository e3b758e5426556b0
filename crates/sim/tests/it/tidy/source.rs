//! Rules about the names and the content of files.
//!
//! Guarantees: a rule about code is not broken by a comment or a string that mentions it. Leaves to others: sizes
//! ([`super::size`]).

use super::assert_none;
use super::scan::Scan;
use super::tree::{paths, rust_files, text_files};

/// A shorter header cannot say anything useful.
const HEADER_CHARS_MIN: usize = 20;

/// Names that do not tell what is inside.
const EMPTY_NAMES: [&str; 7] = ["common", "helper", "helpers", "manager", "misc", "util", "utils"];

/// Marks of unfinished work.
const UNFINISHED: [&str; 3] = ["FIXME", "TODO", "XXX"];

/// Absolute folders that exist only on one machine.
const MACHINE_FOLDERS: [&str; 4] = ["/home/", "/root/", "/Users/", "/work/"];

#[test]
fn every_source_file_opens_with_its_header() {
    let faults: Vec<_> = text_files()
        .iter()
        .filter(|file| !match file.path.rsplit_once('.') {
            Some((_, "rs")) => has_header(&file.text, "//! "),
            Some((_, "sh")) => {
                file.text.starts_with("#!") && has_header(after_line(&file.text), "# ")
            }
            _ => true,
        })
        .map(|file| file.path.clone())
        .collect();
    assert_none(
        &faults,
        "start the file with what it is, what it guarantees, and what it leaves to others:",
    );
}

fn has_header(text: &str, mark: &str) -> bool {
    let said = text.strip_prefix(mark).and_then(|said| said.lines().next());
    said.is_some_and(|said| said.chars().count() >= HEADER_CHARS_MIN)
}

fn after_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

#[test]
fn headers_are_recognised() {
    for (text, expected) in [
        ("//! The queue: jobs in an order.\n", true),
        ("//! x\n", false),
        ("\n//! The queue: jobs in an order.\n", false),
        ("// The queue: jobs in an order.\n", false),
        ("", false),
    ] {
        assert_eq!(has_header(text, "//! "), expected, "{text:?}");
    }
}

#[test]
fn every_select_is_biased() {
    let mut faults = Vec::new();
    for file in rust_files() {
        let scan = Scan::new(&file.text);
        let unbiased = scan.words("select").filter(|&at| is_unbiased_select(&scan.code[at..]));
        faults.extend(unbiased.map(|at| format!("{}:{}", file.path, scan.line_of(at) + 1)));
    }
    assert_none(&faults, "start the block with `biased;`, or no run replays from its seed:");
}

/// Whether the code at `select` calls the macro and picks the branch at random.
fn is_unbiased_select(code: &str) -> bool {
    let Some(call) = code.strip_prefix("select!") else { return false };
    let body = call.trim_start().trim_start_matches(['{', '(', '[']).trim_start();
    let biased = body.strip_prefix("biased").is_some_and(|rest| rest.trim_start().starts_with(';'));
    !biased
}

#[test]
fn unbiased_selects_are_recognised() {
    for (code, expected) in [
        ("select! { biased; a = b => {} }", false),
        ("select! {\n    biased;\n a = b => {} }", false),
        ("select! { biased ; }", false),
        ("select!(biased; a = b => {})", false),
        ("select! { a = b => {} }", true),
        ("select! { biased_one = b => {} }", true),
        ("select(a, b)", false),
    ] {
        assert_eq!(is_unbiased_select(code), expected, "{code:?}");
    }
}

#[test]
fn no_module_is_named_mod_rs() {
    let faults: Vec<_> = paths().into_iter().filter(|path| path.ends_with("/mod.rs")).collect();
    assert_none(&faults, "name the file after its module, `foo.rs` beside `foo/`:");
}

#[test]
fn no_forbidden_file_names() {
    let faults: Vec<_> = paths().into_iter().filter(|path| has_empty_name(path)).collect();
    assert_none(&faults, "name the file or folder after what it contains:");
}

fn has_empty_name(path: &str) -> bool {
    let mut words = path.split(|sign: char| !sign.is_ascii_alphanumeric());
    words.any(|word| EMPTY_NAMES.contains(&word.to_ascii_lowercase().as_str()))
}

#[test]
fn empty_names_are_recognised() {
    for (path, expected) in [
        ("crates/io/src/utils.rs", true),
        ("crates/work/src/queue_manager.rs", true),
        ("ui/src/helpers/date.ts", true),
        ("crates/io/src/commonwealth.rs", false),
        ("crates/work/src/lease.rs", false),
    ] {
        assert_eq!(has_empty_name(path), expected, "{path}");
    }
}

#[test]
fn no_test_is_ignored() {
    let faults: Vec<_> = rust_files()
        .into_iter()
        .filter(|file| {
            let scan = Scan::new(&file.text);
            scan.attributes()
                .into_iter()
                .any(|inside| Scan::new(inside).words("ignore").count() > 0)
        })
        .map(|file| file.path)
        .collect();
    assert_none(&faults, "a test that cannot run here calls `logmill_sim::skip` and is counted:");
}

#[test]
fn no_unfinished_code() {
    let mut faults = Vec::new();
    for file in text_files() {
        // Prose may mention unfinished work; code and scripts may not contain it.
        let comments = match file.path.rsplit_once('.') {
            Some((_, "rs")) => {
                let scan = Scan::new(&file.text);
                faults.extend(unfinished_macro(&scan).map(|name| format!("{}: {name}", file.path)));
                scan.comments
            }
            Some((_, "sh" | "sql" | "toml" | "ts" | "svelte")) => file.text,
            _ => continue,
        };
        let marks = UNFINISHED.iter().filter(|mark| has_word(&comments, mark));
        faults.extend(marks.map(|mark| format!("{}: {mark}", file.path)));
    }
    assert_none(&faults, "finish it, or write down what is missing in `docs/brief.md`:");
}

fn unfinished_macro(scan: &Scan) -> impl Iterator<Item = &'static str> {
    ["todo", "unimplemented"]
        .into_iter()
        .filter(|name| scan.words(name).any(|at| scan.code[at + name.len()..].starts_with('!')))
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|sign: char| !sign.is_alphanumeric()).any(|found| found == word)
}

#[test]
fn nothing_names_this_machine() {
    let mut faults = Vec::new();
    for file in text_files() {
        // This file must name what it looks for.
        if file.path.ends_with("tests/it/tidy/source.rs") {
            continue;
        }
        let lines = file.text.lines().enumerate().filter(|(_, line)| names_a_machine(line));
        faults.extend(lines.map(|(number, _)| format!("{}:{}", file.path, number + 1)));
    }
    assert_none(&faults, "use a path that exists in every checkout:");
}

/// Whether `line` contains an absolute path into a folder of one machine.
fn names_a_machine(line: &str) -> bool {
    // The slash is not the start of a path after a name, a dot, or the end of a variable or placeholder.
    let goes_on = |before: &str| {
        before.ends_with(|last: char| last.is_alphanumeric() || "_-./)}>*~".contains(last))
    };
    MACHINE_FOLDERS
        .iter()
        .any(|folder| line.match_indices(folder).any(|(at, _)| !goes_on(&line[..at])))
}

#[test]
fn machine_paths_are_recognised() {
    for (line, expected) in [
        ("cd /work/main", true),
        ("\"/root/.cargo\"", true),
        ("PATH=/home/me/bin", true),
        ("/Users/me", true),
        ("crates/work/src/job.rs", false),
        ("../work/src", false),
        ("${ROOT}/work/src", false),
        ("target/{}/work/", false),
        ("a worked example, root/leaf", false),
    ] {
        assert_eq!(names_a_machine(line), expected, "{line}");
    }
}

#[test]
fn random_tests_run_more_cases_in_a_proof() {
    let mut faults = Vec::new();
    for file in rust_files() {
        let fixed = file.text.match_indices("with_cases(").filter(|(at, found)| {
            let argument = file.text[at + found.len()..].trim_start();
            argument.starts_with(|first: char| first.is_ascii_digit())
        });
        let line = |at: usize| file.text[..at].lines().count();
        faults.extend(fixed.map(|(at, _)| format!("{}:{}", file.path, line(at))));
    }
    assert_none(&faults, "pass the number of cases to `logmill_io::proof_cases`:");
}
