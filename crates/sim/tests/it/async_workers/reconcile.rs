//! Tables against what contracts say.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::{Address, B256, U256};
use logmill_pipeline::async_workers::reconcile::{ReconcileSettings, Reconciler};
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker};
use logmill_sim::Database;

use super::fake::Says;
use super::ground::{CHAIN, Ground, Move, account, data, word};
use crate::work::{on_both, simulate};

const OWNER_OF: [u8; 4] = [0x63, 0x52, 0x21, 0x1e];
const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];
const BALANCE_OF_ITEM: [u8; 4] = [0x00, 0xfd, 0xd5, 0x8e];
const FLAGS: &str = "SELECT kind, verdict, expected, observed, block FROM reconciliation
    ORDER BY kind, verdict, expected";
const FOLDS: &str = "SELECT nft_id, owner, last_height FROM nft_ownership ORDER BY nft_id";

async fn worker(ground: &Ground) -> AsyncWorker {
    let settings = ReconcileSettings::default();
    let work = Reconciler::open(ground.tables.clone(), CHAIN, ground.state(), settings).await;
    let work = Arc::new(work.expect("tables"));
    AsyncWorker::new(work, ground.tables.clone(), CHAIN, AsyncSettings::default())
}

fn id(id: u64) -> B256 {
    B256::from(U256::from(id))
}

/// Items and balances, some of which are not as their logs say.
fn tell(ground: &Ground) -> Vec<(u64, Move)> {
    let (apes, multi, coin) = (account(1), account(2), account(3));
    let (good, bad) = (account(8), account(9));
    let node = &ground.node;
    let ape = |id: u64, to: Address| (5, Move::Nft { contract: apes, id: U256::from(id), to });
    node.tell(apes, &data(OWNER_OF, &[id(1)]), Says::Bytes(good.into_word().to_vec()));
    node.tell(apes, &data(OWNER_OF, &[id(2)]), Says::Bytes(bad.into_word().to_vec()));
    node.tell(apes, &data(OWNER_OF, &[id(3)]), Says::Error(3, "execution reverted"));
    let of_item = data(BALANCE_OF_ITEM, &[good.into_word(), id(1)]);
    node.tell(multi, &of_item, Says::Bytes(word(4)));
    node.tell(coin, &data(BALANCE_OF, &[good.into_word()]), Says::Bytes(word(100)));
    node.tell(coin, &data(BALANCE_OF, &[bad.into_word()]), Says::Bytes(word(95)));
    let item = |quantity| Move::Batch { contract: multi, id: U256::ONE, to: good, quantity };
    let paid = |to, amount| Move::Ft { token: coin, to, amount };
    vec![
        ape(1, good),
        ape(2, good),
        ape(3, good),
        ape(4, Address::ZERO),
        (6, item(1)),
        (6, item(3)),
        (7, paid(good, 60)),
        (7, paid(good, 40)),
        (7, paid(bad, 100)),
    ]
}

#[test]
fn what_contracts_say_is_compared_flagged_and_changes_nothing() {
    on_both(async |database| {
        let ground = Ground::new(database).await;
        let moves = tell(&ground);
        ground.derive(0..900, &moves).await;
        let folds = ground.dump(FOLDS).await;
        let worker = worker(&ground).await;
        worker.plan().await.expect("a plan");
        assert_eq!(ground.work(&worker.kind(), &worker).await, 0);
        let (good, bad) = (format!("{:#x}", account(8)), format!("{:#x}", account(9)));
        let row = |kind: &str, verdict: &str, expected: &str, observed: Option<&str>| {
            let observed =
                observed.map_or_else(|| "Null".to_owned(), |text| format!("Text({text:?})"));
            format!(
                "Row([Text({kind:?}), Text({verdict:?}), Text({expected:?}), {observed}, Int(899)])"
            )
        };
        let zero = format!("{:#x}", Address::ZERO);
        let expected = [
            row("ft_balance", "agrees", "100", Some("100")),
            row("ft_balance", "differs", "100", Some("95")),
            row("nft_balance", "agrees", "4", Some("4")),
            // What was burnt, and has no owner to be named.
            row("nft_owner", "agrees", &zero, None),
            row("nft_owner", "agrees", &good, Some(&good)),
            row("nft_owner", "differs", &good, Some(&bad)),
            row("nft_owner", "reverts", &good, None),
        ];
        assert_eq!(ground.dump(FLAGS).await, expected);
        assert_eq!(ground.dump(FOLDS).await, folds);
        let kept = ground.dump("SELECT count(*) FROM observation WHERE block = 899").await;
        assert_eq!(kept, ["Row([Int(7)])"]);
    });
}

#[test]
fn nothing_is_compared_while_a_block_is_missing() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let worker = worker(&ground).await;
        let moves = tell(&ground);
        // Not from the first block on.
        ground.derive(1..900, &moves).await;
        assert_eq!(worker.plan().await.expect("a plan"), 0);
        assert_eq!(worker.standing().await.expect("a database").checkpoint, None);
        // From the first block on, and something above a gap counts as well.
        ground.derive(0..1, &[]).await;
        ground.derive(950..960, &[]).await;
        assert_eq!(worker.plan().await.expect("a plan"), 1);
        assert_eq!(ground.work(&worker.kind(), &worker).await, 1, "it is of no one block");
        assert_eq!(ground.node.asked(), 0);
        ground.derive(900..950, &[]).await;
        ground.pass_time();
        assert_eq!(ground.work(&worker.kind(), &worker).await, 0);
        assert_eq!(
            ground.dump("SELECT DISTINCT block FROM reconciliation").await,
            ["Row([Int(959)])"]
        );
    });
}

#[test]
fn the_state_of_another_block_proves_nothing() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let worker = worker(&ground).await;
        let moves = tell(&ground);
        ground.derive(0..900, &moves).await;
        ground.node.floor.store(50_000, Ordering::SeqCst);
        worker.plan().await.expect("a plan");
        assert_eq!(ground.work(&worker.kind(), &worker).await, 1);
        assert!(ground.dump(FLAGS).await.is_empty());
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(0));
    });
}
