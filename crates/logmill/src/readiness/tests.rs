//! Every cause by itself: what makes it hold, which services it takes away, and when it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::blob::MemoryBlobs;
use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{
    BlobStore, Clock, Fault, Faults, Faulty, SeededEntropy, SimClock, Sql, SystemClock, Timestamp,
    params,
};
use logmill_pipeline::derive::deriver::{CheckpointStatus, DeriveStatus, FailingStatus};
use logmill_pipeline::ingest::{ProgressReport, Role};

use super::chain::{HeadLimits, judge_head};
use super::stores::{BlobCheck, DiskCheck, SqlCheck, Suspect};
use super::{Cause, Check, Finding, Readiness, Service, Verdict};
use crate::error::{Error, Result};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);

fn readiness(clock: &Arc<SimClock>) -> Arc<Readiness> {
    Readiness::new(Arc::clone(clock) as Arc<dyn Clock>, TIMEOUT, BTreeMap::new())
}

fn codes(verdict: &Verdict) -> Vec<&'static str> {
    assert_eq!(verdict.ready, verdict.reasons.is_empty());
    verdict.reasons.iter().map(|reason| reason.code).collect()
}

/// A check that finds what it is told.
#[derive(Debug, Default)]
struct Told {
    found: Mutex<Vec<Finding>>,
    hangs: bool,
}

impl Told {
    fn says(&self, found: Vec<Finding>) {
        *self.found.lock().expect("not poisoned") = found;
    }
}

#[async_trait]
impl Check for Told {
    async fn check(&self) -> Result<Vec<Finding>> {
        if self.hangs {
            pending::<()>().await;
        }
        Ok(self.found.lock().expect("not poisoned").clone())
    }

    fn silence(&self) -> Finding {
        Finding::new(Cause::MeterStoreSilent, None, "the database of usage")
    }
}

/// Runs checks beside `body` until it ends.
async fn while_checked(readiness: &Readiness, body: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        ended = readiness.run(pending()) => panic!("it ended: {ended:?}"),
        () = body => {}
    }
}

#[test]
fn every_code_is_different_and_every_cause_is_listed() {
    let codes: BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.code()).collect();
    assert_eq!(codes.len(), Cause::ALL.len());
    // The order of the list is that of the variants, so that none is missing at the end.
    assert!(Cause::ALL.is_sorted());
    assert_eq!(Cause::ALL.len(), Cause::CollectorBehind as usize + 1);
}

/// The rows of the table in the documentation: code, component, services.
fn documented() -> Vec<(String, String, String)> {
    let text = include_str!("../../../../docs/readiness.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let plain = |cell: &str| cell.replace('`', "");
    cells
        .filter(|cells| cells.len() == 8)
        .map(|c| (plain(c[1]), plain(c[2]), plain(c[3])))
        .collect()
}

#[test]
fn the_table_of_the_documentation_is_that_of_the_code() {
    let of_code: Vec<_> = Cause::ALL
        .iter()
        .map(|cause| {
            let services: Vec<_> = cause.services().iter().map(|service| service.name()).collect();
            let services =
                if services.is_empty() { "none".to_owned() } else { services.join(", ") };
            (cause.code().to_owned(), cause.component().to_owned(), services)
        })
        .collect();
    assert_eq!(documented(), of_code);
}

#[tokio::test(start_paused = true)]
async fn before_everything_was_checked_it_is_starting_and_when_it_stops_it_says_so() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    assert!(readiness.verdict(None).ready, "there is nothing to check");
    readiness.add(Arc::new(Told::default()));
    for service in [None, Some(Service::Rpc), Some(Service::Tables), Some(Service::Meter)] {
        assert_eq!(codes(&readiness.verdict(service)), ["starting"]);
    }
    while_checked(&readiness, clock.sleep(SECOND / 2)).await;
    assert!(readiness.verdict(None).ready);
    readiness.run(async {}).await.expect("it was told to stop");
    for service in [None, Some(Service::Rpc), Some(Service::Tables), Some(Service::Meter)] {
        assert_eq!(codes(&readiness.verdict(service)), ["stopping"]);
    }
}

#[tokio::test(start_paused = true)]
async fn every_cause_takes_away_just_its_services_and_gives_them_back() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    let told = Arc::new(Told::default());
    readiness.add(Arc::clone(&told) as Arc<dyn Check>);
    let body = async {
        for cause in Cause::ALL {
            told.says(vec![Finding::new(cause, Some(7), "because")]);
            clock.sleep(2 * SECOND).await;
            let all = readiness.verdict(None);
            assert_eq!(codes(&all), [cause.code()]);
            assert_eq!(all.reasons[0].component, cause.component());
            for service in Service::ALL {
                let takes = cause.services().contains(&service);
                assert_eq!(readiness.verdict(Some(service)).ready, !takes, "{cause:?} {service:?}");
            }
            told.says(Vec::new());
            clock.sleep(2 * SECOND).await;
            assert!(readiness.verdict(None).ready, "{cause:?} is gone");
        }
    };
    while_checked(&readiness, body).await;
}

