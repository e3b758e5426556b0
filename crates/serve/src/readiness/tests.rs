//! Every cause by itself: what triggers it, which services it makes unavailable, and when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::blob::MemoryBlobs;
use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{
    BlobStore, Clock, Fault, Faults, FaultyStore, SeededEntropy, SimClock, Sql, SystemClock,
    Timestamp, params,
};
use logmill_pipeline::derive::deriver::{CheckpointStatus, DeriveStatus, FailingStatus};
use logmill_pipeline::derive::{GenerationProgress, TipBlocks};
use logmill_pipeline::ingest::{ProgressReport, Role};

use super::chain::{HeadLimits, judge_head};
use super::stores::{BlobCheck, DiskCheck, SqlCheck, WriteAlarm};
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

/// A check that returns preset findings.
#[derive(Debug, Default)]
struct FixedCheck {
    found: Mutex<Vec<Finding>>,
    hangs: bool,
}

impl FixedCheck {
    fn set_findings(&self, found: Vec<Finding>) {
        *self.found.lock().expect("not poisoned") = found;
    }
}

#[async_trait]
impl Check for FixedCheck {
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

/// Runs the checks while `body` runs.
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
fn the_documented_causes_are_those_of_the_code() {
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
async fn a_process_is_starting_until_all_checks_have_run_and_reports_when_it_stops() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    assert!(readiness.verdict(None).ready, "there is nothing to check");
    readiness.add(Arc::new(FixedCheck::default()));
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
async fn every_cause_makes_only_its_services_unready_and_only_while_it_applies() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    let check = Arc::new(FixedCheck::default());
    readiness.add(Arc::clone(&check) as Arc<dyn Check>);
    let body = async {
        for (cause, (code, component, services)) in Cause::ALL.into_iter().zip(documented()) {
            check.set_findings(vec![Finding::new(cause, Some(7), "because")]);
            clock.sleep(2 * SECOND).await;
            let all = readiness.verdict(None);
            let shown = match services == "none" {
                true => &all.warnings,
                false => &all.reasons,
            };
            assert_eq!((shown.len(), shown[0].code), (1, code.as_str()));
            assert_eq!(shown[0].component, component);
            assert_eq!(all.ready, services == "none");
            for service in Service::ALL {
                let takes = services.split(", ").any(|name| name == service.name());
                assert_eq!(readiness.verdict(Some(service)).ready, !takes, "{cause:?} {service:?}");
            }
            check.set_findings(Vec::new());
            clock.sleep(2 * SECOND).await;
            assert!(readiness.verdict(None).ready, "{cause:?} is gone");
        }
    };
    while_checked(&readiness, body).await;
}

#[tokio::test(start_paused = true)]
async fn a_reason_keeps_its_start_time_while_it_applies() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    let check = Arc::new(FixedCheck::default());
    readiness.add(Arc::clone(&check) as Arc<dyn Check>);
    let since = || readiness.verdict(None).reasons[0].since.clone();
    let body = async {
        check.set_findings(vec![Finding::new(Cause::Behind, Some(1), "7 blocks behind")]);
        clock.sleep(2 * SECOND).await;
        let first = since();
        check.set_findings(vec![Finding::new(Cause::Behind, Some(1), "8 blocks behind")]);
        clock.sleep(10 * SECOND).await;
        assert_eq!(since(), first);
        assert_eq!(readiness.verdict(None).reasons[0].reason, "8 blocks behind");
        check.set_findings(Vec::new());
        clock.sleep(2 * SECOND).await;
        check.set_findings(vec![Finding::new(Cause::Behind, Some(1), "6 blocks behind")]);
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

/// Collects log lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_every_start_goes_through_is_logged_only_if_it_stays() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let logged = |code: &str| {
        let log = String::from_utf8(log.0.lock().expect("not poisoned").clone()).expect("text");
        log.lines().filter(|line| line.contains("WARN") && line.contains(code)).count()
    };
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    let check = Arc::new(FixedCheck::default());
    readiness.add(Arc::clone(&check) as Arc<dyn Check>);
    let finding = |cause| Finding::new(cause, Some(1), "because");
    let body = async {
        check.set_findings(vec![finding(Cause::HeadNotSeen), finding(Cause::DiskLow)]);
        clock.sleep(3 * SECOND).await;
        assert!(codes(&readiness.verdict(None)).contains(&"head_not_seen"), "it is reported");
        check.set_findings(vec![finding(Cause::NodeSilent)]);
        clock.sleep(4 * SECOND).await;
        assert_eq!((logged("head_not_seen"), logged("disk_low")), (0, 1));
        assert_eq!(logged("node_silent"), 0, "it may pass");
        clock.sleep(5 * SECOND).await;
        assert_eq!(logged("node_silent"), 1, "it has not passed");
        check.set_findings(vec![finding(Cause::HeadNotSeen)]);
        clock.sleep(3 * SECOND).await;
        assert_eq!(logged("head_not_seen"), 1, "after the start it is logged when it comes");
    };
    while_checked(&readiness, body).await;
}

