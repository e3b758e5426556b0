//! Known mistakes of the collector's predecessors, one test each.

use logmill_chain::sim::Lie;
use logmill_io::Faults;
use logmill_work::Coverage;

use super::*;
use crate::derive::{DecodedBlock, RangeRows, Rows};

#[tokio::test(start_paused = true)]
async fn a_worker_whose_lease_was_taken_over_ends_nothing_and_adds_nothing() {
    let fixture = Fixture::new(40, 5).await;
    let (slow, quick) = (fixture.collector().await, fixture.collector().await);
    slow.step().await.expect("a range");
    let late = slow.next_job().await.expect("a job");
    let running = RunningJob { claim: late.clone(), queue: slow.tables.queue().clone() };
    let generation = slow.serving().expect("a generation");
    let rows = slow.scan(&generation, 1..11).await.expect("it has scanned");
    fixture.clock.sleep(LATER).await;
    slow.tables.queue().reap(&slow.kind()).await.expect("the lease is over");
    assert!(quick.catch_up().await);
    fixture.check().await;
    let error =
        slow.store(&generation, &(1..11), &rows, Some(&running)).await.expect_err("too late");
    assert_eq!(error.kind(), logmill_io::ErrorKind::Fenced, "{error}");
    fixture.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_too_late_does_not_end_the_job_of_another() {
    let fixture = Fixture::new(40, 5).await;
    let (slow, quick) = (fixture.collector().await, fixture.collector().await);
    slow.step().await.expect("a range");
    let late = slow.next_job().await.expect("a job");
    fixture.clock.sleep(LATER).await;
    slow.tables.queue().reap(&slow.kind()).await.expect("the lease is over");
    let held = quick.next_job().await.expect("the same job");
    assert_eq!((&held.key, held.token), (&late.key, late.token + 1));
    slow.work(late).await.expect_err("it is fenced");
    assert_eq!(fixture.stored().await, [], "and wrote nothing");
    assert_eq!(quick.work(held).await, Ok(Outcome::Completed));
    assert_eq!(fixture.stored().await, fixture.expected(1..11));
}

#[tokio::test(start_paused = true)]
async fn failed_and_orphaned_ranges_come_before_new_ones() {
    let fixture = Fixture::new(80, 5).await;
    let collector = fixture.collector().await;
    collector.step().await.expect("a range");
    let orphan = collector.next_job().await.expect("a job");
    fixture.clock.sleep(LATER).await;
    collector.tables.queue().reap(&collector.kind()).await.expect("the lease is over");
    assert_eq!(collector.step().await.expect("fine"), PlanOutcome::Busy, "no new range");
    assert_eq!(collector.next_job().await.expect("it again").key, orphan.key);
}

#[tokio::test(start_paused = true)]
async fn after_ten_attempts_a_range_is_reported_and_never_silently_gone() {
    let fixture = Fixture::new(40, 5).await;
    let collector = fixture.collector().await;
    collector.step().await.expect("a range");
    // The head is known, so that only the range itself fails.
    fixture.node.set_faults(NodeFaults { floor: 1_000, ..NodeFaults::default() });
    for attempt in 1..=ATTEMPTS_MAX {
        let claim = collector.next_job().await.expect("a job");
        assert_eq!(claim.attempt, i64::from(attempt));
        collector.work(claim).await.expect_err("the node has no such block");
        fixture.clock.sleep(LATER).await;
    }
    assert_eq!(collector.next_job().await, None);
    let status = collector.report().await.collected.expect("the database answers");
    assert_eq!((status.dead, status.pending, status.running), (1, 0, 0));
    let missing = status.missing.first().expect("it is listed");
    assert_eq!((missing.first, missing.last, missing.attempts), (1, 10, 10));
    assert!(missing.error.as_ref().is_some_and(|error| !error.is_empty()));
    // Other ranges go on, and this one stays missing until an operator redrives it.
    fixture.node.set_faults(NodeFaults::default());
    assert!(collector.catch_up().await);
    assert_eq!(fixture.stored().await, fixture.expected(11..36));
    let status = CollectStatus::find(&collector.tables, CHAIN, "fees_worker").await.expect("read");
    assert_eq!(status.expect("a generation").cursor, 1);
    let redriven = collector.tables.queue().redrive_dead(&collector.kind()).await;
    assert_eq!(redriven.expect("redriven"), 1);
    assert!(collector.catch_up().await);
    fixture.check().await;
}

#[tokio::test(start_paused = true)]
async fn ranges_are_cut_to_the_limits_of_a_node_without_spending_attempts() {
    for faults in [
        NodeFaults { logs_blocks_max: 3, ..NodeFaults::default() },
        NodeFaults { logs_max: 1, ..NodeFaults::default() },
    ] {
        let fixture = Fixture::new(60, 5).await;
        fixture.node.set_faults(faults);
        let collector = fixture.collector().await;
        assert!(collector.catch_up().await, "no attempt has failed");
        fixture.check().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lies_about_its_blocks_is_not_believed() {
    for lie in [Lie::WrongHash, Lie::WrongTime, Lie::WrongParent] {
        let fixture = Fixture::new(40, 5).await;
        let collector = fixture.collector().await;
        collector.step().await.expect("a range");
        fixture.node.set_faults(NodeFaults { lie: Some(lie), ..NodeFaults::default() });
        let claim = collector.next_job().await.expect("a job");
        collector.work(claim).await.expect_err("it lies");
        assert_eq!(fixture.stored().await, [], "{lie:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_does_not_answer_is_retried_and_not_blamed_on_the_database() {
    let fixture = Fixture::new(60, 5).await;
    let collector = fixture.collector().await;
    fixture.node.set_faults(NodeFaults { fail_every: 1, ..NodeFaults::default() });
    let error = collector.step().await.expect_err("the chain is away");
    assert!(retry::is_of_chain(&error), "{error}");
    // It plans for an hour: it neither gives up nor asks continuously.
    let before = fixture.node.requests();
    tokio::select! {
        biased;
        error = collector.plan() => panic!("it gave up: {error:?}"),
        () = fixture.clock.sleep(LATER) => {}
    }
    let requests = fixture.node.requests() - before;
    assert!((10..3_000).contains(&requests), "{requests} requests in an hour");
    fixture.node.set_faults(NodeFaults::default());
    fixture.clock.sleep(LATER).await;
    assert!(collector.catch_up().await);
    fixture.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_gone_ends_the_collector_after_three_attempts() {
    let fixture = Fixture::new(40, 5).await;
    let before = fixture.collector().await;
    let gone = fixture.sql.with_faults(Faults::seeded(SeededEntropy::shared(1), 1_000, 0));
    let tables = Tables::open(fixture.sql.clone()).await.expect("tables");
    let event = Arc::clone(&before.event);
    let settings = fixture.settings();
    let mut collector = Collector::new(CHAIN, fixture.source(), tables, event, settings, "one");
    collector.seed_cursor().await.expect("it begins");
    collector.tables = collector.tables.through(gone);
    let started = fixture.clock.monotonic();
    let ended = Arc::new(collector).run(|| fixture.clock.sleep(LATER)).await;
    assert_eq!(ended.expect_err("it gave up").kind(), logmill_io::ErrorKind::Transient);
    let waited = fixture.clock.monotonic().saturating_sub(started);
    assert!(waited >= Duration::from_secs(6) && waited < LATER, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn reverted_finality_stops_the_collector_until_the_chain_has_the_block_again() {
    let mut fixture = Fixture::new(60, 40).await;
    fixture.confirmations = Some(5);
    let collector = fixture.collector().await;
    assert!(collector.catch_up().await);
    assert_eq!(fixture.stored().await, fixture.expected(1..56));
    let before = fixture.sim.fork();
    fixture.sim.reorg(20, 40).expect("the chain itself calls less final");
    fixture.clock.sleep(LATER).await;
    let error = collector.step().await.expect_err("it is noticed");
    assert!(matches!(error, Error::FinalityReverted { number: 55, .. }), "{error}");
    assert!(collector.report().await.halted.is_some());
    // A process that starts later notices it too.
    let next = fixture.collector().await;
    next.step().await.expect_err("it is still so");
    fixture.node = SimNode::new(before.clone());
    fixture.sim = before;
    let next = fixture.collector().await;
    assert!(next.catch_up().await);
    assert_eq!(next.report().await.halted, None);
}

#[tokio::test(start_paused = true)]
async fn blocks_that_the_deriver_has_are_not_collected_again() {
    let fixture = Fixture::new(60, 5).await;
    let collector = fixture.collector().await;
    let generation = collector.serving().expect("a generation");
    for range in [5..8, 23..41] {
        let mut rows = Rows::new(generation.processor.tables());
        for number in range.clone() {
            let block = fixture.sim.block(number).expect("a block");
            let block = DecodedBlock::new(CHAIN, block).expect("fine");
            rows.at_block(number);
            generation.processor.process(&block, &mut rows).expect("rows");
        }
        let part = RangeRows { generation: generation.clone(), range, rows };
        collector.tables.commit(None, vec![part]).await.expect("stored");
    }
    assert!(collector.catch_up().await);
    fixture.check().await;
    let coverage = Coverage::read(&fixture.sql, &generation.scope()).await.expect("read");
    assert_eq!(coverage.done.len(), 1);
    assert!(coverage.done.covers(&(1..56)));
}

#[tokio::test(start_paused = true)]
async fn rows_that_another_worker_stores_during_a_scan_are_stored_once() {
    let fixture = Fixture::new(60, 5).await;
    let collector = fixture.collector().await;
    collector.step().await.expect("a range");
    let claim = collector.next_job().await.expect("a job");
    let running = RunningJob { claim: claim.clone(), queue: collector.tables.queue().clone() };
    let generation = collector.serving().expect("a generation");
    let all = collector.scan(&generation, 1..11).await.expect("scanned");
    let some = collector.scan(&generation, 3..6).await.expect("scanned");
    collector.store(&generation, &(3..6), &some, None).await.expect("stored");
    let error = collector.store(&generation, &(1..11), &all, Some(&running)).await;
    assert_eq!(error.expect_err("overtaken").kind(), logmill_io::ErrorKind::Conflict);
    assert_eq!(collector.work(claim).await, Ok(Outcome::Completed), "it plans again");
    assert_eq!(fixture.stored().await, fixture.expected(1..11));
}

#[tokio::test(start_paused = true)]
async fn other_contracts_build_tables_beside_the_old_ones_and_then_take_their_place() {
    let fixture = Fixture::new(60, 5).await;
    assert!(fixture.collector().await.catch_up().await);
    let contracts = vec![FEE_COLLECTOR, logmill_chain::sim::WETH];
    let settings = CollectSettings { contracts, ..fixture.settings() };
    let other = fixture.collector_of(&fixture.sql, settings).await.expect("it begins");
    assert_eq!(
        other.serving().expect("a generation").state,
        crate::derive::GenerationState::Building
    );
    fixture.check().await;
    assert!(other.catch_up().await);
    other.tidy().await.expect("they change places");
    assert_eq!(
        other.serving().expect("a generation").state,
        crate::derive::GenerationState::Serving
    );
    fixture.check().await;
    // A job of the replaced tables has nothing left to do.
    let job = scan::RangeJob { generation: 1, start: 1, end: 11 };
    let queue = other.tables.queue();
    let payload = serde_json::to_string(&job).expect("JSON");
    queue.enqueue(&logmill_work::NewJob::new(other.kind(), "old", payload)).await.expect("queued");
    let claim = other.next_job().await.expect("a job");
    assert_eq!(other.work(claim).await, Ok(Outcome::Done));
}
