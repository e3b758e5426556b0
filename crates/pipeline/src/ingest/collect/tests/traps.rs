//! What the collector's ancestors got wrong, one test each.

use logmill_chain::sim::Lie;
use logmill_io::Faults;
use logmill_work::Coverage;

use super::*;
use crate::derive::{DecodedBlock, Part, Rows};

#[tokio::test(start_paused = true)]
async fn a_worker_whose_lease_was_taken_over_ends_nothing_and_adds_nothing() {
    let ground = Ground::new(40, 5).await;
    let (slow, quick) = (ground.collector().await, ground.collector().await);
    slow.step().await.expect("a range");
    let late = slow.next_job().await.expect("a job");
    let running = Running { claim: late.clone(), queue: slow.tables.queue().clone() };
    let line = slow.serving().expect("a line");
    let rows = slow.scan(&line, 1..11).await.expect("it has scanned");
    ground.clock.sleep(LATER).await;
    slow.tables.queue().reap(&slow.kind()).await.expect("the lease is over");
    assert!(quick.catch_up().await);
    ground.check().await;
    let error = slow.store(&line, &(1..11), &rows, Some(&running)).await.expect_err("too late");
    assert_eq!(error.kind(), logmill_io::ErrorKind::Fenced, "{error}");
    ground.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_too_late_does_not_end_the_job_of_another() {
    let ground = Ground::new(40, 5).await;
    let (slow, quick) = (ground.collector().await, ground.collector().await);
    slow.step().await.expect("a range");
    let late = slow.next_job().await.expect("a job");
    ground.clock.sleep(LATER).await;
    slow.tables.queue().reap(&slow.kind()).await.expect("the lease is over");
    let held = quick.next_job().await.expect("the same job");
    assert_eq!((&held.key, held.token), (&late.key, late.token + 1));
    slow.work(late).await.expect_err("it is fenced");
    assert_eq!(ground.stored().await, [], "and wrote nothing");
    assert_eq!(quick.work(held).await, Ok(Outcome::Completed));
    assert_eq!(ground.stored().await, ground.expected(1..11));
}

#[tokio::test(start_paused = true)]
async fn failed_and_orphaned_ranges_come_before_new_ones() {
    let ground = Ground::new(80, 5).await;
    let collector = ground.collector().await;
    collector.step().await.expect("a range");
    let orphan = collector.next_job().await.expect("a job");
    ground.clock.sleep(LATER).await;
    collector.tables.queue().reap(&collector.kind()).await.expect("the lease is over");
    assert_eq!(collector.step().await.expect("fine"), Step::Busy, "no new range");
    assert_eq!(collector.next_job().await.expect("it again").key, orphan.key);
}

#[tokio::test(start_paused = true)]
async fn after_ten_attempts_a_range_is_reported_and_never_silently_gone() {
    let ground = Ground::new(40, 5).await;
    let collector = ground.collector().await;
    collector.step().await.expect("a range");
    // The head is known, so that only the range itself fails.
    ground.node.set_faults(NodeFaults { floor: 1_000, ..NodeFaults::default() });
    for attempt in 1..=plan::ATTEMPTS_MAX {
        let claim = collector.next_job().await.expect("a job");
        assert_eq!(claim.attempt, i64::from(attempt));
        collector.work(claim).await.expect_err("the node has no such block");
        ground.clock.sleep(LATER).await;
    }
    assert_eq!(collector.next_job().await, None);
    let status = collector.report().await.collected.expect("the database answers");
    assert_eq!((status.dead, status.pending, status.running), (1, 0, 0));
    let missing = status.missing.first().expect("it is listed");
    assert_eq!((missing.first, missing.last, missing.attempts), (1, 10, 10));
    assert!(missing.error.as_ref().is_some_and(|error| !error.is_empty()));
    // Others go on, and the range stays missing until somebody asks for it.
    ground.node.set_faults(NodeFaults::default());
    assert!(collector.catch_up().await);
    assert_eq!(ground.stored().await, ground.expected(11..36));
    let status = Status::find(&collector.tables, CHAIN, "fees_worker").await.expect("read");
    assert_eq!(status.expect("a line").cursor, 1);
    let redriven = collector.tables.queue().redrive_dead(&collector.kind()).await;
    assert_eq!(redriven.expect("redriven"), 1);
    assert!(collector.catch_up().await);
    ground.check().await;
}

#[tokio::test(start_paused = true)]
async fn ranges_are_cut_to_what_a_node_gives_without_spending_attempts() {
    for faults in [
        NodeFaults { logs_blocks_max: 3, ..NodeFaults::default() },
        NodeFaults { logs_max: 1, ..NodeFaults::default() },
    ] {
        let ground = Ground::new(60, 5).await;
        ground.node.set_faults(faults);
        let collector = ground.collector().await;
        assert!(collector.catch_up().await, "no attempt has failed");
        ground.check().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lies_about_its_blocks_is_not_believed() {
    for lie in [Lie::WrongHash, Lie::WrongTime, Lie::WrongParent] {
        let ground = Ground::new(40, 5).await;
        let collector = ground.collector().await;
        collector.step().await.expect("a range");
        ground.node.set_faults(NodeFaults { lie: Some(lie), ..NodeFaults::default() });
        let claim = collector.next_job().await.expect("a job");
        collector.work(claim).await.expect_err("it lies");
        assert_eq!(ground.stored().await, [], "{lie:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_does_not_answer_is_waited_for_and_is_no_fault_of_the_database() {
    let ground = Ground::new(60, 5).await;
    let collector = ground.collector().await;
    ground.node.set_faults(NodeFaults { fail_every: 1, ..NodeFaults::default() });
    let error = collector.step().await.expect_err("the chain is away");
    assert!(retry::is_of_chain(&error), "{error}");
    // For an hour it plans: it neither gives up nor asks all the time.
    let asked = ground.node.requests();
    tokio::select! {
        biased;
        error = collector.plan() => panic!("it gave up: {error:?}"),
        () = ground.clock.sleep(LATER) => {}
    }
    let asked = ground.node.requests() - asked;
    assert!((10..3_000).contains(&asked), "{asked} requests in an hour");
    ground.node.set_faults(NodeFaults::default());
    ground.clock.sleep(LATER).await;
    assert!(collector.catch_up().await);
    ground.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_database_that_is_gone_ends_the_collector_after_three_attempts() {
    let ground = Ground::new(40, 5).await;
    let before = ground.collector().await;
    let gone = ground.sql.with_faults(Faults::seeded(SeededEntropy::shared(1), 1_000, 0));
    let tables = Tables::open(ground.sql.clone()).await.expect("tables");
    let event = Arc::clone(&before.event);
    let settings = ground.settings();
    let mut collector = Collector::new(CHAIN, ground.source(), tables, event, settings, "one");
    collector.seed_cursor().await.expect("it begins");
    collector.tables = collector.tables.through(gone);
    let started = ground.clock.monotonic();
    let ended = Arc::new(collector).run(|| ground.clock.sleep(LATER)).await;
    assert_eq!(ended.expect_err("it gave up").kind(), logmill_io::ErrorKind::Transient);
    let waited = ground.clock.monotonic().saturating_sub(started);
    assert!(waited >= Duration::from_secs(6) && waited < LATER, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_takes_back_what_was_final_stops_the_collector_until_it_comes_to_its_senses() {
    let mut ground = Ground::new(60, 40).await;
    ground.confirmations = Some(5);
    let collector = ground.collector().await;
    assert!(collector.catch_up().await);
    assert_eq!(ground.stored().await, ground.expected(1..56));
    let before = ground.sim.fork();
    ground.sim.reorg(20, 40).expect("the chain itself calls less final");
    ground.clock.sleep(LATER).await;
    let error = collector.step().await.expect_err("it is noticed");
    assert!(matches!(error, Error::FinalityReverted { number: 55, .. }), "{error}");
    assert!(collector.report().await.halted.is_some());
    // Also by a process that starts later.
    let next = ground.collector().await;
    next.step().await.expect_err("it is still so");
    ground.node = SimNode::new(before.clone());
    ground.sim = before;
    let next = ground.collector().await;
    assert!(next.catch_up().await);
    assert_eq!(next.report().await.halted, None);
}

#[tokio::test(start_paused = true)]
async fn blocks_that_the_deriver_has_are_not_collected_again() {
    let ground = Ground::new(60, 5).await;
    let collector = ground.collector().await;
    let line = collector.serving().expect("a line");
    for range in [5..8, 23..41] {
        let mut rows = Rows::new(line.processor.tables());
        for number in range.clone() {
            let block = ground.sim.block(number).expect("a block");
            let block = DecodedBlock::new(CHAIN, block).expect("fine");
            rows.at_block(number);
            line.processor.process(&block, &mut rows).expect("rows");
        }
        let part = Part { line: line.clone(), range, rows };
        collector.tables.commit(None, vec![part]).await.expect("stored");
    }
    assert!(collector.catch_up().await);
    ground.check().await;
    let coverage = Coverage::read(&ground.sql, &line.scope()).await.expect("read");
    assert_eq!(coverage.done.len(), 1);
    assert!(coverage.done.covers(&(1..56)));
}

#[tokio::test(start_paused = true)]
async fn what_another_stores_while_a_range_is_scanned_is_stored_once() {
    let ground = Ground::new(60, 5).await;
    let collector = ground.collector().await;
    collector.step().await.expect("a range");
    let claim = collector.next_job().await.expect("a job");
    let running = Running { claim: claim.clone(), queue: collector.tables.queue().clone() };
    let line = collector.serving().expect("a line");
    let all = collector.scan(&line, 1..11).await.expect("scanned");
    let some = collector.scan(&line, 3..6).await.expect("scanned");
    collector.store(&line, &(3..6), &some, None).await.expect("stored");
    let error = collector.store(&line, &(1..11), &all, Some(&running)).await;
    assert_eq!(error.expect_err("overtaken").kind(), logmill_io::ErrorKind::Conflict);
    assert_eq!(collector.work(claim).await, Ok(Outcome::Completed), "it plans anew");
    assert_eq!(ground.stored().await, ground.expected(1..11));
}

#[tokio::test(start_paused = true)]
async fn other_contracts_build_tables_beside_the_old_ones_and_then_take_their_place() {
    let ground = Ground::new(60, 5).await;
    assert!(ground.collector().await.catch_up().await);
    let contracts = vec![FEE_COLLECTOR, logmill_chain::sim::WETH];
    let settings = CollectSettings { contracts, ..ground.settings() };
    let other = ground.collector_of(&ground.sql, settings).await.expect("it begins");
    assert_eq!(other.serving().expect("a line").state, crate::derive::LineState::Building);
    ground.check().await;
    assert!(other.catch_up().await);
    other.tidy().await.expect("they change places");
    assert_eq!(other.serving().expect("a line").state, crate::derive::LineState::Serving);
    ground.check().await;
    // A job of the tables before them has nothing left to do.
    let job = scan::RangeJob { generation: 1, start: 1, end: 11 };
    let queue = other.tables.queue();
    let payload = serde_json::to_string(&job).expect("JSON");
    queue.enqueue(&logmill_work::NewJob::new(other.kind(), "old", payload)).await.expect("queued");
    let claim = other.next_job().await.expect("a job");
    assert_eq!(other.work(claim).await, Ok(Outcome::Done));
}