#[test]
fn nodes_that_are_silent_are_described_by_their_last_error_if_there_is_one() {
    let limits = HeadLimits { lag_blocks: 5, seen_within: Duration::from_secs(60) };
    let said = |last_error: Option<&str>| {
        let last_error = last_error.map(str::to_owned);
        let report = ProgressReport { role: Role::Writer, last_error, ..Default::default() };
        judge_head(1, None, &report, limits).expect("it is silent").reason
    };
    let error = said(Some("connection refused"));
    assert_eq!(error, "no node has answered yet; last error: connection refused");
    assert_eq!(said(None), "no node has answered yet; a request is under way");
}

#[test]
fn tables_that_are_kept_are_not_called_behind_as_well() {
    let standing = |name: &str, blocks: u64, kept: Option<&str>| GenerationProgress {
        processor: name.to_owned(),
        generation: 1,
        tip: TipBlocks::default(),
        done: std::iter::once(0..blocks).collect(),
        replacements_applied: finalized_log_index::ReplacementPosition::default(),
        replacements_seen: finalized_log_index::ReplacementPosition::default(),
        behind: None,
        kept: kept.map(str::to_owned),
    };
    let behind = |standings: &[GenerationProgress]| {
        let names = ["fees_worker", "token_worker"].into_iter();
        super::tables::behind(1, names, standings, 100, 5).map(|finding| finding.reason)
    };
    let kept = standing("fees_worker", 10, Some("collect.contract_address has changed"));
    assert_eq!(behind(&[kept.clone(), standing("token_worker", 99, None)]), None);
    assert!(super::tables::kept(1, std::slice::from_ref(&kept)).is_some());
    let late = "token_worker has derived up to block 49 of 100";
    assert_eq!(behind(&[kept, standing("token_worker", 50, None)]).as_deref(), Some(late));
    let none = "fees_worker has derived nothing yet";
    assert_eq!(behind(&[standing("token_worker", 50, None)]).as_deref(), Some(none));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_check_counts_as_failed_and_delays_no_other() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    readiness.add(Arc::new(FixedCheck { hangs: true, ..FixedCheck::default() }));
    let other = Arc::new(FixedCheck::default());
    readiness.add(Arc::clone(&other) as Arc<dyn Check>);
    let body = async {
        clock.sleep(TIMEOUT / 2).await;
        assert_eq!(codes(&readiness.verdict(None)), ["starting"]);
        clock.sleep(TIMEOUT).await;
        other.set_findings(vec![Finding::new(Cause::NodeSilent, Some(1), "silent")]);
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
async fn a_reported_finding_applies_until_it_is_cleared() {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let readiness = readiness(&clock);
    readiness.report(Finding::new(Cause::UsageNotRelayed, Some(1), "refused"));
    readiness.report(Finding::new(Cause::UsageNotRelayed, Some(2), "refused"));
    readiness.report(Finding::new(Cause::NodeSilent, Some(2), "no answer"));
    let all = readiness.verdict(None);
    assert_eq!(codes(&all), ["node_silent"]);
    assert!(readiness.verdict(Some(Service::Meter)).ready, "what clients send is recorded");
    readiness.clear(Cause::UsageNotRelayed, Some(1));
    readiness.clear(Cause::NodeSilent, Some(2));
    // A finding that makes no service unavailable is a warning, and the process may be sent requests.
    let all = readiness.verdict(None);
    assert!(all.ready && all.reasons.is_empty(), "{all:?}");
    assert_eq!((all.warnings.len(), all.warnings[0].chain_id), (1, Some(2)));
    assert_eq!(all.warnings[0].code, "usage_not_relayed");
    assert!(readiness.verdict(Some(Service::Meter)).warnings.is_empty());
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
        // A connection that broke unnoticed is not a finding.
        let once = database(Some(Faults::at(0, Fault::Before))).await;
        assert_eq!(SqlCheck::new(cause, what, once).check().await.expect("it goes on"), []);
    }
}

#[tokio::test]
async fn a_store_that_can_never_work_again_ends_the_process() {
    let dead = || Faults::at(0, Fault::CrashBefore);
    let check = SqlCheck::new(Cause::IndexStoreSilent, "it", database(Some(dead())).await);
    assert!(check.check().await.expect_err("it is dead").is_fatal());
    let blobs: Arc<dyn BlobStore> = Arc::new(FaultyStore::new(MemoryBlobs::shared(), dead()));
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
    let blobs: Arc<dyn BlobStore> = Arc::new(FaultyStore::new(MemoryBlobs::shared(), plan));
    let found = BlobCheck::new(blobs, true).check().await.expect("the process goes on");
    assert_eq!(found[0].cause, Cause::BlobsSilent);
    let fine = BlobCheck::new(MemoryBlobs::shared(), true);
    assert_eq!(fine.check().await.expect("it works"), []);
}

#[tokio::test]
async fn after_a_failed_recording_the_meter_is_not_ready_until_a_write_works() {
    let (sql, write_alarm) = (database(None).await, WriteAlarm::default());
    let check = SqlCheck::of_meter(sql.clone(), write_alarm.clone());
    assert_eq!(check.check().await.expect("it works"), []);
    // Like a full disk: reads work, writes do not.
    sql.execute("ALTER TABLE meta_record RENAME TO away", params![]).await.expect("renamed");
    assert_eq!(check.check().await.expect("nobody wrote"), []);
    write_alarm.raise();
    let found = check.check().await.expect("the process goes on");
    assert_eq!(found[0].cause, Cause::MeterNotWritable, "{found:?}");
    sql.execute("ALTER TABLE away RENAME TO meta_record", params![]).await.expect("renamed");
    assert_eq!(check.check().await.expect("it works again"), []);
    assert_eq!(check.silence().cause, Cause::MeterStoreSilent);
}

#[tokio::test]
async fn a_full_disk_or_a_missing_folder_is_reported() {
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
fn a_head_is_judged_by_role_age_and_distance() {
    let limits = HeadLimits { lag_blocks: 5, seen_within: Duration::from_secs(60) };
    let judged = |role, head: Option<u64>, writer_head, target: Option<u64>, seen_ms_ago| {
        let report =
            ProgressReport { role, target, writer_head, seen_ms_ago, ..ProgressReport::default() };
        judge_head(1, head, &report, limits).map(|finding| finding.cause)
    };
    let judge = |role, head: Option<u64>, target: Option<u64>, seen_ms_ago: Option<u64>| {
        judged(role, head, head, target, seen_ms_ago)
    };
    use Role::{Follower, Writer};
    for role in [Writer, Follower] {
        assert_eq!(judge(role, Some(95), Some(100), Some(60_000)), None, "at the limit");
        assert_eq!(judge(role, Some(94), Some(100), Some(0)), Some(Cause::Behind));
        assert_eq!(judge(role, None, Some(0), Some(0)), Some(Cause::Behind), "nothing is stored");
        assert_eq!(judge(role, Some(105), Some(100), Some(0)), None, "a node that lags a little");
        assert_eq!(judge(role, Some(106), Some(100), Some(0)), Some(Cause::HeadWentBack));
    }
    let target = Some(2);
    let report = ProgressReport { target, seen_ms_ago: Some(40_900), ..ProgressReport::default() };
    let report = ProgressReport { role: Writer, ..report };
    let why = judge_head(1, Some(155), &report, limits).expect("a finding").reason;
    assert!(why.contains("went back to block 2, as reported 40 s ago"), "{why}");
    // On a fast chain blocks arrive between the writer's publication and this view.
    assert_eq!(judged(Follower, Some(180), Some(99), Some(100), Some(900)), None, "a newer view");
    assert_eq!(judged(Follower, Some(180), None, Some(100), Some(0)), None, "an older record");
    for seen in [None, Some(60_001)] {
        assert_eq!(judge(Writer, Some(100), Some(100), seen), Some(Cause::NodeSilent));
        assert_eq!(judge(Follower, Some(100), Some(100), seen), Some(Cause::HeadNotSeen));
    }
}

#[test]
fn a_view_that_is_behind_because_of_an_error_names_it() {
    let limits = HeadLimits { lag_blocks: 5, seen_within: Duration::from_secs(60) };
    let said = |head, error: &str| {
        let forward_error = Some(error.to_owned());
        let (target, seen_ms_ago) = (Some(100), Some(0));
        let report = ProgressReport {
            role: Role::Writer,
            target,
            seen_ms_ago,
            forward_error,
            ..Default::default()
        };
        judge_head(1, head, &report, limits).map(|finding| (finding.cause, finding.reason))
    };
    let refused = "block 1: its 2 logs do not match the logsBloom of its header";
    for head in [None, Some(90)] {
        let (cause, reason) = said(head, refused).expect("behind");
        assert_eq!(cause, Cause::Behind);
        assert!(reason.ends_with(&format!("the head is 100; last error: {refused}")), "{reason}");
        let (_, reason) = said(head, &"long ".repeat(500)).expect("behind");
        assert!(reason.len() < 420, "{reason}");
    }
    assert_eq!(said(Some(100), refused), None, "it does no harm");
}

#[test]
fn a_final_block_that_no_node_has_is_a_reason_however_near_the_head_is() {
    let limits = HeadLimits { lag_blocks: 5, seen_within: Duration::from_secs(60) };
    let judge = |target: u64, lost_final| {
        let (target, seen_ms_ago) = (Some(target), Some(0));
        let report = ProgressReport {
            role: Role::Writer,
            target,
            seen_ms_ago,
            lost_final,
            ..Default::default()
        };
        judge_head(1, Some(10), &report, limits)
    };
    assert_eq!(judge(8, None), None, "a node that lags a little");
    let found = judge(8, Some(10)).expect("a reason");
    assert_eq!(found.cause, Cause::HeadWentBack);
    assert!(found.reason.contains("to block 8, below the final block 10"), "{}", found.reason);
    assert_eq!(judge(10, Some(10)), None, "it is back");
}

#[test]
fn blocks_on_which_a_processor_keeps_failing_are_named() {
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
