//! The crash matrix of metadata: fail, lose the answer or die at every operation; restart, finish, compare.

use std::sync::{Arc, LazyLock};

use alloy_primitives::{B256, U256};
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{CrashMatrix, Faults, SystemClock};
use logmill_pipeline::Result;
use logmill_pipeline::async_workers::contract_code::ContractCode;
use logmill_pipeline::async_workers::nft_items::{Clients, ItemSettings, NftItems, item_kind};
use logmill_pipeline::async_workers::token_metadata::TokenMetadata;
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker};
use logmill_pipeline::derive::Tables;
use logmill_sim::Database;
use logmill_sim::scripted_node::ScriptedAnswer;
use logmill_work::Handler;

use super::fixture::{CHAIN, LEASE, Move, WorkerFixture, account, data, run_one, string, word};
use crate::work::simulate;

struct Process {
    tables: Tables,
    items: NftItems,
    workers: [AsyncWorker; 2],
}

impl Process {
    async fn open(fixture: &WorkerFixture, tables: Tables) -> Result<Self> {
        // Nothing is fetched here, and reading the machine's certificates would take longer than everything else.
        static CLIENT: LazyLock<GuardedClient> = LazyLock::new(|| {
            GuardedClient::new(SystemClock::shared(), GuardedSettings::default()).expect("a client")
        });
        let clients = Clients { web: CLIENT.clone(), gateways: CLIENT.clone() };
        let settings = ItemSettings::default();
        let items =
            NftItems::open(tables.clone(), CHAIN, fixture.state(), clients, settings).await?;
        let tokens = TokenMetadata::open(tables.clone(), CHAIN, fixture.state()).await?;
        let over = |work| AsyncWorker::new(work, tables.clone(), CHAIN, AsyncSettings::default());
        let workers = [over(Arc::new(tokens)), over(Arc::new(items.clone()))];
        Ok(Self { tables, items, workers })
    }

    /// Plans, and tries every due job once.
    async fn round(&self) -> Result<()> {
        for worker in &self.workers {
            worker.plan().await?;
            self.jobs(&worker.kind(), worker).await?;
        }
        self.jobs(&item_kind(CHAIN), &self.items).await
    }

    async fn jobs(&self, kind: &str, handler: &dyn Handler) -> Result<()> {
        let queue = self.tables.queue();
        queue.reap(kind).await?;
        for claim in queue.claim(kind, 100, LEASE, "test").await? {
            run_one(queue, claim, handler).await;
        }
        Ok(())
    }
}

async fn run(faults: &Arc<Faults>) -> Vec<Vec<String>> {
    let fixture = WorkerFixture::new(Database::memory().await).await;
    let (token, apes) = (account(1), account(2));
    fixture.node.script(token, &[0x06, 0xfd, 0xde, 0x03], ScriptedAnswer::Bytes(string(b"Coin")));
    fixture.node.script(token, &[0x31, 0x3c, 0xe5, 0x67], ScriptedAnswer::Bytes(word(18)));
    let uri = string(br#"data:application/json,{"name":"Ape"}"#);
    let selector = [0xc8, 0x7b, 0x56, 0xdd];
    fixture.node.script(
        apes,
        &data(selector, &[B256::with_last_byte(1)]),
        ScriptedAnswer::Bytes(uri),
    );
    let item = |id: u64| Move::Nft { contract: apes, id: U256::from(id), to: account(9) };
    let paid = Move::Ft { token, to: account(9), amount: 5 };
    fixture.derive(0..1_100, &[(5, paid), (6, item(1)), (1_050, item(2))]).await;
    // The tables exist already: the faults hit the work.
    Process::open(&fixture, fixture.tables.clone()).await.expect("tables");
    let disturbed = fixture.tables.through(fixture.sql().with_faults(Arc::clone(faults)));
    if let Ok(process) = Process::open(&fixture, disturbed).await {
        // Whether the process died or only failed: the next one finishes.
        let _ = process.round().await;
    }
    let next = Process::open(&fixture, fixture.tables.clone()).await.expect("tables");
    for _ in 0..2 {
        fixture.pass_time();
        next.round().await.expect("nothing is in the way");
    }
    for worker in &next.workers {
        let progress = worker.progress().await.expect("a database");
        assert_eq!((progress.checkpoint, progress.missing), (Some(1_100), 0), "{progress:?}");
    }
    let mut image = Vec::new();
    for text in [
        "SELECT * FROM token_metadata ORDER BY contract_address",
        "SELECT * FROM nft_items ORDER BY nft_id",
        "SELECT kind, subject, block, status, value FROM observation ORDER BY kind, subject, block",
        "SELECT kind, key, state FROM job ORDER BY kind, key",
    ] {
        image.push(fixture.dump(text).await);
    }
    image
}

#[test]
fn metadata_survives_a_fault_at_every_operation() {
    simulate(async {
        let undisturbed =
            CrashMatrix::of_at_least(41).check(async |faults| run(&faults).await).await;
        let lengths: Vec<usize> = undisturbed.iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 2, 14, 6], "{undisturbed:#?}");
    });
}

/// Plans and tries every due job once, like a process that may die on the way.
async fn round_of_code(fixture: &WorkerFixture, tables: Tables) -> Result<AsyncWorker> {
    let code = ContractCode::open(tables.clone(), CHAIN, fixture.state()).await?;
    let over = AsyncWorker::new(Arc::new(code), tables.clone(), CHAIN, AsyncSettings::default());
    over.plan().await?;
    let queue = tables.queue().clone();
    queue.reap(&over.kind()).await?;
    for claim in queue.claim(&over.kind(), 100, LEASE, "test").await? {
        run_one(&queue, claim, &over).await;
    }
    Ok(over)
}

async fn run_code(faults: &Arc<Faults>) -> Vec<String> {
    let fixture = WorkerFixture::new(Database::memory().await).await;
    let created = |number: u8| Move::Create { contract: account(number) };
    for number in 1..=3 {
        fixture.node.script(account(number), &[], ScriptedAnswer::Bytes(vec![number; 3]));
    }
    fixture.derive(0..1_100, &[(5, created(1)), (6, created(2)), (1_050, created(3))]).await;
    let disturbed = fixture.tables.through(fixture.sql().with_faults(Arc::clone(faults)));
    // Whether the process died or only failed: the next one finishes.
    let _ = round_of_code(&fixture, disturbed).await;
    for _ in 0..2 {
        fixture.pass_time();
        round_of_code(&fixture, fixture.tables.clone()).await.expect("nothing is in the way");
    }
    let last = round_of_code(&fixture, fixture.tables.clone()).await.expect("a database");
    let progress = last.progress().await.expect("a database");
    assert_eq!((progress.checkpoint, progress.missing), (Some(1_100), 0), "{progress:?}");
    fixture.dump("SELECT subject, block, status, value FROM observation ORDER BY subject").await
}

#[test]
fn code_survives_a_fault_at_every_operation() {
    simulate(async {
        let undisturbed =
            CrashMatrix::of_at_least(1).check(async |faults| run_code(&faults).await).await;
        assert_eq!(undisturbed.len(), 3);
    });
}
