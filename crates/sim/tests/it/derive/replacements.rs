//! Stored final blocks are replaced under derived tables: by another chain after a rebuild, or by other content under
//! the same hash after a repair. The tables end as a naive fold over the new blocks, and report that they are
//! incomplete until then.

use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{ReplacementPosition, Resolution, Stores};
use logmill_chain::sim::Lie;
use logmill_chain::{Block, VerifyLevel};
use logmill_io::meta::MemoryMeta;
use logmill_io::sql::Execute;
use logmill_io::{Clock, Condition, Fault, Faults, KeyRange, MetaStoreExt, params};
use logmill_pipeline::block::to_finalized;
use logmill_pipeline::derive::store::Permit;
use logmill_pipeline::derive::{
    DeriveSettings, Deriver, GenerationProgress, Processor, RangeRows, Reader, Tables,
};
use logmill_pipeline::repair::RepairHandler;
use logmill_pipeline::{Change, Error, Result};
use logmill_sim::Database;
use logmill_sim::chain_world::{Process, World};
use logmill_sim::postgres::PostgresServer;
use tokio::sync::broadcast;

use super::life::{all, check, deriver, settings, tables};
use super::model;
use super::probe::Probe;
use super::ranges::part;

const PROCESSOR: &str = "probe_worker";

/// The same stores, and another chain.
async fn reset(world: &World, blocks: u64) -> World {
    let other = World::new(99, Some(3)).await;
    other.sim.grow(blocks);
    World {
        clock: Arc::clone(&world.clock),
        stores: world.stores.clone(),
        queue: world.queue.clone(),
        settings: world.settings.clone(),
        ..other
    }
}

/// Other stores, and another chain.
async fn made_again(world: &World, blocks: u64) -> World {
    let other = World::new(99, Some(3)).await;
    other.sim.grow(blocks);
    other.clock.jump(logmill_io::millis(Duration::from_secs(7_200)));
    World { settings: world.settings.clone(), ..other }
}

/// The same blobs, and a copy of all records.
async fn backup(world: &World) -> Stores {
    let stores = &world.stores;
    let meta = MemoryMeta::shared(world.clock.clone(), Arc::clone(&stores.entropy));
    for prefix in ["logindex/", "chain"] {
        let records = stores.meta.scan(&KeyRange::prefix(prefix), 100_000).await;
        for (key, record) in records.expect("it scans") {
            meta.put(key, record.value, Condition::Absent).await.expect("it is written");
        }
    }
    Stores { meta, ..stores.clone() }
}

async fn world(blocks: u64) -> World {
    let mut world = World::new(8, Some(3)).await;
    world.settings.history_stop = 0;
    world.sim.grow(blocks);
    world
}

async fn progress(tables: &Tables, processor: &str) -> GenerationProgress {
    let reader = Reader::new(tables.clone(), model::CHAIN);
    reader.progress(&[processor]).await.expect("read").remove(0)
}

/// Why the checkpoint of a processor is incomplete, according to the view.
async fn checkpoint_reason(tables: &Tables, processor: &str) -> Option<String> {
    let text = "SELECT reason, CASE WHEN complete THEN 1 ELSE 0 END FROM indexing_checkpoints
                WHERE chain_id = 1337 AND service_name = $1";
    let found = tables.sql().query(text, params![processor]).await.expect("a view");
    let row = found.row().expect("one");
    let reason = row.opt_text(0).expect("a text").map(str::to_owned);
    assert_eq!(row.int(1).expect("a number") == 1, reason.is_none());
    reason
}

