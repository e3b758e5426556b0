//! Garbage collection and pruning by command.

use super::fixture::{FIRST, IndexFixture, blocks};
use super::{ask, check_logs, range};

/// A figure of a garbage collection report.
#[track_caller]
fn figure(report: &str, name: &str) -> u64 {
    let row = report.lines().find_map(|row| row.strip_prefix(name)).expect("a row");
    row.trim().parse().expect("a number")
}

fn blob_count(folder: &std::path::Path) -> u64 {
    let paths = std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("read").path());
    paths.map(|path| if path.is_dir() { blob_count(&path) } else { 1 }).sum()
}

#[test]
fn garbage_is_counted_by_a_dry_run_and_deleted_by_a_real_one() {
    let fixture = IndexFixture::new();
    let blocks = blocks(60);
    fixture.ingest(&blocks);
    let (sandbox, before) = (&fixture.sandbox, blob_count(&fixture.blob_folder()));
    let counted = sandbox.run(&["index", "gc", "--dry-run"]).answer().to_owned();
    let orphans = figure(&counted, "orphan chunks ");
    assert!(orphans > 0 && figure(&counted, "orphan chunk bytes") > 0, "{counted}");
    assert!(counted.ends_with("no, this is a dry run"), "{counted}");
    assert_eq!(blob_count(&fixture.blob_folder()), before);
    let deleted = sandbox.run(&["index", "gc"]).answer().to_owned();
    assert_eq!(figure(&deleted, "orphan chunks "), orphans);
    assert!(deleted.ends_with("yes"), "{deleted}");
    assert_eq!(blob_count(&fixture.blob_folder()), before - orphans);
    let again = sandbox.run(&["index", "gc"]).answer().to_owned();
    assert_eq!(figure(&again, "orphan chunks "), 0);
    check_logs(sandbox, &blocks, FIRST, FIRST + 59);
}

#[test]
fn history_is_pruned_below_a_block() {
    let fixture = IndexFixture::new();
    let blocks = blocks(60);
    fixture.ingest(&blocks);
    let sandbox = &fixture.sandbox;
    sandbox.run(&["index", "gc"]).answer();
    let nothing = sandbox.run(&["index", "prune", "--below", "105"]);
    assert!(nothing.answer().contains("nothing to prune"), "{nothing:?}");
    let prune = ["index", "prune", "--below", "130"];
    let planned = sandbox.run(&[&prune[..], &["--dry-run"]].concat());
    assert!(planned.answer().starts_with("plan: remove "), "{planned:?}");
    assert!(planned.answer().contains("within blocks 100 to 127"), "{planned:?}");
    check_logs(sandbox, &blocks, FIRST, FIRST + 59);
    let pruned = sandbox.run(&prune);
    assert_eq!(pruned.answer().lines().next(), Some(planned.answer()));
    assert!(pruned.answer().contains("queries below 128 are refused"), "{pruned:?}");
    sandbox.run(&ask(&range(120, 130), &[])).assert_refused(1, &["pruned", "128"]);
    check_logs(sandbox, &blocks, 128, FIRST + 59);
    let status = sandbox.run(&["index", "status", "--json"]).json();
    assert_eq!(status["indexes"][0]["pruned_below"], 128);
    let before = blob_count(&fixture.blob_folder());
    sandbox.run(&["index", "gc"]).answer();
    assert!(blob_count(&fixture.blob_folder()) < before);
    check_logs(sandbox, &blocks, 128, FIRST + 59);
}

#[test]
fn a_server_that_holds_the_folder_blocks_only_changes() {
    let fixture = IndexFixture::new();
    let blocks = blocks(20);
    fixture.ingest(&blocks);
    let server = fixture.sandbox.serve();
    let process = format!("process {}", server.id());
    for change in [
        &["index", "gc"][..],
        &["index", "gc", "--dry-run"],
        &["index", "prune", "--below", "110"],
        &["index", "resolve", "keep"],
        &["index", "resolve", "rebuild-from", "110"],
    ] {
        fixture.sandbox.run(change).assert_refused(1, &[&process, "needs exclusive access"]);
    }
    fixture.sandbox.run(&["index", "prune", "--below", "110", "--dry-run"]).answer();
    check_logs(&fixture.sandbox, &blocks, FIRST, FIRST + 19);
    assert!(server.terminate().success());
    fixture.sandbox.run(&["index", "gc"]).answer();
}
