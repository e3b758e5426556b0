//! Generations of tables: what makes a new one, and how it gets its indexes.

use std::sync::Arc;

use logmill_chain::sim::WETH;
use logmill_io::params;
use logmill_pipeline::derive::{DeriveSettings, Deriver, Tables};
use logmill_pipeline::processors;
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;

use super::chain_world::{World, sim};
use super::life::{all, settings};
use super::model;
use super::ranges::part;

/// How many mints and burns there are of the token that wraps.
async fn wraps(tables: &Tables) -> u64 {
    let text = "SELECT count(*) FROM ft_transfers
        WHERE chain_id = 1337 AND token_contract_address = $1 AND kind <> 0";
    let found = tables.sql().query(text, params![WETH.as_slice()]).await.expect("a view");
    found.row().expect("one").count(0).expect("a number")
}

#[tokio::test(start_paused = true)]
async fn another_token_setting_builds_the_tables_that_it_changes_anew() {
    let world = World::new(21, Some(5)).await;
    world.sim.grow(60);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    process.fill().await.expect("nothing is in the way");
    let tables = Tables::open(Database::memory().await.open().await).await.expect("tables");
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
    next.load().await.expect("lines");
    assert!(next.is_building());
    assert_eq!(wraps(&tables).await, before, "the old ones serve until the new ones are complete");
    next.catch_up().await.expect("derived");
    assert_eq!((next.is_building(), wraps(&tables).await), (false, 0));
    for (processor, expected) in
        [("token_worker", 2), ("ft_holdings_worker", 2), ("evm_worker", 1), ("fees_worker", 1)]
    {
        assert_eq!(generation(processor).await, Some(expected), "{processor}");
    }
    // The same settings again are no reason for anything.
    let again = deriver(&known);
    again.load().await.expect("lines");
    assert!(!again.is_building());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_make_indexes_at_once_make_them_all_and_none_fails() {
    let server = PostgresServer::start();
    let database = Database::postgres(&server);
    let (chain, mut handles) = (sim(22, None), Vec::new());
    chain.grow(10);
    for _ in 0..4 {
        handles.push(Tables::open(database.open().await).await.expect("tables"));
    }
    let lines = handles[0].lines(model::CHAIN, &all()).await.expect("lines");
    for line in &lines {
        handles[0].commit(None, vec![part(line, &chain, 0..10)]).await.expect("stored");
    }
    for line in &lines {
        let making = handles.iter().map(|tables| tables.make_indexes(line));
        for made in futures::future::join_all(making).await {
            made.unwrap_or_else(|error| panic!("{}: {error:?}", line.processor.name()));
        }
    }
    let declared = lines.iter().flat_map(|line| line.processor.tables());
    let declared: usize = declared.map(|table| table.indexes.len()).sum();
    let count = async |text: &str| {
        let found = handles[0].sql().query(text, params![]).await.expect("read");
        usize::try_from(found.row().expect("one").count(0).expect("a number")).expect("few")
    };
    let made = "SELECT count(*) FROM pg_indexes
        WHERE schemaname = current_schema() AND indexname ~ '^c1337_g1_.*_i[0-9]+$'
            AND tablename NOT LIKE '%tip'";
    assert_eq!(count(made).await, declared);
    let noted = "SELECT count(*) FROM derive_line WHERE indexed = 1";
    assert_eq!(count(noted).await, lines.len());
}
