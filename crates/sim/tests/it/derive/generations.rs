//! Generations of tables: when a new one is built, and how it gets its indexes.

use std::sync::Arc;

use logmill_chain::Address;
use logmill_chain::sim::{FEE_COLLECTOR, WETH};
use logmill_io::params;
use logmill_pipeline::derive::store::Permit;
use logmill_pipeline::derive::{DeriveSettings, Deriver, Processor, Reader, Tables};
use logmill_pipeline::processors;
use logmill_pipeline::processors::fees::Fees;
use logmill_sim::Database;
use logmill_sim::chain_world::{World, sim};
use logmill_sim::postgres::PostgresServer;

use super::life::{all, settings, tables};
use super::model;
use super::ranges::part;

/// Number of mints and burns of the wrapping token.
async fn wraps(tables: &Tables) -> u64 {
    let text = "SELECT count(*) FROM ft_transfers
        WHERE chain_id = 1337 AND token_contract_address = $1 AND kind <> 0";
    let found = tables.sql().query(text, params![format!("{WETH:#x}")]).await.expect("a view");
    found.row().expect("one").count(0).expect("a number")
}

#[tokio::test(start_paused = true)]
async fn another_token_setting_builds_the_affected_tables_again() {
    let world = World::new(21, Some(5)).await;
    world.sim.grow(60);
    let process = world.stored().await;
    let tables = tables().await;
    let deriver = |known: &processors::Settings| {
        let tokens = Arc::new(known.tokens.clone());
        let settings = DeriveSettings { tokens, ..settings() };
        let (chain, clock) = (process.chain.clone(), world.clock.clone());
        let all = processors::all(known);
        Deriver::new(chain, tables.clone(), all, settings, "test", clock)
    };
    let generation = async |name| tables.serving(model::CHAIN, name).await.expect("read");
    let mut known = processors::Settings::of_chain(model::CHAIN);
    known.tokens.wrapped_native.insert(WETH);
    deriver(&known).catch_up().await.expect("derived");
    let before = wraps(&tables).await;
    assert!(before > 0, "nothing was wrapped");
    known.tokens.wrapped_native.remove(&WETH);
    let next = deriver(&known);
    next.load().await.expect("generations");
    assert!(next.is_building());
    assert_eq!(wraps(&tables).await, before, "the old ones serve until the new ones are complete");
    next.catch_up().await.expect("derived");
    assert_eq!((next.is_building(), wraps(&tables).await), (false, 0));
    for (processor, expected) in
        [("token_worker", 2), ("ft_holdings_worker", 2), ("evm_worker", 1), ("fees_worker", 1)]
    {
        assert_eq!(generation(processor).await, Some(expected), "{processor}");
    }
    // The same settings again change nothing.
    let again = deriver(&known);
    again.load().await.expect("generations");
    assert!(!again.is_building());
}

/// Number of rows in a table or view.
async fn count(tables: &Tables, table: &str) -> u64 {
    let found = tables.sql().query(&format!("SELECT count(*) FROM {table}"), params![]).await;
    found.expect("a table").row().expect("one").count(0).expect("a number")
}

/// Number of fees in the view.
async fn fees(tables: &Tables) -> u64 {
    count(tables, "fee_events").await
}

