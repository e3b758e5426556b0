//! Limits on the size of files, functions and lines, with a ratchet for known exceptions.
//!
//! `ratchet.txt` beside this file lists each exception with its current size. An exception may shrink, and the list
//! must then follow; it may not grow, and additions to the list are visible in review.
//!
//! Guarantees: code that grows too big fails here. Leaves to others: how to split it. In test files only functions
//! and lines are measured: a table of cases may be long.

use std::collections::BTreeMap;

use super::assert_none;
use super::scan::Scan;
use super::tree::{TextFile, get_text, rust_files};

/// Lines of a file, without its tests.
const FILE_LINES_MAX: usize = 500;
/// Lines of a function, from `fn` to its last brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Columns of a line of code.
const CODE_COLUMNS_MAX: usize = 100;
/// Columns of a line with a comment or a string: `rustfmt` does not wrap those.
const TEXT_COLUMNS_MAX: usize = 120;

const RATCHET: &str = "crates/sim/tests/it/tidy/ratchet.txt";

/// Sizes by name, such as `file crates/io/src/sql.rs`.
type Sizes = BTreeMap<String, usize>;

#[test]
fn no_file_or_function_grows_beyond_its_size() {
    let mut found = Sizes::new();
    for file in rust_files() {
        for (name, size) in too_big(&file) {
            let largest = found.entry(name).or_default();
            *largest = size.max(*largest);
        }
    }
    let ratchet = parse(&get_text(RATCHET).unwrap_or_default());
    let advice = format!(
        "at most {FILE_LINES_MAX} lines a file without its tests, {FUNCTION_LINES_MAX} a function, \
         {CODE_COLUMNS_MAX} columns ({TEXT_COLUMNS_MAX} with text); exceptions are in {RATCHET}:"
    );
    assert_none(&compare(&found, &ratchet), &advice);
}

/// Everything in `file` that exceeds its limit.
fn too_big(file: &TextFile) -> Vec<(String, usize)> {
    let scan = Scan::new(&file.text);
    let path = &file.path;
    let mut found = Vec::new();
    let lines = if file.is_test() { 0 } else { lines_without_tests(&scan) };
    if lines > FILE_LINES_MAX {
        found.push((format!("file {path}"), lines));
    }
    for function in scan.functions() {
        if function.lines > FUNCTION_LINES_MAX {
            found.push((format!("function {path} {}", function.name), function.lines));
        }
    }
    let columns = widest_line(&file.text, &scan);
    found.extend(columns.map(|columns| (format!("columns {path}"), columns)));
    found
}

fn lines_without_tests(scan: &Scan) -> usize {
    let tests = scan.test_lines();
    let is_test = |line: &usize| tests.iter().any(|lines| lines.contains(line));
    (0..scan.code.lines().count()).filter(|line| !is_test(line)).count()
}

/// Columns of the widest line that exceeds its limit.
fn widest_line(text: &str, scan: &Scan) -> Option<usize> {
    let lines = text.lines().zip(scan.code.lines());
    lines
        .filter_map(|(line, code)| {
            let most = if line == code { CODE_COLUMNS_MAX } else { TEXT_COLUMNS_MAX };
            Some(line.chars().count()).filter(|&columns| columns > most)
        })
        .max()
}

/// Parses lines of `size kind path [name]`; `#` starts a comment.
fn parse(ratchet: &str) -> Sizes {
    let entries = ratchet.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| {
        let (size, name) = line.split_once(' ')?;
        Some((name.to_owned(), size.parse().ok()?))
    };
    entries
        .map(|line| read(line).unwrap_or_else(|| panic!("{RATCHET}: cannot parse: {line}")))
        .collect()
}

/// What must change in the tree or in the ratchet.
fn compare(found: &Sizes, ratchet: &Sizes) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, &size) in found {
        match ratchet.get(name) {
            None => faults.push(format!("too big: {size} {name}")),
            Some(&allowed) if size > allowed => {
                faults.push(format!("grew from {allowed}: {size} {name}"));
            }
            Some(&allowed) if size < allowed => {
                faults.push(format!("shrank, lower the ratchet from {allowed}: {size} {name}"));
            }
            Some(_) => {}
        }
    }
    let gone = ratchet.keys().filter(|name| !found.contains_key(*name));
    faults
        .extend(gone.map(|name| format!("no longer too big, remove it from the ratchet: {name}")));
    faults
}

#[test]
fn the_ratchet_only_goes_down() {
    let sizes = |text: &str| parse(text);
    for (found, ratchet, faults) in [
        ("", "", 0),
        ("600 file a", "600 file a", 0),
        ("601 file a", "600 file a", 1),
        ("599 file a", "600 file a", 1),
        ("", "600 file a", 1),
        ("600 file a", "", 1),
        ("80 function a f\n90 function a g", "# known\n\n80 function a f\n90 function a g", 0),
    ] {
        let faults_found = compare(&sizes(found), &sizes(ratchet));
        assert_eq!(faults_found.len(), faults, "{found:?} against {ratchet:?}: {faults_found:?}");
    }
}

#[test]
fn sizes_are_measured_without_tests() {
    let check = |path: &str, text: String, expected: &[(&str, usize)]| {
        let found = too_big(&TextFile { path: path.to_owned(), text });
        let found: Vec<_> = found.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        assert_eq!(found, expected);
    };
    let lines = |count: usize| "x;\n".repeat(count);
    check("a.rs", lines(500), &[]);
    check("a.rs", lines(501), &[("file a.rs", 501)]);
    check("a/tests/it/b.rs", lines(501), &[]);
    check("a/tests.rs", lines(501), &[]);
    check("a.rs", format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(500), lines(9)), &[]);
    check("a.rs", format!("fn f() {{\n{}}}\n", lines(68)), &[]);
    check("a.rs", format!("fn f() {{\n{}}}\n", lines(69)), &[("function a.rs f", 71)]);
    check("a.rs", "x".repeat(100), &[]);
    check("a.rs", "x".repeat(101), &[("columns a.rs", 101)]);
    check("a.rs", format!("// {}", "é".repeat(117)), &[]);
    check("a.rs", format!("// {}", "é".repeat(118)), &[("columns a.rs", 121)]);
    check("a.rs", format!("f(\"{}\")", "x".repeat(115)), &[]);
}
