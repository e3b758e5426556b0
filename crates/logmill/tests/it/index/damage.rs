//! Indexes that stop on damage, and the commands that repair them.

use finalized_log_index::{Error, GcMode};
use logmill_io::meta::SqlMeta;
use logmill_io::sql::SqliteSettings;
use logmill_io::{Condition, Key, MetaStoreExt, OsEntropy, Sql, SystemClock};

use super::fixture::{FIRST, IndexFixture, blocks, fork};
use super::{ask, check_logs, range};

#[test]
fn a_finality_violation_stops_reads_until_it_is_rebuilt() {
    let fixture = IndexFixture::new();
    let (ours, theirs) = (blocks(60), fork(&blocks(60), 130));
    fixture.ingest(&ours[..50]);
    let contradiction = theirs[30].clone();
    fixture.with(async |writer| {
        let violation = writer.ingest_finalized_block(contradiction).await;
        assert!(matches!(violation, Err(Error::FinalityViolation { .. })), "{violation:?}");
    });
    let sandbox = &fixture.sandbox;
    let status = sandbox.run(&["index", "status"]);
    for part in
        ["degraded: finality violation", "block 130 is indexed as", "writes and reads", "runbooks"]
    {
        assert!(status.answer().contains(part), "{part}: {status:?}");
    }
    let json = sandbox.run(&["index", "status", "--json"]).json();
    let degraded = &json["indexes"][0]["degraded"];
    assert_eq!(degraded["cause"], "finality_violation");
    assert_eq!(degraded["stops_reads"], true);
    let refused = sandbox.run(&ask(&range(FIRST, FIRST), &[]));
    refused.assert_refused(1, &["degraded", "block 130 is indexed as"]);
    assert!(refused.stderr.contains("hint: `logmill index status`"), "{refused:?}");
    // A dry run reports what would be removed, and removes nothing.
    let resolve = ["index", "resolve", "rebuild-from", "130"];
    let planned = sandbox.run(&[&resolve[..], &["--dry-run"]].concat());
    assert_eq!(planned.answer().lines().count(), 1, "{planned:?}");
    // The cell of block 130 starts with 128.
    let plan =
        "plan: discard all blocks from 128 on (block 130 is in a chunk, which begins with 128";
    assert!(planned.answer().starts_with(plan), "{planned:?}");
    assert_eq!(sandbox.run(&["index", "status", "--json"]).json(), json, "nothing was changed");
    let resolved = sandbox.run(&resolve);
    let message: Vec<&str> = resolved.answer().lines().collect();
    assert_eq!(message[0], planned.answer());
    assert_eq!(message[1], "done: the index is no longer degraded, and covers 100 to 127");
    assert!(message[2].starts_with("next: let ingest continue with block 128"), "{resolved:?}");
    check_logs(sandbox, &theirs, FIRST, 127);
    sandbox.run(&ask(&range(FIRST, 128), &[])).assert_refused(1, &["covered: 100 to 127"]);
    fixture.ingest(&theirs[28..]);
    check_logs(sandbox, &theirs, FIRST, FIRST + 59);
    assert!(sandbox.run(&["index", "gc"]).answer().ends_with("yes"));
    check_logs(sandbox, &theirs, FIRST, FIRST + 59);
}

#[test]
fn a_violation_by_a_wrong_source_is_resolved_by_keeping_the_index() {
    let fixture = IndexFixture::new();
    let ours = blocks(50);
    fixture.ingest(&ours[..40]);
    let wrong = fork(&ours, 110)[10].clone();
    fixture.with(async |writer| {
        writer.ingest_finalized_block(wrong).await.expect_err("it contradicts");
    });
    let planned = fixture.sandbox.run(&["index", "resolve", "keep", "--dry-run"]);
    assert!(planned.answer().starts_with("plan: continue"), "{planned:?}");
    fixture.sandbox.run(&ask(&range(FIRST, FIRST), &[])).assert_refused(1, &["degraded"]);
    let kept = fixture.sandbox.run(&["index", "resolve", "keep"]);
    assert!(kept.answer().contains("done: the index is no longer degraded"), "{kept:?}");
    fixture.ingest(&ours[40..]);
    check_logs(&fixture.sandbox, &ours, FIRST, FIRST + 49);
}