#[tokio::test(start_paused = true)]
async fn a_reason_keeps_its_beginning_for_as_long_as_it_holds() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    let told = Arc::new(Told::default());
    readiness.add(Arc::clone(&told) as Arc<dyn Check>);
    let since = || readiness.verdict(None).reasons[0].since.clone();
    let body = async {
        told.says(vec![Finding::new(Cause::Behind, Some(1), "7 blocks behind")]);
        clock.sleep(2 * SECOND).await;
        let first = since();
        told.says(vec![Finding::new(Cause::Behind, Some(1), "8 blocks behind")]);
        clock.sleep(10 * SECOND).await;
        assert_eq!(since(), first);
        assert_eq!(readiness.verdict(None).reasons[0].reason, "8 blocks behind");
        told.says(Vec::new());
        clock.sleep(2 * SECOND).await;
        told.says(vec![Finding::new(Cause::Behind, Some(1), "6 blocks behind")]);
        clock.sleep(2 * SECOND).await;
        assert!(since() > first, "it came again");
        let shown = serde_json::to_value(readiness.verdict(None)).expect("JSON");
        let expected = serde_json::json!({
            "ready": false,
            "reasons": [{
                "component": "ingest", "chain_id": 1, "code": "behind",
                "reason": "6 blocks behind", "since": since(),
            }],
        });
        assert_eq!(shown, expected);
    };
    while_checked(&readiness, body).await;
}

#[tokio::test(start_paused = true)]
async fn a_check_that_hangs_counts_as_silence_and_holds_up_no_other() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    readiness.add(Arc::new(Told { hangs: true, ..Told::default() }));
    let other = Arc::new(Told::default());
    readiness.add(Arc::clone(&other) as Arc<dyn Check>);
    let body = async {
        clock.sleep(TIMEOUT / 2).await;
        assert_eq!(codes(&readiness.verdict(None)), ["starting"]);
        clock.sleep(TIMEOUT).await;
        other.says(vec![Finding::new(Cause::NodeSilent, Some(1), "silent")]);
        clock.sleep(2 * SECOND).await;
        let all = readiness.verdict(None);
        assert_eq!(codes(&all), ["meter_store_silent", "node_silent"]);
        assert!(all.reasons[0].reason.contains("no answer within 5000 ms"), "{all:?}");
        assert_eq!(codes(&readiness.verdict(Some(Service::Meter))), ["meter_store_silent"]);
    };
    while_checked(&readiness, body).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_configured_is_not_ready_and_the_process_is() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let absent = BTreeMap::from([(Service::Meter, "nothing is metered")]);
    let readiness = Readiness::new(clock as Arc<dyn Clock>, TIMEOUT, absent);
    assert!(readiness.verdict(None).ready);
    assert!(readiness.verdict(Some(Service::Rpc)).ready);
    assert_eq!(codes(&readiness.verdict(Some(Service::Meter))), ["not_served"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_component_reports_holds_until_it_is_cleared() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    readiness.report(Finding::new(Cause::UsageNotRelayed, Some(1), "refused"));
    readiness.report(Finding::new(Cause::UsageNotRelayed, Some(2), "refused"));
    assert_eq!(codes(&readiness.verdict(None)), ["usage_not_relayed", "usage_not_relayed"]);
    assert!(readiness.verdict(Some(Service::Meter)).ready, "what clients send is recorded");
    readiness.clear(Cause::UsageNotRelayed, Some(1));
    assert_eq!(readiness.verdict(None).reasons[0].chain_id, Some(2));
}

async fn database(faults: Option<Arc<Faults>>) -> Sql {
    let (clock, entropy) = (SystemClock::shared(), SeededEntropy::shared(1));
    let sql = Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await.expect("a database");
    match faults {
        Some(faults) => sql.with_faults(faults),
        None => sql,
    }
}

#[tokio::test]
async fn a_database_that_fails_twice_in_a_row_is_silent() {
    for (cause, what) in [
        (Cause::JobsStoreSilent, "the database of jobs"),
        (Cause::IndexStoreSilent, "the database of the log index"),
        (Cause::TablesStoreSilent, "the database of tables"),
    ] {
        let plan = Faults::seeded(SeededEntropy::shared(1), 1_000, 0);
        let check = SqlCheck::new(cause, what, database(Some(plan)).await);
        let found = check.check().await.expect("the process goes on");
        assert_eq!(found[0].cause, cause);
        assert!(found[0].reason.starts_with(what), "{found:?}");
        // A connection that broke unnoticed is no reason.
        let once = database(Some(Faults::at(0, Fault::Before))).await;
        assert_eq!(SqlCheck::new(cause, what, once).check().await.expect("it goes on"), []);
    }
}

#[tokio::test]
async fn a_store_that_can_never_work_again_ends_the_process() {
    let dead = || Faults::at(0, Fault::CrashBefore);
    let check = SqlCheck::new(Cause::IndexStoreSilent, "it", database(Some(dead())).await);
    assert!(check.check().await.expect_err("it is dead").is_fatal());
    let blobs: Arc<dyn BlobStore> = Arc::new(Faulty::new(MemoryBlobs::shared(), dead()));
    assert!(BlobCheck::new(blobs, false).check().await.expect_err("it is dead").is_fatal());
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    readiness.add(check);
    let ended = readiness.run(pending()).await;
    assert!(matches!(ended, Err(Error::Store(_))), "{ended:?}");
}

#[tokio::test]
async fn a_blob_store_that_fails_is_silent() {
    let plan = Faults::seeded(SeededEntropy::shared(1), 1_000, 0);
    let blobs: Arc<dyn BlobStore> = Arc::new(Faulty::new(MemoryBlobs::shared(), plan));
    let found = BlobCheck::new(blobs, true).check().await.expect("the process goes on");
    assert_eq!(found[0].cause, Cause::BlobsSilent);
    let fine = BlobCheck::new(MemoryBlobs::shared(), true);
    assert_eq!(fine.check().await.expect("it works"), []);
}

#[tokio::test]
async fn after_a_failed_recording_the_meter_is_not_ready_until_a_write_works() {
    let (sql, suspect) = (database(None).await, Suspect::default());
    let check = SqlCheck::of_meter(sql.clone(), suspect.clone());
    assert_eq!(check.check().await.expect("it works"), []);
    // As a full disk does: reads work, writes do not.
    sql.execute("ALTER TABLE meta_record RENAME TO away", params![]).await.expect("renamed");
    assert_eq!(check.check().await.expect("nobody wrote"), []);
    suspect.raise();
    let found = check.check().await.expect("the process goes on");
    assert_eq!(found[0].cause, Cause::MeterNotWritable, "{found:?}");
    sql.execute("ALTER TABLE away RENAME TO meta_record", params![]).await.expect("renamed");
    assert_eq!(check.check().await.expect("it works again"), []);
    assert_eq!(check.silence().cause, Cause::MeterStoreSilent);
}

#[tokio::test]
async fn a_disk_without_room_or_a_folder_that_is_gone_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |free_mib_min, folder: &std::path::Path| DiskCheck {
        folder: folder.to_owned(),
        free_mib_min,
    };
    assert_eq!(check(0, folder.path()).check().await.expect("asked"), []);
    let found = check(u64::MAX, folder.path()).check().await.expect("asked");
    assert_eq!(found[0].cause, Cause::DiskLow);
    assert!(found[0].reason.contains("ready.free_disk_mib"), "{found:?}");
    let gone = check(0, &folder.path().join("gone")).check().await.expect("asked");
    assert_eq!(gone[0].cause, Cause::DiskLow);
}

