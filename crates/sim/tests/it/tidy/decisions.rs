//! The rule about `docs/decisions/`: records have a number, a title and a status.
//!
//! Guarantees: numbers start at 1, have no gaps and are used once; a superseded record names its successor. Leaves to
//! others: whether a decision is right. `docs/decisions/README.md` describes the form.

use std::collections::BTreeSet;

use super::assert_none;
use super::tree::{TextFile, text_files};

const FOLDER: &str = "docs/decisions/";

#[test]
fn every_decision_is_numbered_and_has_status() {
    let mut records = text_files();
    records
        .retain(|file| file.path.starts_with(FOLDER) && file.path != format!("{FOLDER}README.md"));
    let mut numbers = BTreeSet::new();
    let mut faults = Vec::new();
    for record in &records {
        match check(record) {
            Ok(number) if numbers.insert(number) => {}
            Ok(number) => faults.push(format!("{}: number {number} is taken", record.path)),
            Err(fault) => faults.push(format!("{}: {fault}", record.path)),
        }
    }
    let missing = (1..=records.len()).filter(|number| !numbers.contains(number));
    faults.extend(missing.map(|number| format!("no record has the number {number:04}")));
    assert_none(&faults, "see docs/decisions/README.md for the form:");
}

/// Checks the form of a record and returns its number.
fn check(record: &TextFile) -> Result<usize, String> {
    let name = record.path.strip_prefix(FOLDER).unwrap_or(&record.path);
    let number = name.split_once('-').map_or("", |(number, _)| number);
    if number.len() != 4 || !name.ends_with(".md") {
        return Err("is not called NNNN-title.md".to_owned());
    }
    let parsed = number.parse().map_err(|_| format!("{number} is no number"))?;
    let title = record.text.lines().next().unwrap_or_default();
    if !title.starts_with(&format!("# {number}: ")) {
        return Err(format!("does not start with `# {number}: title`"));
    }
    let mut lines = record.text.lines();
    let status = lines.find_map(|line| line.strip_prefix("Status: ")).unwrap_or_default();
    if !is_status(status) {
        return Err("has no line `Status: proposed | accepted | superseded by NNNN`".to_owned());
    }
    Ok(parsed)
}

fn is_status(status: &str) -> bool {
    let successor = status.strip_prefix("superseded by ");
    let is_number = |text: &str| text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    matches!(status, "proposed" | "accepted") || successor.is_some_and(is_number)
}

#[test]
fn records_are_recognised() {
    for (name, text, expected) in [
        ("0007-x.md", "# 0007: X\n\nStatus: accepted\n", Some(7)),
        ("0007-x.md", "# 0007: X\n\nStatus: superseded by 0009\n", Some(7)),
        ("0007-x.md", "# 0007: X\n\nStatus: superseded\n", None),
        ("0007-x.md", "# 0007: X\n", None),
        ("0007-x.md", "# 0008: X\n\nStatus: accepted\n", None),
        ("7-x.md", "# 7: X\n\nStatus: accepted\n", None),
        ("x.md", "# X\n\nStatus: accepted\n", None),
    ] {
        let record = TextFile { path: format!("{FOLDER}{name}"), text: text.to_owned() };
        assert_eq!(check(&record).ok(), expected, "{name}: {text:?}");
    }
}
