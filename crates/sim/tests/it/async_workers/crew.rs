//! All workers of a chain together, as a server runs them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use alloy_primitives::{B256, U256};
use logmill_chain::ChainSource;
use logmill_pipeline::async_workers::{Crew, CrewSettings, Jobs};
use logmill_sim::Database;

use super::fake::Says;
use super::ground::{CHAIN, Ground, Move, account, data, string, word};
use crate::work::simulate;

async fn open(ground: &Ground, settings: &CrewSettings) -> Crew {
    let source = Arc::clone(&ground.node) as Arc<dyn ChainSource>;
    Crew::open(&ground.tables, CHAIN, source, settings).await.expect("tables")
}

#[test]
fn a_crew_does_all_there_is_and_says_how_far_it_is() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let (coin, apes, holder) = (account(1), account(2), account(9));
        let of_id = |selector| data(selector, &[B256::with_last_byte(1)]);
        let uri = string(br#"data:application/json,{"name":"Ape"}"#);
        ground.node.tell(apes, &of_id([0xc8, 0x7b, 0x56, 0xdd]), Says::Bytes(uri));
        let owner = holder.into_word().to_vec();
        ground.node.tell(apes, &of_id([0x63, 0x52, 0x21, 0x1e]), Says::Bytes(owner));
        ground.node.tell(coin, &[0x06, 0xfd, 0xde, 0x03], Says::Bytes(string(b"Coin")));
        let of_holder = data([0x70, 0xa0, 0x82, 0x31], &[holder.into_word()]);
        ground.node.tell(coin, &of_holder, Says::Bytes(word(5)));
        let ape = Move::Nft { contract: apes, id: U256::ONE, to: holder };
        let paid = Move::Ft { token: coin, to: holder, amount: 5 };
        ground.derive(0..2_500, &[(5, ape), (2_400, paid)]).await;
        let crew = open(&ground, &CrewSettings::default()).await;
        let clock = Arc::clone(ground.sql().clock());
        crew.run("me", clock.sleep(Duration::from_secs(120))).await.expect("no trouble");
        let standings = crew.standings().await.expect("a database");
        let names: Vec<&str> = standings.iter().map(|standing| standing.name).collect();
        let expected =
            ["token_metadata_worker", "nft_item_metadata_worker", "nft_ownership_reconciler"];
        assert_eq!(names, expected);
        for standing in &standings {
            assert_eq!((standing.checkpoint, standing.missing), (Some(2_500), 0), "{standing:?}");
            assert_eq!(standing.jobs, Jobs::default(), "{standing:?}");
            assert!(standing.waits_for.contains(&"token_worker"));
        }
        assert_eq!(standings[1].items, Some(Jobs::default()));
        let named = "SELECT name FROM token_metadata WHERE name IS NOT NULL
            UNION ALL SELECT name FROM nft_items ORDER BY 1";
        let names = ground.dump(named).await;
        assert_eq!(names, [r#"Row([Text("Ape")])"#, r#"Row([Text("Coin")])"#]);
        let flags = "SELECT verdict, count(*) FROM reconciliation GROUP BY verdict";
        assert_eq!(ground.dump(flags).await, [r#"Row([Text("agrees"), Int(2)])"#]);
        // What is known needs no node any more.
        ground.node.is_down.store(true, Ordering::SeqCst);
        ground.run("DELETE FROM token_metadata").await;
        ground.run("DELETE FROM nft_items").await;
        assert_eq!(crew.rebuild().await.expect("observations"), (2, 1));
        assert_eq!(ground.dump(named).await, names);
    });
}

#[test]
fn what_is_switched_off_does_not_run() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let paid = Move::Ft { token: account(1), to: account(9), amount: 5 };
        ground.derive(0..100, &[(5, paid)]).await;
        let settings = CrewSettings {
            token_metadata: false,
            nft_items: false,
            reconciler: false,
            ..CrewSettings::default()
        };
        let crew = open(&ground, &settings).await;
        let clock = Arc::clone(ground.sql().clock());
        crew.run("me", clock.sleep(Duration::from_secs(60))).await.expect("no trouble");
        assert!(crew.standings().await.expect("a database").is_empty());
        assert_eq!(ground.node.asked(), 0);
    });
}
