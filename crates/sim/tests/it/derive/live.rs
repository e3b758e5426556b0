//! Running derivers: woken by blocks, one process at a time, through reorganizations and failures.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use logmill_io::Clock;
use logmill_io::sql::Execute;
use logmill_pipeline::derive::{
    DecodedBlock, DeriveSettings, Deriver, Phase, Processor, Reader, Rows, Table, Tables,
};
use logmill_pipeline::{Error, Result};
use logmill_sim::chain_world::{Process, World};

use super::life::{all, check, deriver, settings, tables};
use super::model;
use super::probe::Probe;

/// Time limit of every wait here, in simulated time.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Runs a deriver until the given future ends.
async fn beside<T>(deriver: &Deriver, other: impl Future<Output = T>) -> T {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = deriver.run(async {
        let _ = stopped.await;
    });
    let other = async {
        let done = tokio::time::timeout(WAIT_MAX, other).await.expect("in time");
        drop(stop);
        done
    };
    let (ran, done) = tokio::join!(running, other);
    ran.expect("it stops well");
    done
}

/// Waits until a processor has everything up to the head, tip included.
async fn until_head(world: &World, process: &Process, tables: &Tables, processor: &str) {
    let reader = Reader::new(tables.clone(), model::CHAIN);
    loop {
        let covered = reader.covered(processor).await.expect("read").all();
        let view = process.chain.view().await.expect("read");
        if view.covered().iter().all(|range| covered.covers(range)) {
            return;
        }
        world.clock.sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn new_blocks_and_new_history_are_derived_as_they_come() {
    let world = World::new(11, Some(6)).await;
    world.sim.grow(25);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    let tables = tables().await;
    let processors = all();
    let deriver = deriver(&world, &process, &tables, &processors);
    beside(&deriver, async {
        until_head(&world, &process, &tables, "probe_worker").await;
        check(&world, &process, &tables, &processors).await;
        process.fill().await.expect("nothing is in the way");
        until_head(&world, &process, &tables, "probe_worker").await;
        for _ in 0..4 {
            world.sim.grow(3);
            world.sim.reorg(2, 4).expect("not final");
            process.catch_up().await.expect("nothing is in the way");
            until_head(&world, &process, &tables, "probe_worker").await;
        }
    })
    .await;
    check(&world, &process, &tables, &processors).await;
}

#[tokio::test(start_paused = true)]
async fn new_blocks_and_new_history_wake_the_live_deriver() {
    let world = World::new(19, Some(6)).await;
    world.sim.grow(25);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    let tables = tables().await;
    // Without the history deriver, and with a poll interval too long to help.
    let settings = DeriveSettings { history: false, poll: WAIT_MAX * 10, ..settings() };
    let (chain, clock) = (process.chain.clone(), world.clock.clone());
    let processors = vec![Probe::shared()];
    let deriver = Deriver::new(chain, tables.clone(), processors.clone(), settings, "one", clock);
    // A subscriber that never reads: announcing a block must not wait for it.
    let _unread = process.chain.changes();
    beside(&deriver, async {
        until_head(&world, &process, &tables, "probe_worker").await;
        process.fill().await.expect("nothing is in the way");
        until_head(&world, &process, &tables, "probe_worker").await;
        for _ in 0..20 {
            world.sim.grow(30);
            process.catch_up().await.expect("nothing is in the way");
            until_head(&world, &process, &tables, "probe_worker").await;
        }
    })
    .await;
    check(&world, &process, &tables, &processors).await;
}

#[tokio::test(start_paused = true)]
async fn a_reorg_of_any_depth_leaves_the_tables_of_the_other_branch() {
    for depth in 1..=9 {
        let world = World::new(12, Some(9)).await;
        world.sim.grow(30);
        let process = world.stored().await;
        let (tables, processors) = (tables().await, all());
        let deriver = deriver(&world, &process, &tables, &processors);
        deriver.catch_up().await.expect("derived");
        world.sim.reorg(depth, depth + 1).expect("not final");
        process.catch_up().await.expect("nothing is in the way");
        // The whole change is one step, unless a new block is final immediately.
        deriver.align_tip(None).await.expect("derived");
        if depth == 9 {
            deriver.catch_up().await.expect("derived");
        }
        check(&world, &process, &tables, &processors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_head_comes_first_and_alone_if_history_is_turned_off() {
    let world = World::new(13, Some(4)).await;
    world.sim.grow(60);
    let process = world.stored().await;
    let tables = tables().await;
    let settings = DeriveSettings { history: false, head_backfill: 12, ..settings() };
    let (chain, clock) = (process.chain.clone(), world.clock.clone());
    let probe = vec![Probe::shared()];
    let deriver = Deriver::new(chain, tables.clone(), probe, settings, "one", clock);
    beside(&deriver, world.clock.sleep(Duration::from_secs(60))).await;
    let reader = Reader::new(tables, model::CHAIN);
    let covered = reader.covered("probe_worker").await.expect("read");
    let finalized = world.sim.heads().finalized.expect("it has").number;
    let ranges: Vec<_> = covered.done.ranges().collect();
    assert_eq!(ranges, vec![finalized - 11..finalized + 1]);
    assert_eq!(covered.tip, (finalized + 1..=60).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn new_blocks_are_derived_in_chunks_of_ten() {
    let world = World::new(18, Some(4)).await;
    world.sim.grow(60);
    let process = world.stored().await;
    let tables = tables().await;
    let probe = vec![Probe::shared()];
    let settings = DeriveSettings { history: false, ..DeriveSettings::default() };
    assert_eq!((settings.live_chunk, settings.history_chunk), (10, 1_000));
    let (chain, clock) = (process.chain.clone(), world.clock.clone());
    let deriver = Deriver::new(chain, tables.clone(), probe, settings, "one", clock);
    deriver.load().await.expect("generations");
    // Records each commit of final blocks.
    for text in [
        "CREATE TABLE noted (from_height BIGINT, last_height BIGINT)",
        "CREATE TRIGGER noted AFTER UPDATE OF from_height ON derive_line
            BEGIN INSERT INTO noted VALUES (new.from_height, new.last_height); END",
    ] {
        let made = tables.sql().write(|tx| async move { tx.execute(text, Vec::new()).await });
        made.await.expect("made");
    }
    beside(&deriver, until_head(&world, &process, &tables, "probe_worker")).await;
    let text = "SELECT DISTINCT from_height, last_height FROM noted WHERE from_height IS NOT NULL
        ORDER BY from_height DESC";
    let found = tables.sql().query(text, Vec::new()).await.expect("read");
    let row = |row: &logmill_io::sql::Row| (row.int(0).expect("one"), row.int(1).expect("one"));
    let noted: Vec<(i64, i64)> = found.rows.iter().map(row).collect();
    assert_eq!(noted, [(47, 56), (37, 56), (27, 56), (17, 56), (7, 56), (0, 56)]);
}

#[tokio::test(start_paused = true)]
async fn a_second_process_takes_over_when_the_first_is_gone_and_not_before() {
    let world = World::new(14, Some(4)).await;
    world.sim.grow(20);
    let process = world.stored().await;
    let (tables, processors) = (tables().await, vec![Probe::shared()]);
    let new = |owner: &str| {
        let (chain, clock) = (process.chain.clone(), world.clock.clone());
        Deriver::new(chain, tables.clone(), processors.clone(), settings(), owner, clock)
    };
    let (first, second) = (new("first"), new("second"));
    beside(&first, async {
        until_head(&world, &process, &tables, "probe_worker").await;
        beside(&second, world.clock.sleep(Duration::from_secs(120))).await;
        assert!(!second.status().leads, "the first still renews its lease");
        assert!(first.status().leads);
    })
    .await;
    world.sim.grow(5);
    process.catch_up().await.expect("nothing is in the way");
    beside(&second, async {
        until_head(&world, &process, &tables, "probe_worker").await;
        assert!(second.status().leads, "the first has given its lease back");
    })
    .await;
    check(&world, &process, &tables, &processors).await;
}

#[tokio::test(start_paused = true)]
async fn a_deriver_whose_lease_was_taken_over_writes_nothing() {
    let world = World::new(15, Some(4)).await;
    world.sim.grow(20);
    let process = world.stored().await;
    let (tables, processors) = (tables().await, vec![Probe::shared()]);
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.load().await.expect("generations");
    let stale = logmill_io::Fence { name: "derive/1337".to_owned(), counter: 1 };
    let from = logmill_work::intervals::SearchOrder::LowestFirst;
    let refused = deriver.history_step(Some(&stale), from).await.expect_err("there is no lease");
    assert_eq!(refused.kind(), logmill_io::ErrorKind::Fenced, "{refused}");
    let refused = deriver.align_tip(Some(&stale)).await.expect_err("there is no lease");
    assert_eq!(refused.kind(), logmill_io::ErrorKind::Fenced, "{refused}");
    model::check(&tables, &processors, &world.sim, []).await;
}

/// Fails a few times at every block, then behaves like the probe.
#[derive(Debug)]
struct FlakyProcessor {
    probe: Probe,
    failures: AtomicU32,
}

impl Processor for FlakyProcessor {
    fn name(&self) -> &'static str {
        "probe_worker"
    }

    fn version(&self) -> u32 {
        1
    }

    fn phase(&self) -> Phase {
        self.probe.phase()
    }

    fn tables(&self) -> &'static [&'static Table] {
        self.probe.tables()
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        let left = |left: u32| left.checked_sub(1);
        let failed = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok();
        if failed {
            return Err(Error::Invalid { what: "not yet".to_owned() });
        }
        self.probe.process(block, rows)
    }
}

#[tokio::test(start_paused = true)]
async fn failed_blocks_are_retried_until_they_succeed() {
    let world = World::new(16, Some(4)).await;
    world.sim.grow(20);
    let process = world.stored().await;
    let tables = tables().await;
    let weak: Arc<dyn Processor> =
        Arc::new(FlakyProcessor { probe: Probe::of_version(1), failures: AtomicU32::new(40) });
    let processors = vec![weak];
    let deriver = deriver(&world, &process, &tables, &processors);
    beside(&deriver, until_head(&world, &process, &tables, "probe_worker")).await;
    check(&world, &process, &tables, &[Probe::shared()]).await;
}

#[tokio::test(start_paused = true)]
async fn the_names_of_older_systems_are_views() {
    let world = World::new(17, Some(4)).await;
    world.sim.grow(20);
    let process = world.stored().await;
    let tables = tables().await;
    let deriver = deriver(&world, &process, &tables, &all());
    deriver.catch_up().await.expect("derived");
    let text = "SELECT service_name, from_height, last_height FROM indexing_checkpoints
        WHERE chain_id = 1337 ORDER BY service_name";
    let found = tables.sql().query(text, Vec::new()).await.expect("a view");
    let finalized = i64::try_from(world.sim.heads().finalized.expect("it has").number);
    let finalized = finalized.expect("low");
    let mut expected: BTreeMap<&str, (i64, i64)> =
        all().iter().map(|processor| (processor.name(), (0, finalized))).collect();
    expected.insert("main_ingester", (0, 20));
    expected.insert("history_ingester", (20, 0));
    expected.insert("history_deriver", (0, finalized));
    expected.insert("history_deriver_down", (finalized, 0));
    let height = |row: &logmill_io::sql::Row, column| row.int(column).expect("a height");
    let rows = found.rows.iter();
    let found: BTreeMap<&str, (i64, i64)> =
        rows.map(|row| (row.text(0).expect("a name"), (height(row, 1), height(row, 2)))).collect();
    assert_eq!(found, expected);
    let status = deriver.status().checkpoints;
    for name in ["history_deriver", "history_deriver_down"] {
        let cursor = status.iter().find(|one| one.name == name).expect("it is shown");
        let end = u64::try_from(finalized).expect("high") + 1;
        assert_eq!((&cursor.ranges, cursor.missing), (&vec![(0, end)], 0), "{name}");
    }
    for view in ["worker_leases", "last_block", "block_jobs"] {
        let text = format!("SELECT count(*) FROM {view}");
        let count = tables.sql().query(&text, Vec::new()).await.expect("a view");
        assert_eq!(count.row().expect("one").int(0).expect("a number"), 0, "{view}");
    }
}