#[tokio::test(start_paused = true)]
async fn after_a_rebuild_from_another_chain_tables_are_marked_and_then_hold_that_chain() {
    // Longer than before, as long, and shorter.
    for blocks in [70, 40, 12] {
        let world = world(40).await;
        let process = world.stored().await;
        process.writer.maintain().await.expect("it seals");
        let (tables, processors) = (tables().await, all());
        let first = deriver(&world, &process, &tables, &processors);
        first.catch_up().await.expect("derived");
        check(&world, &process, &tables, &processors).await;
        process.writer.resolve(Resolution::RebuildFrom(0)).await.expect("it is stored");
        let last = process.chain.index().replacement_position();
        for processor in &processors {
            let stale = progress(&tables, processor.name()).await.stale(last);
            assert!(stale.is_some_and(|why| why.contains("replaced")), "{}", processor.name());
        }
        process.die();
        world.pause();
        let world = reset(&world, blocks).await;
        let process = world.stored().await;
        let next = deriver(&world, &process, &tables, &processors);
        next.load().await.expect("generations");
        next.apply_replacements(None).await.expect("applied");
        // The old rows can still be read, but are marked as incomplete.
        let behind = progress(&tables, PROCESSOR).await;
        let why = behind.stale(last).expect("it has not caught up");
        assert!(why.contains("being derived again") && why.contains("replacement 1"), "{why}");
        assert_eq!(checkpoint_reason(&tables, PROCESSOR).await, behind.behind);
        assert!(!model::found(&tables, &*Probe::shared()).await["probe_once"].is_empty());
        next.catch_up().await.expect("derived");
        check(&world, &process, &tables, &processors).await;
        for processor in &processors {
            let now = progress(&tables, processor.name()).await;
            assert_eq!((now.stale(last), now.behind), (None, None), "{}", processor.name());
            assert_eq!(checkpoint_reason(&tables, processor.name()).await, None);
        }
        assert!(!next.is_building());
    }
}

/// A world whose stored blocks 3 to 8 have false logs.
async fn deceived(sealed: bool) -> (World, Process) {
    let world = world(12).await;
    let process = world.write().await;
    for number in 0..=9 {
        let mut block = Block::clone(&world.sim.block(number).expect("it exists"));
        block.verified = VerifyLevel::Full;
        if (3..9).contains(&number) {
            block.verified = VerifyLevel::Off;
            Lie::ChangeLog.apply(&mut block);
        }
        process.writer.ingest_finalized_block(to_finalized(block)).await.expect("it follows");
    }
    if sealed {
        process.writer.maintain().await.expect("it seals");
    }
    process.catch_up().await.expect("nothing is in the way");
    (world, process)
}

fn repairs(process: &Process) -> RepairHandler {
    RepairHandler::new(Arc::clone(&process.writer), Arc::clone(&process.backward))
}

