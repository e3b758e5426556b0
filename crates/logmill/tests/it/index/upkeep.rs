//! Garbage collection and pruning by command.

use super::ground::{FIRST, Ground, blocks};
use super::{ask, check_logs, range};

/// A figure of the report of a collection.
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
    let ground = Ground::new();
    let blocks = blocks(60);
    ground.ingest(&blocks);
    let (place, before) = (&ground.place, blob_count(&ground.blob_folder()));
    let counted = place.run(&["index", "gc", "--dry-run"]).answer().to_owned();
    let orphans = figure(&counted, "orphan chunks ");
    assert!(orphans > 0 && figure(&counted, "orphan chunk bytes") > 0, "{counted}");
    assert!(counted.ends_with("no, this is a dry run"), "{counted}");
    assert_eq!(blob_count(&ground.blob_folder()), before);
    let deleted = place.run(&["index", "gc"]).answer().to_owned();
    assert_eq!(figure(&deleted, "orphan chunks "), orphans);
    assert!(deleted.ends_with("yes"), "{deleted}");
    assert_eq!(blob_count(&ground.blob_folder()), before - orphans);
    let again = place.run(&["index", "gc"]).answer().to_owned();
    assert_eq!(figure(&again, "orphan chunks "), 0);
    check_logs(place, &blocks, FIRST, FIRST + 59);
}

#[test]
fn history_is_pruned_below_a_block() {
    let ground = Ground::new();
    let blocks = blocks(60);
    ground.ingest(&blocks);
    let place = &ground.place;
    place.run(&["index", "gc"]).answer();
    let nothing = place.run(&["index", "prune", "--below", "105"]);
    assert!(nothing.answer().contains("nothing to prune"), "{nothing:?}");
    let prune = ["index", "prune", "--below", "130"];
    let planned = place.run(&[&prune[..], &["--dry-run"]].concat());
    assert!(planned.answer().starts_with("plan: remove "), "{planned:?}");
    assert!(planned.answer().contains("within blocks 100 to 127"), "{planned:?}");
    check_logs(place, &blocks, FIRST, FIRST + 59);
    let pruned = place.run(&prune);
    assert_eq!(pruned.answer().lines().next(), Some(planned.answer()));
    assert!(pruned.answer().contains("queries below 128 are refused"), "{pruned:?}");
    place.run(&ask(&range(120, 130), &[])).refused(1, &["pruned", "128"]);
    check_logs(place, &blocks, 128, FIRST + 59);
    let status = place.run(&["index", "status", "--json"]).json();
    assert_eq!(status["indexes"][0]["pruned_below"], 128);
    let before = blob_count(&ground.blob_folder());
    place.run(&["index", "gc"]).answer();
    assert!(blob_count(&ground.blob_folder()) < before);
    check_logs(place, &blocks, 128, FIRST + 59);
}

#[test]
fn a_server_that_has_the_folder_is_in_the_way_of_changes_only() {
    let ground = Ground::new();
    let blocks = blocks(20);
    ground.ingest(&blocks);
    let server = ground.place.serve();
    let process = format!("process {}", server.id());
    for change in [
        &["index", "gc"][..],
        &["index", "gc", "--dry-run"],
        &["index", "prune", "--below", "110"],
        &["index", "resolve", "keep"],
        &["index", "resolve", "rebuild-from", "110"],
    ] {
        ground.place.run(change).refused(1, &[&process, "needs it for itself"]);
    }
    ground.place.run(&["index", "prune", "--below", "110", "--dry-run"]).answer();
    check_logs(&ground.place, &blocks, FIRST, FIRST + 19);
    assert!(server.terminate().success());
    ground.place.run(&["index", "gc"]).answer();
}
