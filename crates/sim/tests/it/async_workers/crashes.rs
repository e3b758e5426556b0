//! The crash matrix of metadata: fail at every operation, lose the answer, die; start again, finish, compare.

use std::sync::{Arc, LazyLock};

use alloy_primitives::{B256, U256};
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{Fault, Faults, SystemClock};
use logmill_pipeline::Result;
use logmill_pipeline::async_workers::contract_code::ContractCode;
use logmill_pipeline::async_workers::nft_items::{Clients, ItemSettings, NftItems, item_kind};
use logmill_pipeline::async_workers::token_metadata::TokenMetadata;
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker};
use logmill_pipeline::derive::Tables;
use logmill_sim::Database;
use logmill_work::Handler;

use super::fake::Says;
use super::ground::{CHAIN, Ground, LEASE, Move, account, data, run_one, string, word};
use crate::work::simulate;

const FAULTS: [Fault; 4] = [Fault::Before, Fault::After, Fault::CrashBefore, Fault::CrashAfter];

struct Process {
    tables: Tables,
    items: NftItems,
    workers: [AsyncWorker; 2],
}

impl Process {
    async fn open(ground: &Ground, tables: Tables) -> Result<Self> {
        // Nothing is fetched here, and to read the machine's certificates takes longer than all the rest.
        static CLIENT: LazyLock<GuardedClient> = LazyLock::new(|| {
            GuardedClient::new(SystemClock::shared(), GuardedSettings::default()).expect("a client")
        });
        let clients = Clients { web: CLIENT.clone(), gateways: CLIENT.clone() };
        let settings = ItemSettings::default();
        let items =
            NftItems::open(tables.clone(), CHAIN, ground.state(), clients, settings).await?;
        let tokens = TokenMetadata::open(tables.clone(), CHAIN, ground.state()).await?;
        let over = |work| AsyncWorker::new(work, tables.clone(), CHAIN, AsyncSettings::default());
        let workers = [over(Arc::new(tokens)), over(Arc::new(items.clone()))];
        Ok(Self { tables, items, workers })
    }

    /// Plans, and tries every job that is due once.
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
    let ground = Ground::new(Database::memory().await).await;
    let (token, apes) = (account(1), account(2));
    ground.node.tell(token, &[0x06, 0xfd, 0xde, 0x03], Says::Bytes(string(b"Coin")));
    ground.node.tell(token, &[0x31, 0x3c, 0xe5, 0x67], Says::Bytes(word(18)));
    let uri = string(br#"data:application/json,{"name":"Ape"}"#);
    let selector = [0xc8, 0x7b, 0x56, 0xdd];
    ground.node.tell(apes, &data(selector, &[B256::with_last_byte(1)]), Says::Bytes(uri));
    let item = |id: u64| Move::Nft { contract: apes, id: U256::from(id), to: account(9) };
    let paid = Move::Ft { token, to: account(9), amount: 5 };
    ground.derive(0..1_100, &[(5, paid), (6, item(1)), (1_050, item(2))]).await;
    // The tables are there: what is disturbed is the work.
    Process::open(&ground, ground.tables.clone()).await.expect("tables");
    let disturbed = ground.tables.through(ground.sql().with_faults(Arc::clone(faults)));
    if let Ok(process) = Process::open(&ground, disturbed).await {
        // Dead, or only hurt: the next process finishes.
        let _ = process.round().await;
    }
    let next = Process::open(&ground, ground.tables.clone()).await.expect("tables");
    for _ in 0..2 {
        ground.pass_time();
        next.round().await.expect("nothing is in the way");
    }
    for worker in &next.workers {
        let standing = worker.standing().await.expect("a database");
        assert_eq!((standing.checkpoint, standing.missing), (Some(1_100), 0), "{standing:?}");
    }
    let mut image = Vec::new();
    for text in [
        "SELECT * FROM token_metadata ORDER BY contract_address",
        "SELECT * FROM nft_items ORDER BY nft_id",
        "SELECT kind, subject, block, status, value FROM observation ORDER BY kind, subject, block",
        "SELECT kind, key, state FROM job ORDER BY kind, key",
    ] {
        image.push(ground.dump(text).await);
    }
    image
}

#[test]
fn metadata_survives_a_fault_at_every_operation() {
    simulate(async {
        let counted = Faults::none();
        let undisturbed = run(&counted).await;
        let lengths: Vec<usize> = undisturbed.iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 2, 14, 6], "{undisturbed:#?}");
        let operations = counted.operations();
        assert!(operations > 40, "only {operations} operations");
        for operation in 0..operations {
            for fault in FAULTS {
                let faults = Faults::at(operation, fault);
                assert_eq!(run(&faults).await, undisturbed, "{fault:?} at {operation}");
                let died = matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
                assert_eq!(faults.crashed(), died, "{fault:?} at {operation} was reached");
            }
        }
    });
}

/// Plans and tries every job that is due once, as a process would that may die on the way.
async fn round_of_code(ground: &Ground, tables: Tables) -> Result<AsyncWorker> {
    let code = ContractCode::open(tables.clone(), CHAIN, ground.state()).await?;
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
    let ground = Ground::new(Database::memory().await).await;
    let created = |number: u8| Move::Create { contract: account(number) };
    for number in 1..=3 {
        ground.node.tell(account(number), &[], Says::Bytes(vec![number; 3]));
    }
    ground.derive(0..1_100, &[(5, created(1)), (6, created(2)), (1_050, created(3))]).await;
    let disturbed = ground.tables.through(ground.sql().with_faults(Arc::clone(faults)));
    // Dead, or only hurt: the next process finishes.
    let _ = round_of_code(&ground, disturbed).await;
    for _ in 0..2 {
        ground.pass_time();
        round_of_code(&ground, ground.tables.clone()).await.expect("nothing is in the way");
    }
    let last = round_of_code(&ground, ground.tables.clone()).await.expect("a database");
    let standing = last.standing().await.expect("a database");
    assert_eq!((standing.checkpoint, standing.missing), (Some(1_100), 0), "{standing:?}");
    ground.dump("SELECT subject, block, status, value FROM observation ORDER BY subject").await
}

#[test]
fn code_survives_a_fault_at_every_operation() {
    simulate(async {
        let counted = Faults::none();
        let undisturbed = run_code(&counted).await;
        assert_eq!(undisturbed.len(), 3);
        for operation in 0..counted.operations() {
            for fault in FAULTS {
                let faults = Faults::at(operation, fault);
                assert_eq!(run_code(&faults).await, undisturbed, "{fault:?} at {operation}");
            }
        }
    });
}
