//! Stored final blocks are replaced under derived tables: by another chain after a rebuild, or by other content under
//! the same hash after a repair. The tables end as a naive fold over the new blocks, and say so until then.

use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{Resolution, Stores};
use logmill_chain::sim::Lie;
use logmill_chain::{Block, Verify};
use logmill_io::{Clock, Fault, Faults, Faulty};
use logmill_pipeline::block::finalized;
use logmill_pipeline::derive::{
    DeriveSettings, Deriver, Part, Processor, Reader, Standing, Tables,
};
use logmill_pipeline::repair::RepairHandler;
use logmill_pipeline::{Change, Error, Result};
use logmill_sim::Database;
use tokio::sync::broadcast;

use super::chain_world::{Process, World};
use super::life::{all, check, deriver, settings};
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

async fn world(blocks: u64) -> World {
    let mut world = World::new(8, Some(3)).await;
    world.settings.history_stop = 0;
    world.sim.grow(blocks);
    world
}

async fn stored(world: &World) -> Process {
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    process.fill().await.expect("nothing is in the way");
    process
}

async fn tables() -> Tables {
    Tables::open(Database::memory().await.open().await).await.expect("tables")
}

async fn standing(tables: &Tables, processor: &str) -> Standing {
    let reader = Reader::new(tables.clone(), model::CHAIN);
    reader.standings(&[processor]).await.expect("read").remove(0)
}

#[tokio::test(start_paused = true)]
async fn after_a_rebuild_from_another_chain_tables_say_so_and_then_hold_that_chain() {
    // Longer than before, as long, and shorter.
    for blocks in [70, 40, 12] {
        let world = world(40).await;
        let process = stored(&world).await;
        process.writer.maintain().await.expect("it seals");
        let (tables, processors) = (tables().await, all());
        let first = deriver(&world, &process, &tables, &processors);
        first.catch_up().await.expect("derived");
        check(&world, &process, &tables, &processors).await;
        process.writer.resolve(Resolution::RebuildFrom(0)).await.expect("it is stored");
        let last = process.chain.index().last_replacement();
        for processor in &processors {
            let stale = standing(&tables, processor.name()).await.stale(last);
            assert!(stale.is_some_and(|why| why.contains("replaced")), "{}", processor.name());
        }
        process.die();
        world.pause();
        let world = reset(&world, blocks).await;
        let process = stored(&world).await;
        let next = deriver(&world, &process, &tables, &processors);
        next.load().await.expect("lines");
        next.apply_replacements(None).await.expect("applied");
        // The old rows can be read, and are not said to be true.
        let behind = standing(&tables, PROCESSOR).await;
        let why = behind.stale(last).expect("it has not caught up");
        assert!(why.contains("being derived again") && why.contains("replacement 1"), "{why}");
        assert!(!model::found(&tables, &*Probe::shared()).await["probe_once"].is_empty());
        next.catch_up().await.expect("derived");
        check(&world, &process, &tables, &processors).await;
        for processor in &processors {
            let now = standing(&tables, processor.name()).await;
            assert_eq!((now.stale(last), now.behind), (None, None), "{}", processor.name());
        }
        assert!(!next.is_building());
    }
}