#[tokio::test(start_paused = true)]
async fn after_a_repair_tables_hold_the_rows_of_the_repaired_blocks() {
    for sealed in [false, true] {
        let (world, process) = deceived(sealed).await;
        let (tables, processors) = (tables().await, all());
        let deriver = deriver(&world, &process, &tables, &processors);
        deriver.catch_up().await.expect("derived");
        let before = progress(&tables, PROCESSOR).await;
        repairs(&process).repair(3..9).await.expect("it is fetched again");
        let last = process.chain.index().replacement_position();
        assert!(progress(&tables, PROCESSOR).await.stale(last).is_some());
        deriver.catch_up().await.expect("derived");
        check(&world, &process, &tables, &processors).await;
        let after = progress(&tables, PROCESSOR).await;
        assert!(after.generation > before.generation);
        assert_eq!(after.replacements_applied, last);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_blocks_that_are_not_derived_starts_no_new_generation() {
    let world = world(40).await;
    let process = world.stored().await;
    let tables = tables().await;
    let processors = vec![Probe::shared()];
    let generations = tables.generations(model::CHAIN, &processors).await.expect("generations");
    let some: Vec<RangeRows> = vec![part(&generations[0], &world.sim, 0..5)];
    tables.commit(None, some).await.expect("stored");
    process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
    let from = process.chain.index().replacements_after(0).await.expect("read")[0].blocks.start;
    assert!(from >= 5, "{from}");
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.load().await.expect("generations");
    deriver.apply_replacements(None).await.expect("applied");
    let now = progress(&tables, PROCESSOR).await;
    assert_eq!((now.generation, now.replacements_applied.seq), (generations[0].number, 1));
    assert!(!deriver.is_building());
    process.catch_up().await.expect("it comes back");
    deriver.catch_up().await.expect("derived");
    check(&world, &process, &tables, &processors).await;
}

#[tokio::test(start_paused = true)]
async fn rows_of_blocks_read_before_a_replacement_are_rejected_after_it() {
    let world = world(40).await;
    let process = world.stored().await;
    let tables = tables().await;
    let processors = vec![Probe::shared()];
    let generations = tables.generations(model::CHAIN, &processors).await.expect("generations");
    // Derived, but not stored yet.
    let dead = part(&generations[0], &world.sim, 30..35);
    process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.load().await.expect("generations");
    deriver.apply_replacements(None).await.expect("applied");
    let refused = tables.commit(None, vec![dead]).await;
    assert!(matches!(refused, Err(Error::Overtaken { .. })), "{refused:?}");
    assert!(tables.covered(&generations[0]).await.expect("read").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_generation_being_built_is_dropped_when_its_blocks_are_replaced() {
    let world = world(40).await;
    let process = world.stored().await;
    let (tables, probe) = (tables().await, Probe::shared());
    let processors = vec![Arc::clone(&probe)];
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.catch_up().await.expect("derived");
    process.writer.resolve(Resolution::RebuildFrom(30)).await.expect("it is stored");
    process.catch_up().await.expect("it comes back");
    deriver.apply_replacements(None).await.expect("applied");
    assert!(deriver.is_building());
    deriver
        .history_step(None, logmill_work::intervals::SearchOrder::LowestFirst)
        .await
        .expect("some of it");
    let building = || async { tables.building(model::CHAIN, PROCESSOR).await.expect("read") };
    assert!(building().await.is_some_and(|blocks| blocks > 0));
    process.writer.resolve(Resolution::RebuildFrom(0)).await.expect("it is stored");
    process.catch_up().await.expect("it comes back");
    process.fill().await.expect("it comes back");
    deriver.apply_replacements(None).await.expect("applied");
    assert_eq!(building().await, Some(0), "it begins again");
    deriver.catch_up().await.expect("derived");
    check(&world, &process, &tables, &processors).await;
    assert_eq!(progress(&tables, PROCESSOR).await.replacements_applied.seq, 2);
}

#[tokio::test(start_paused = true)]
async fn without_disk_space_no_generation_is_begun_and_the_reason_is_reported() {
    let world = world(30).await;
    let process = world.stored().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (tables, processors) = (tables().await, vec![Probe::shared()]);
    let of = |disk_reserve_bytes: u64| {
        let settings = DeriveSettings {
            database_folder: Some(Arc::from(folder.path())),
            disk_reserve_bytes,
            ..settings()
        };
        let (chain, clock) = (process.chain.clone(), world.clock.clone());
        Deriver::new(chain, tables.clone(), processors.clone(), settings, "test", clock)
    };
    of(0).catch_up().await.expect("derived");
    process.writer.resolve(Resolution::RebuildFrom(0)).await.expect("it is stored");
    process.catch_up().await.expect("it comes back");
    process.fill().await.expect("it comes back");
    let cramped = of(u64::MAX);
    cramped.catch_up().await.expect("it does what it can");
    assert!(!cramped.is_building());
    let last = process.chain.index().replacement_position();
    let why = progress(&tables, PROCESSOR).await.stale(last).expect("old rows are marked");
    assert!(why.contains("bytes free"), "{why}");
    of(0).catch_up().await.expect("there is room");
    check(&world, &process, &tables, &processors).await;
    assert_eq!(progress(&tables, PROCESSOR).await.stale(last), None);
}

#[tokio::test(start_paused = true)]
async fn running_derivers_apply_a_replacement_by_themselves() {
    let (world, process) = deceived(true).await;
    let (tables, processors) = (tables().await, all());
    let deriver = deriver(&world, &process, &tables, &processors);
    let stop = tokio::sync::Notify::new();
    let reader = Reader::new(tables.clone(), model::CHAIN);
    let until = async |seq: u64| loop {
        let all = reader.progress(&[]).await.expect("read");
        let view = process.chain.view().await.expect("read");
        let has_all =
            |one: &GenerationProgress| view.covered().iter().all(|range| one.all().covers(range));
        let is_done =
            |one: &GenerationProgress| one.replacements_applied.seq == seq && has_all(one);
        if all.len() == processors.len() && all.iter().all(is_done) {
            break;
        }
        world.clock.sleep(Duration::from_millis(100)).await;
    };
    let driver = async {
        until(0).await;
        repairs(&process).repair(3..9).await.expect("it is fetched again");
        world.sim.grow(3);
        process.catch_up().await.expect("it goes on");
        until(process.chain.index().last_replacement()).await;
        stop.notify_one();
    };
    let driver = tokio::time::timeout(Duration::from_secs(3_600), driver);
    let (ran, done) = tokio::join!(deriver.run(stop.notified()), driver);
    ran.expect("it stops well");
    done.expect("in time");
    check(&world, &process, &tables, &processors).await;
}

const OTHERS: [Fault; 3] = [Fault::Before, Fault::After, Fault::CrashAfter];

/// One is enough, since all processors share the code path; this one has every kind of column and fold.
fn some() -> Vec<Arc<dyn Processor>> {
    vec![Probe::shared()]
}

/// How blocks are replaced.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// The chain was reset, and the index is rebuilt from block 0 on.
    Reset,
    /// Blocks of the tail, or of chunks, had false logs and are repaired.
    Repair { sealed: bool },
    /// The index was created again from another chain.
    MadeAgain,
}

/// Replaces blocks and derives, with a fault at one store operation; then another process finishes.
async fn replace(scenario: Scenario, faults: &Arc<Faults>) {
    let (world, process) = match scenario {
        Scenario::Reset | Scenario::MadeAgain => {
            let world = world(8).await;
            let process = world.stored().await;
            (world, process)
        }
        Scenario::Repair { sealed } => deceived(sealed).await,
    };
    let database = Database::memory().await;
    let plain = Tables::open(database.open().await).await.expect("tables");
    let processors = some();
    deriver(&world, &process, &plain, &processors).catch_up().await.expect("derived");
    process.die();
    world.pause();
    let world = match scenario {
        Scenario::Reset => reset(&world, 7).await,
        Scenario::Repair { .. } => world,
        Scenario::MadeAgain => made_again(&world, 7).await,
    };
    let follower = world.open().await;
    let mut heard = follower.changes();
    let disturbed = plain.through(plain.sql().with_faults(Arc::clone(faults)));
    let stores = world.stores.with_faults(faults);
    if let Ok(process) = world.write_as("one", &stores, &world.source()).await {
        // Whether the process died or only failed: the next one finishes.
        let _ = life(scenario, &world, &process, &disturbed, &processors).await;
    }
    world.pause();
    let process = world.write_as("two", &world.stores, &world.source()).await.expect("it opens");
    let restarted = Tables::open(database.open().await).await.expect("tables");
    life(scenario, &world, &process, &restarted, &processors).await.expect("nothing is in the way");
    check(&world, &process, &restarted, &processors).await;
    let last = process.chain.index().replacement_position();
    assert_ne!(last.mark, 0);
    for processor in &processors {
        assert_eq!(progress(&restarted, processor.name()).await.stale(last), None);
    }
    follower.follow().await.expect("it follows");
    check_heard(&mut heard);
}

/// What the operator and the process do; may be repeated after any part of it.
async fn life(
    scenario: Scenario,
    world: &World,
    process: &Process,
    tables: &Tables,
    processors: &[Arc<dyn Processor>],
) -> Result<()> {
    match scenario {
        Scenario::Reset if process.chain.index().last_replacement() == 0 => {
            process.writer.resolve(Resolution::RebuildFrom(0)).await?;
        }
        Scenario::Reset | Scenario::MadeAgain => {}
        Scenario::Repair { .. } => repairs(process).repair(3..9).await?,
    }
    let deriver = deriver(world, process, tables, processors);
    deriver.catch_up().await?;
    process.catch_up().await?;
    process.writer.maintain().await?;
    process.fill().await?;
    deriver.catch_up().await
}

/// No block is removed twice, or added where another is.
fn check_heard(heard: &mut broadcast::Receiver<Arc<Change>>) {
    let mut known = std::collections::BTreeMap::new();
    while let Ok(change) = heard.try_recv() {
        for block in &change.removed {
            let before = known.insert(block.at.number, None);
            assert!(before.is_none_or(|hash| hash == Some(block.at.hash)), "{:?}", block.at);
        }
        for block in &change.added {
            let before = known.insert(block.at.number, Some(block.at.hash));
            assert!(before.flatten().is_none(), "{:?} came where another is", block.at);
        }
    }
}

async fn matrix(scenario: Scenario) {
    let counted = Faults::none();
    replace(scenario, &counted).await;
    let operations = counted.operations();
    assert!(operations > 50, "only {operations} operations");
    for operation in 0..operations {
        replace(scenario, &Faults::at(operation, Fault::CrashBefore)).await;
    }
    // Dying after an operation is mostly the same as dying before the next one, and failures without a crash take the
    // same retry path everywhere.
    for operation in (0..operations).step_by(8) {
        let fault = OTHERS[usize::try_from(operation / 8).expect("few") % OTHERS.len()];
        replace(scenario, &Faults::at(operation, fault)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_anywhere_in_a_rebuild_leaves_tables_that_become_those_of_the_new_chain() {
    matrix(Scenario::Reset).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_anywhere_in_a_repair_of_the_tail_leaves_tables_that_become_correct() {
    matrix(Scenario::Repair { sealed: false }).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_anywhere_in_a_repair_of_chunks_leaves_tables_that_become_correct() {
    matrix(Scenario::Repair { sealed: true }).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_while_the_index_is_exchanged_leaves_tables_that_become_those_of_the_new_index() {
    matrix(Scenario::MadeAgain).await;
}

/// Derives from another index with tables that were derived before; they report that they are stale until they are up
/// to date.
async fn follow_another(
    world: &World,
    process: &Process,
    tables: &Tables,
    processors: &[Arc<dyn Processor>],
) {
    let end = process.chain.index().replacement_position();
    let before = progress(tables, PROCESSOR).await;
    assert!(before.stale(end).is_some(), "{before:?} at {end:?}");
    let next = deriver(world, process, tables, processors);
    next.load().await.expect("generations");
    next.apply_replacements(None).await.expect("applied");
    let behind = progress(tables, PROCESSOR).await;
    assert_eq!(behind.generation, before.generation, "the old rows can be read");
    assert_eq!(behind.replacements_applied, ReplacementPosition::NOWHERE);
    let why = behind.stale(end).expect("it has not caught up");
    assert!(checkpoint_reason(tables, PROCESSOR).await.is_some(), "{why}");
    assert!(why.contains("built again") && why.contains("being derived again"), "{why}");
    next.catch_up().await.expect("derived");
    check(world, process, tables, processors).await;
    for processor in processors {
        let now = progress(tables, processor.name()).await;
        assert_eq!((now.stale(end), now.replacements_applied), (None, end), "{}", processor.name());
    }
    assert!(!next.is_building());
}

/// The index is deleted and created again; its replacement numbers are lower than those that the tables have applied,
/// or equal.
async fn made_again_under(
    database: Database,
    processors: Vec<Arc<dyn Processor>>,
    all_replaced: &[u64],
) {
    for replaced in all_replaced.iter().copied() {
        let old = world(40).await;
        let process = old.stored().await;
        process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
        process.catch_up().await.expect("it comes back");
        let tables = Tables::open(database.open().await).await.expect("tables");
        deriver(&old, &process, &tables, &processors).catch_up().await.expect("derived");
        let new = made_again(&old, 30).await;
        let process = new.stored().await;
        for _ in 0..replaced {
            process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
            process.catch_up().await.expect("it comes back");
        }
        assert_eq!(process.chain.index().last_replacement(), replaced);
        follow_another(&new, &process, &tables, &processors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_that_was_created_again_replaces_all_derived_rows() {
    made_again_under(Database::memory().await, all(), &[0, 1, 2]).await;
}

#[test]
fn on_postgresql_an_index_that_was_created_again_replaces_all_derived_rows() {
    let server = PostgresServer::start();
    crate::work::in_real_time(made_again_under(Database::postgres(&server), some(), &[1]));
}

#[tokio::test(start_paused = true)]
async fn an_index_restored_from_a_backup_replaces_all_derived_rows_if_its_log_differs() {
    // Number of replacements after the backup was restored.
    for replaced in [0, 1, 2] {
        let mut world = world(40).await;
        let process = world.stored().await;
        let (tables, processors) = (tables().await, all());
        deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
        let restored = backup(&world).await;
        process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
        process.catch_up().await.expect("it comes back");
        deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
        assert_eq!(progress(&tables, PROCESSOR).await.replacements_applied.seq, 1);
        process.die();
        world.pause();
        world.stores = restored;
        let process = world.stored().await;
        for _ in 0..replaced {
            process.writer.resolve(Resolution::RebuildFrom(30)).await.expect("it is stored");
            process.catch_up().await.expect("it comes back");
        }
        follow_another(&world, &process, &tables, &processors).await;
    }
    // The same log, restored with the same position: nothing is derived again.
    let mut world = world(40).await;
    let process = world.stored().await;
    let (tables, processors) = (tables().await, all());
    deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
    let before = progress(&tables, PROCESSOR).await;
    let restored = backup(&world).await;
    process.die();
    world.pause();
    world.stores = restored;
    let process = world.stored().await;
    deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
    assert_eq!(progress(&tables, PROCESSOR).await, before);
}

/// The serving generation is behind the replacement, and takes blocks that were stored after it.
#[tokio::test(start_paused = true)]
async fn a_replacement_undone_by_a_restored_backup_replaces_rows_derived_since() {
    let mut world = world(40).await;
    let process = world.stored().await;
    let (tables, processors) = (tables().await, all());
    let first = deriver(&world, &process, &tables, &processors);
    first.catch_up().await.expect("derived");
    let restored = backup(&world).await;
    process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
    first.apply_replacements(None).await.expect("applied");
    let behind = progress(&tables, PROCESSOR).await;
    assert_eq!((behind.replacements_applied.seq, behind.replacements_seen.seq), (0, 1));
    process.die();
    world.pause();
    world.stores = restored;
    let process = world.stored().await;
    assert!(process.chain.index().replacement_position().is_same(behind.replacements_applied));
    follow_another(&world, &process, &tables, &processors).await;
}

#[tokio::test(start_paused = true)]
async fn tables_of_an_earlier_version_adopt_the_current_replacement_log() {
    let world = world(20).await;
    let process = world.stored().await;
    let (tables, processors) = (tables().await, all());
    deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
    let before = progress(&tables, PROCESSOR).await;
    let forget = "UPDATE derive_line SET replacement_mark = NULL";
    let forgotten = tables.sql().write(|tx| async move { tx.execute(forget, params![]).await });
    forgotten.await.expect("as it was written before");
    let end = process.chain.index().replacement_position();
    assert_eq!(progress(&tables, PROCESSOR).await.stale(end), None, "nothing speaks against it");
    deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
    assert_eq!(progress(&tables, PROCESSOR).await, before);
    check(&world, &process, &tables, &processors).await;
}

#[tokio::test(start_paused = true)]
async fn rows_of_pruned_blocks_stay_until_an_operator_gives_them_up() {
    let world = world(60).await;
    let process = world.stored().await;
    process.writer.maintain().await.expect("it seals");
    let (tables, probe) = (tables().await, Probe::shared());
    let processors = vec![Arc::clone(&probe)];
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.catch_up().await.expect("derived");
    let before = progress(&tables, PROCESSOR).await;
    assert!(process.writer.prune_below(20).await.expect("there are chunks") > 0);
    let floor = process.chain.index().pruned_below();
    assert!(floor > 0 && before.done.contains(0));
    process.writer.resolve(Resolution::RebuildFrom(40)).await.expect("it is stored");
    process.catch_up().await.expect("it comes back");
    deriver.catch_up().await.expect("it does what it can");
    let kept = progress(&tables, PROCESSOR).await;
    assert_eq!(kept.generation, before.generation);
    assert!(kept.done.contains(0), "rows of pruned blocks stay");
    let end = process.chain.index().replacement_position();
    let why = kept.stale(end).expect("replaced blocks are still in it");
    assert!(why.contains("no longer stored") && why.contains("--drop-unstored"), "{why}");
    let status = deriver.status();
    let shown = |state| status.checkpoints.iter().find(|one| one.state == state);
    assert!(shown("building").and_then(|one| one.incomplete.clone()).is_some_and(|s| s == why));
    let cannot = || async { tables.cannot_serve(model::CHAIN, PROCESSOR).await.expect("read") };
    assert_eq!(cannot().await, Some(why));
    let unstored = Permit { drops_unstored: true, ..Permit::default() };
    tables.rederive(model::CHAIN, &probe, unstored).await.expect("it is being built already");
    assert_eq!(cannot().await, None);
    deriver.catch_up().await.expect("derived");
    let now = progress(&tables, PROCESSOR).await;
    assert!(now.generation > before.generation);
    assert_eq!((now.stale(end), now.behind), (None, None));
    assert!(!now.done.contains(0) && now.done.contains(floor));
    // Without a replacement it is the same.
    tables.rederive(model::CHAIN, &probe, Permit::default()).await.expect("begun");
    deriver.catch_up().await.expect("derived");
    let again = progress(&tables, PROCESSOR).await;
    assert!(again.generation > now.generation, "nothing of it is lost");
    process.writer.prune_below(36).await.expect("it works");
    assert!(process.chain.index().pruned_below() > floor);
    tables.rederive(model::CHAIN, &probe, Permit::default()).await.expect("begun");
    deriver.catch_up().await.expect("it does what it can");
    assert_eq!(progress(&tables, PROCESSOR).await, again);
    assert!(cannot().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn more_than_one_page_of_replacements_hides_none_of_the_first_page() {
    let world = world(40).await;
    let process = world.stored().await;
    let tables = tables().await;
    let processors = vec![Probe::shared()];
    let generations = tables.generations(model::CHAIN, &processors).await.expect("generations");
    let some: Vec<RangeRows> = vec![part(&generations[0], &world.sim, 0..5)];
    tables.commit(None, some).await.expect("stored");
    process.writer.resolve(Resolution::RebuildFrom(0)).await.expect("it is stored");
    process.catch_up().await.expect("it comes back");
    process.fill().await.expect("it comes back");
    // The others do not concern derived blocks.
    for _ in 0..65 {
        process.writer.resolve(Resolution::RebuildFrom(35)).await.expect("it is stored");
        process.catch_up().await.expect("it comes back");
    }
    let index = process.chain.index();
    let mut seq = 1;
    while seq < index.last_replacement() {
        let page = index.replacements_after(seq).await.expect("read");
        assert!(page.iter().all(|one| one.blocks.start >= 5), "{page:?}");
        seq = page.last().expect("there are more").seq;
    }
    assert!(seq > 65, "{seq}");
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.load().await.expect("generations");
    deriver.apply_replacements(None).await.expect("applied");
    let stale = progress(&tables, PROCESSOR).await.stale(index.replacement_position());
    assert!(stale.is_some_and(|why| why.contains("replacement 1:")), "the first one touches it");
    deriver.catch_up().await.expect("derived");
    check(&world, &process, &tables, &processors).await;
}