/// Derives with fee collectors, then with none, which leaves `fee_events` without rows.
async fn emptied_by_settings(database: Database, finality_lag: u64) {
    let world = World::new(23, Some(finality_lag)).await;
    world.sim.grow(60);
    let process = world.stored().await;
    let tables = Tables::open(database.open().await).await.expect("tables");
    let with = |contracts: &[Address]| -> Arc<dyn Processor> {
        Arc::new(Fees { collectors: contracts.to_vec(), forwarders: Vec::new() })
    };
    let (named, none) = (with(&[FEE_COLLECTOR]), with(&[]));
    let deriver = |processor: &Arc<dyn Processor>| {
        let processors = [Arc::clone(processor)];
        super::life::deriver(&world, &process, &tables, &processors)
    };
    let reader = Reader::new(tables.clone(), model::CHAIN);
    let end = process.chain.index().replacement_position();
    let incomplete = async || {
        let progress = reader.progress(&["fees_worker"]).await.expect("read").remove(0);
        (progress.generation, progress.incomplete(end))
    };
    deriver(&named).catch_up().await.expect("derived");
    let before = fees(&tables).await;
    let of_final = count(&tables, "c1337_g1_fee_events").await;
    assert!(before > 0 && (of_final > 0) == (finality_lag < 60), "{of_final} of {before} fees");
    let kept = async || {
        let next = deriver(&none);
        next.catch_up().await.expect("it does what it can");
        // Rows of blocks that are not final follow the settings: nothing would remove a dead branch from them.
        assert_eq!(fees(&tables).await, of_final);
        let (generation, why) = incomplete().await;
        let why = why.expect("it says why");
        assert!(why.contains("collect.contract_address") && why.contains("fee_events"), "{why}");
        assert!(why.contains("rederive fees_worker --allow-empty"), "{why}");
        let status = next.status();
        let built = status.checkpoints.iter().find(|row| row.state == "building");
        assert_eq!(built.and_then(|row| row.incomplete.clone()), Some(why.clone()));
        let cannot = tables.cannot_serve(model::CHAIN, "fees_worker").await.expect("read");
        assert_eq!((generation, cannot), (1, Some(why)));
    };
    kept().await;
    // A restart does not resolve it.
    kept().await;
    // Restoring the settings does.
    deriver(&named).catch_up().await.expect("derived");
    assert_eq!((fees(&tables).await, incomplete().await), (before, (1, None)));
    assert_eq!(tables.building(model::CHAIN, "fees_worker").await.expect("read"), None);
    kept().await;
    // So does an operator's permission.
    let permit = Permit { allows_empty: true, ..Permit::default() };
    tables.rederive(model::CHAIN, &none, permit).await.expect("it is being built already");
    deriver(&none).catch_up().await.expect("derived");
    assert_eq!(fees(&tables).await, 0);
    assert!(matches!(incomplete().await, (2.., None)));
    // Rows that come back fill an empty table, which needs no permission.
    deriver(&named).catch_up().await.expect("derived");
    assert_eq!((fees(&tables).await, incomplete().await.1), (before, None));
}

#[test]
fn settings_that_would_leave_a_table_without_rows_wait_for_an_operator() {
    crate::work::on_both(|database| emptied_by_settings(database, 5));
}

#[tokio::test(start_paused = true)]
async fn settings_that_would_leave_a_table_without_rows_wait_even_if_nothing_is_final_yet() {
    emptied_by_settings(Database::memory().await, 100).await;
}

#[tokio::test(start_paused = true)]
async fn a_generation_of_reverted_settings_does_not_block_another() {
    let world = World::new(24, Some(5)).await;
    world.sim.grow(30);
    let process = world.stored().await;
    let tables = tables().await;
    let with = |collector: Address| -> Arc<dyn Processor> {
        Arc::new(Fees { collectors: vec![collector], forwarders: Vec::new() })
    };
    let (named, other) = (with(FEE_COLLECTOR), with(WETH));
    let deriver = |processor: &Arc<dyn Processor>| {
        super::life::deriver(&world, &process, &tables, &[Arc::clone(processor)])
    };
    deriver(&named).catch_up().await.expect("derived");
    // Begun, but not complete.
    deriver(&other).load().await.expect("generations");
    tables.rederive(model::CHAIN, &named, Permit::default()).await.expect("begun");
    deriver(&named).catch_up().await.expect("derived");
    let serving = tables.serving(model::CHAIN, "fees_worker").await.expect("read");
    assert!(serving > Some(1), "{serving:?}");
    assert_eq!(tables.building(model::CHAIN, "fees_worker").await.expect("read"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_create_indexes_concurrently_create_all_and_none_fails() {
    let server = PostgresServer::start();
    let database = Database::postgres(&server);
    let (chain, mut handles) = (sim(22, None), Vec::new());
    chain.grow(10);
    for _ in 0..4 {
        handles.push(Tables::open(database.open().await).await.expect("tables"));
    }
    let generations = handles[0].generations(model::CHAIN, &all()).await.expect("generations");
    for generation in &generations {
        handles[0].commit(None, vec![part(generation, &chain, 0..10)]).await.expect("stored");
    }
    for generation in &generations {
        let making = handles.iter().map(|tables| tables.make_indexes(generation));
        for made in futures::future::join_all(making).await {
            made.unwrap_or_else(|error| panic!("{}: {error:?}", generation.processor.name()));
        }
    }
    let declared = generations.iter().flat_map(|generation| generation.processor.tables());
    let declared: usize = declared.map(|table| table.indexes.len()).sum();
    let counted = async |text: &str| {
        let found = handles[0].sql().query(text, params![]).await.expect("read");
        usize::try_from(found.row().expect("one").count(0).expect("a number")).expect("few")
    };
    let made = "SELECT count(*) FROM pg_indexes
        WHERE schemaname = current_schema() AND indexname ~ '^c1337_g1_.*_i[0-9]+$'
            AND tablename NOT LIKE '%tip'";
    assert_eq!(counted(made).await, declared);
    let noted = "SELECT count(*) FROM derive_line WHERE indexed = 1";
    assert_eq!(counted(noted).await, generations.len());
}