/// A world whose stored blocks 3 to 8 were told with false logs.
async fn deceived(sealed: bool) -> (World, Process) {
    let world = world(12).await;
    let process = world.write().await;
    for number in 0..=9 {
        let mut block = Block::clone(&world.sim.block(number).expect("it exists"));
        block.verified = Verify::Full;
        if (3..9).contains(&number) {
            block.verified = Verify::Off;
            Lie::ChangeLog.tell(&mut block);
        }
        process.writer.ingest_finalized_block(finalized(block)).await.expect("it follows");
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
async fn after_a_repair_tables_hold_what_the_right_blocks_say() {
    for sealed in [false, true] {
        let (world, process) = deceived(sealed).await;
        let (tables, processors) = (tables().await, all());
        let deriver = deriver(&world, &process, &tables, &processors);
        deriver.catch_up().await.expect("derived");
        let before = standing(&tables, PROCESSOR).await;
        repairs(&process).repair(3..9).await.expect("it is fetched again");
        let last = process.chain.index().last_replacement();
        assert!(standing(&tables, PROCESSOR).await.stale(last).is_some());
        deriver.catch_up().await.expect("derived");
        check(&world, &process, &tables, &processors).await;
        let after = standing(&tables, PROCESSOR).await;
        assert!(after.generation > before.generation);
        assert_eq!(after.replacements_applied, last);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_blocks_that_are_not_derived_starts_no_new_generation() {
    let world = world(40).await;
    let process = stored(&world).await;
    let tables = tables().await;
    let processors = vec![Probe::shared()];
    let lines = tables.lines(model::CHAIN, &processors).await.expect("lines");
    let some: Vec<Part> = vec![part(&lines[0], &world.sim, 0..5)];
    tables.commit(None, some).await.expect("stored");
    process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
    let from = process.chain.index().replacements_after(0).await.expect("read")[0].blocks.start;
    assert!(from >= 5, "{from}");
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.load().await.expect("lines");
    deriver.apply_replacements(None).await.expect("applied");
    let now = standing(&tables, PROCESSOR).await;
    assert_eq!((now.generation, now.replacements_applied), (lines[0].generation, 1));
    assert!(!deriver.is_building());
    process.catch_up().await.expect("it comes back");
    deriver.catch_up().await.expect("derived");
    check(&world, &process, &tables, &processors).await;
}

#[tokio::test(start_paused = true)]
async fn rows_of_blocks_that_were_read_before_a_replacement_are_refused_after_it() {
    let world = world(40).await;
    let process = stored(&world).await;
    let tables = tables().await;
    let processors = vec![Probe::shared()];
    let lines = tables.lines(model::CHAIN, &processors).await.expect("lines");
    // Derived, and not yet stored.
    let dead = part(&lines[0], &world.sim, 30..35);
    process.writer.resolve(Resolution::RebuildFrom(20)).await.expect("it is stored");
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.load().await.expect("lines");
    deriver.apply_replacements(None).await.expect("applied");
    let refused = tables.commit(None, vec![dead]).await;
    assert!(matches!(refused, Err(Error::Overtaken { .. })), "{refused:?}");
    assert!(tables.covered(&lines[0]).await.expect("read").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_generation_that_is_built_is_dropped_when_blocks_it_has_are_replaced() {
    let world = world(40).await;
    let process = stored(&world).await;
    let (tables, probe) = (tables().await, Probe::shared());
    let processors = vec![Arc::clone(&probe)];
    let deriver = deriver(&world, &process, &tables, &processors);
    deriver.catch_up().await.expect("derived");
    process.writer.resolve(Resolution::RebuildFrom(30)).await.expect("it is stored");
    process.catch_up().await.expect("it comes back");
    deriver.apply_replacements(None).await.expect("applied");
    assert!(deriver.is_building());
    deriver.history_step(None, logmill_work::intervals::From::Below).await.expect("some of it");
    let building = || async { tables.building(model::CHAIN, PROCESSOR).await.expect("read") };
    assert!(building().await.is_some_and(|blocks| blocks > 0));
    process.writer.resolve(Resolution::RebuildFrom(0)).await.expect("it is stored");
    process.catch_up().await.expect("it comes back");
    process.fill().await.expect("it comes back");
    deriver.apply_replacements(None).await.expect("applied");
    assert_eq!(building().await, Some(0), "it begins again");
    deriver.catch_up().await.expect("derived");
    check(&world, &process, &tables, &processors).await;
    assert_eq!(standing(&tables, PROCESSOR).await.replacements_applied, 2);
}

#[tokio::test(start_paused = true)]
async fn without_room_no_generation_is_begun_and_the_reason_is_shown_until_there_is() {
    let world = world(30).await;
    let process = stored(&world).await;
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
    let last = process.chain.index().last_replacement();
    let why = standing(&tables, PROCESSOR).await.stale(last).expect("old rows are marked");
    assert!(why.contains("bytes free"), "{why}");
    of(0).catch_up().await.expect("there is room");
    check(&world, &process, &tables, &processors).await;
    assert_eq!(standing(&tables, PROCESSOR).await.stale(last), None);
}

#[tokio::test(start_paused = true)]
async fn derivers_that_run_obey_a_replacement_by_themselves() {
    let (world, process) = deceived(true).await;
    let (tables, processors) = (tables().await, all());
    let deriver = deriver(&world, &process, &tables, &processors);
    let stop = tokio::sync::Notify::new();
    let reader = Reader::new(tables.clone(), model::CHAIN);
    let until = async |seq: u64| loop {
        let all = reader.standings(&[]).await.expect("read");
        let view = process.chain.view().await.expect("read");
        let has_all = |one: &Standing| view.covered().iter().all(|range| one.all().covers(range));
        let is_done = |one: &Standing| one.replacements_applied == seq && has_all(one);
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

/// One is enough, since every processor goes the same way; this one has every kind of column and fold.
fn some() -> Vec<Arc<dyn Processor>> {
    vec![Probe::shared()]
}

/// How blocks are replaced.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The chain was reset, and the index is rebuilt from block 0 on.
    Reset,
    /// Blocks of the tail, or of chunks, had false logs and are repaired.
    Repair { sealed: bool },
}

/// Replaces blocks and derives, over stores that die or fail at one operation; then another process finishes.
async fn replace(way: Way, faults: &Arc<Faults>) {
    let (world, process) = match way {
        Way::Reset => {
            let world = world(8).await;
            let process = stored(&world).await;
            (world, process)
        }
        Way::Repair { sealed } => deceived(sealed).await,
    };
    let database = Database::memory().await;
    let plain = Tables::open(database.open().await).await.expect("tables");
    let processors = some();
    deriver(&world, &process, &plain, &processors).catch_up().await.expect("derived");
    process.die();
    world.pause();
    let world = match way {
        Way::Reset => reset(&world, 7).await,
        Way::Repair { .. } => world,
    };
    let follower = world.open().await;
    let mut heard = follower.changes();
    let disturbed = plain.through(plain.sql().with_faults(Arc::clone(faults)));
    let stores = through(&world.stores, faults);
    if let Ok(process) = world.write_as("one", &stores, &world.source()).await {
        // Dead, or only hurt: the next process finishes.
        let _ = life(way, &world, &process, &disturbed, &processors).await;
    }
    world.pause();
    let process = world.write_as("two", &world.stores, &world.source()).await.expect("it opens");
    let restarted = Tables::open(database.open().await).await.expect("tables");
    life(way, &world, &process, &restarted, &processors).await.expect("nothing is in the way");
    check(&world, &process, &restarted, &processors).await;
    let last = process.chain.index().last_replacement();
    for processor in &processors {
        assert_eq!(standing(&restarted, processor.name()).await.stale(last), None);
    }
    follower.follow().await.expect("it follows");
    check_heard(&mut heard);
}

/// What the operator and the process do, however much of it was done before.
async fn life(
    way: Way,
    world: &World,
    process: &Process,
    tables: &Tables,
    processors: &[Arc<dyn Processor>],
) -> Result<()> {
    match way {
        Way::Reset if process.chain.index().last_replacement() == 0 => {
            process.writer.resolve(Resolution::RebuildFrom(0)).await?;
        }
        Way::Reset => {}
        Way::Repair { .. } => repairs(process).repair(3..9).await?,
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

fn through(stores: &Stores, faults: &Arc<Faults>) -> Stores {
    let (meta, blobs) = (Arc::clone(&stores.meta), Arc::clone(&stores.blobs));
    Stores {
        meta: Arc::new(Faulty::new(meta, Arc::clone(faults))),
        blobs: Arc::new(Faulty::new(blobs, Arc::clone(faults))),
        ..stores.clone()
    }
}

async fn matrix(way: Way) {
    let counted = Faults::none();
    replace(way, &counted).await;
    let operations = counted.operations();
    assert!(operations > 50, "only {operations} operations");
    for operation in 0..operations {
        replace(way, &Faults::at(operation, Fault::CrashBefore)).await;
    }
    // To die after an operation is mostly to die before the next; and what does not kill goes one way through the retries,
    // wherever it strikes.
    for operation in (0..operations).step_by(8) {
        let fault = OTHERS[usize::try_from(operation / 8).expect("few") % OTHERS.len()];
        replace(way, &Faults::at(operation, fault)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_death_anywhere_in_a_rebuild_leaves_tables_that_become_those_of_the_new_chain() {
    matrix(Way::Reset).await;
}

#[tokio::test(start_paused = true)]
async fn a_death_anywhere_in_a_repair_of_the_tail_leaves_tables_that_become_right() {
    matrix(Way::Repair { sealed: false }).await;
}

#[tokio::test(start_paused = true)]
async fn a_death_anywhere_in_a_repair_of_chunks_leaves_tables_that_become_right() {
    matrix(Way::Repair { sealed: true }).await;
}