#[test]
fn a_damaged_chunk_is_named_discarded_and_built_again() {
    let fixture = IndexFixture::new();
    let ours = blocks(60);
    fixture.ingest(&ours);
    // Collect garbage first, so that the damaged chunk is not one that was merged away.
    let chunk = fixture.with(async |writer| {
        writer.collect_garbage(GcMode::Delete).await.expect("it works");
        writer.index().chunks()[1].clone()
    });
    let (first, last, token) =
        (chunk.blocks.start, chunk.blocks.end - 1, format!("{:016x}", chunk.token));
    let file = find_blob(&fixture.blob_folder(), &token).expect("its file");
    let bytes = std::fs::read(&file).expect("read");
    let damaged: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x55).collect();
    let mut permissions = std::fs::metadata(&file).expect("there").permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "a file of this test alone")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&file, permissions).expect("set");
    std::fs::write(&file, damaged).expect("written");
    let sandbox = &fixture.sandbox;
    let refused = sandbox.run(&ask(&range(first, last), &[]));
    refused.assert_refused(1, &["chain 1", &token]);
    assert!(refused.stderr.contains("runbooks/corrupt-chunk.md"), "{refused:?}");
    check_logs(sandbox, &ours, FIRST, first - 1);
    // The writer finds the damage and stops.
    fixture.with(async |writer| {
        writer
            .index()
            .query_finalized(&finalized_log_index::Filter::range(first..=last))
            .await
            .expect_err("it is damaged");
        let refused = writer.ingest_finalized_blocks(&ours).await;
        assert!(matches!(refused, Err(Error::Degraded { .. })), "{refused:?}");
    });
    let status = sandbox.run(&["index", "status", "--set", "index.warm_chunks=9"]);
    assert!(status.answer().contains("degraded: corruption"), "{status:?}");
    assert!(status.answer().contains(&token), "{status:?}");
    let resolved = sandbox.run(&["index", "resolve", "discard", &token]);
    let message = format!("next: blocks {first} to {last} are not covered");
    assert!(resolved.answer().contains(&message), "{resolved:?}");
    sandbox.run(&ask(&range(first, last), &[])).assert_refused(1, &["not all indexed"]);
    let part: Vec<_> = ours.iter().filter(|block| chunk.blocks.contains(&block.number)).collect();
    let part: Vec<_> = part.into_iter().cloned().map(Ok).collect();
    fixture.with(async |writer| {
        let built = writer.index().build_chunk(chunk.blocks.clone(), futures::stream::iter(part));
        built.await.expect("it is free");
    });
    assert!(sandbox.run(&["index", "gc"]).answer().ends_with("yes"));
    assert!(!file.exists(), "the damaged bytes are gone");
    check_logs(sandbox, &ours, FIRST, FIRST + 59);
}

#[test]
fn a_missing_chunk_can_be_restored_and_kept() {
    let fixture = IndexFixture::new();
    let ours = blocks(60);
    fixture.ingest(&ours[..50]);
    let chunk = fixture.with(async |writer| writer.index().chunks()[1].clone());
    let (first, last) = (chunk.blocks.start, chunk.blocks.end - 1);
    let file = find_blob(&fixture.blob_folder(), &format!("{:016x}", chunk.token)).expect("a file");
    let away = fixture.sandbox.root().join("away");
    std::fs::rename(&file, &away).expect("moved");
    fixture.sandbox.run(&ask(&range(first, last), &[])).assert_refused(1, &["its blob is missing"]);
    fixture.with(async |writer| {
        let filter = finalized_log_index::Filter::range(first..=last);
        writer.index().query_finalized(&filter).await.expect_err("it is missing");
        writer.ingest_finalized_blocks(&ours[50..]).await.expect_err("it stops");
    });
    std::fs::rename(&away, &file).expect("moved");
    let kept = fixture.sandbox.run(&["index", "resolve", "keep"]);
    assert!(kept.answer().contains("unless the bytes were restored"), "{kept:?}");
    fixture.ingest(&ours[50..]);
    check_logs(&fixture.sandbox, &ours, FIRST, FIRST + 59);
}

#[test]
fn a_damaged_record_is_named_and_an_index_can_be_rebuilt_beside_old_blobs() {
    let fixture = IndexFixture::new();
    let ours = blocks(40);
    fixture.ingest(&ours);
    let file = fixture.sandbox.data().join("index.db");
    fixture.run(async {
        let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
        let sql = Sql::sqlite(&SqliteSettings::file(&file), clock, entropy).await;
        let meta = SqlMeta::shared(sql.expect("a database"));
        let damage = meta.put(Key::from("log-index/1/tail"), "damaged", Condition::Any);
        damage.await.expect("written");
    });
    for arguments in [&["index", "status"][..], &["index", "resolve", "keep"]] {
        let refused = fixture.sandbox.run(arguments);
        refused.assert_refused(1, &["the log index of chain 1", "corrupt"]);
        assert!(refused.stderr.contains("hint: docs/runbooks/corrupt-chunk.md"), "{refused:?}");
    }
    for name in ["index.db", "index.db-state", "index.db-wal", "index.db-shm"] {
        // The last two exist only while a process has the database open.
        let _ = std::fs::remove_file(fixture.sandbox.data().join(name));
    }
    fixture.ingest(&ours);
    check_logs(&fixture.sandbox, &ours, FIRST, FIRST + 39);
    fixture.sandbox.run(&["index", "gc"]).answer();
    check_logs(&fixture.sandbox, &ours, FIRST, FIRST + 39);
}

fn find_blob(folder: &std::path::Path, token: &str) -> Option<std::path::PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("read").path()).find_map(
        |path| {
            if path.is_dir() {
                return find_blob(&path, token);
            }
            path.to_string_lossy().ends_with(token).then_some(path)
        },
    )
}