#[test]
fn a_head_is_judged_by_who_saw_it_when_and_where() {
    let limits = HeadLimits { lag_blocks: 5, seen_within: Duration::from_secs(60) };
    let judge = |role, head: Option<u64>, target: Option<u64>, seen_ms_ago: Option<u64>| {
        let report = ProgressReport { role, target, seen_ms_ago, ..ProgressReport::default() };
        judge_head(1, head, &report, limits).map(|finding| finding.cause)
    };
    use Role::{Follower, Writer};
    for role in [Writer, Follower] {
        assert_eq!(judge(role, Some(95), Some(100), Some(60_000)), None, "at the limit");
        assert_eq!(judge(role, Some(94), Some(100), Some(0)), Some(Cause::Behind));
        assert_eq!(judge(role, None, Some(0), Some(0)), Some(Cause::Behind), "nothing is stored");
        assert_eq!(judge(role, Some(105), Some(100), Some(0)), None, "a node that lags a little");
        assert_eq!(judge(role, Some(106), Some(100), Some(0)), Some(Cause::HeadWentBack));
    }
    for seen in [None, Some(60_001)] {
        assert_eq!(judge(Writer, Some(100), Some(100), seen), Some(Cause::NodeSilent));
        assert_eq!(judge(Follower, Some(100), Some(100), seen), Some(Cause::HeadNotSeen));
    }
}

#[test]
fn blocks_that_a_processor_fails_on_again_and_again_are_named() {
    let status = |attempts| DeriveStatus {
        leads: true,
        last_error: None,
        checkpoints: vec![CheckpointStatus {
            name: "fees_worker".to_owned(),
            generation: Some(1),
            state: "serving",
            phase: Some(1),
            ranges: Vec::new(),
            ranges_total: 0,
            tip: None,
            missing: 10,
            waits_for: Vec::new(),
            replacements_applied: 0,
            incomplete: None,
            failing: vec![FailingStatus {
                start: 10,
                end: 20,
                attempts,
                error: "out of cheese".to_owned(),
            }],
        }],
    };
    assert_eq!(super::tables::failing(1, &status(2)), None, "a failure may pass");
    let finding = super::tables::failing(1, &status(3)).expect("it does not pass");
    assert_eq!(finding.cause, Cause::DeriveFailing);
    assert_eq!(finding.reason, "fees_worker cannot derive blocks 10 to 19: out of cheese");
}
