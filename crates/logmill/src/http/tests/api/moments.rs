//! What an answer is based on: coverage, completeness, finality, and one branch of the chain.

use logmill_pipeline::derive::Reader;
use serde_json::json;

use super::super::ground::CHAIN_ID;
use super::rich::{PROXY, Rich, SIMULATED};
use super::world::{World, blocks, sim};

#[tokio::test]
async fn a_sum_is_called_a_balance_only_if_all_of_the_tokens_life_is_covered() {
    let whole = Rich::from(0).await;
    let part = Rich::from(3).await;
    let path = format!("/accounts/{}/holdings", whole.holder);
    for holding in whole.world.all(&path, 100).await {
        assert_eq!((&holding["complete"], &holding["balance"]), (&true.into(), &holding["delta"]));
    }
    let born = part.born.to_string().to_lowercase();
    let holdings = part.world.all(&path, 100).await;
    assert!(holdings.len() > 1);
    for holding in &holdings {
        let is_born = holding["token"] == born;
        assert_eq!(holding["complete"], is_born, "{holding}");
        assert_eq!(holding["balance"].is_null(), !is_born);
        assert_eq!(holding["negative"].is_null(), !is_born);
    }
    let born = part.world.get(&format!("/tokens/{}", part.born)).await;
    assert_eq!(born["complete"], true);
    assert!(born["createdBlock"].as_u64().is_some_and(|block| block >= 3));
    let other = part.world.get(&format!("/tokens/{}", part.pool.1[0])).await;
    assert_eq!((&other["complete"], &other["createdBlock"]), (&false.into(), &().into()));
    let path = format!("/accounts/{}/balances?token=", part.holder);
    let days = part.world.get(&format!("{path}{}", part.pool.1[0])).await;
    assert_eq!(
        (&days["items"][0]["closing"], &days["items"][0]["complete"]),
        (&().into(), &false.into())
    );
    let days = part.world.get(&format!("{path}{}", part.born)).await;
    assert_eq!(days["items"][0]["closing"], days["items"][0]["sum"]);
    let holders = part.world.get(&format!("/tokens/{}/holders", part.born)).await;
    assert_eq!(holders["items"][0]["complete"], true);
    let covered = json!([{"from": 3, "to": SIMULATED + 3}]);
    assert_eq!(holders["asOf"]["covered"], covered);
}

#[tokio::test]
async fn an_answer_says_what_it_is_based_on() {
    let rich = Rich::from(0).await;
    let head = rich.scan.blocks.last().expect("a block").at();
    let expected = json!({
        "block": head.number,
        "hash": head.hash,
        "final": SIMULATED,
        "covered": [{"from": 0, "to": head.number}],
        "ranges": 1,
        "complete": true,
        "reason": null,
    });
    for path in rich.requests().values() {
        assert_eq!(rich.world.get(path).await["asOf"], expected, "{path}");
    }
    let status = rich.world.get("/status").await;
    assert_eq!(status["chainId"], CHAIN_ID);
    assert_eq!((&status["head"]["hash"], &status["complete"]), (&json!(head.hash), &true.into()));
    let checkpoints = status["checkpoints"].as_array().expect("a list");
    assert_eq!(checkpoints.len(), 12);
    for checkpoint in checkpoints {
        assert_eq!(checkpoint["covered"], json!([{"from": 0, "to": SIMULATED}]), "{checkpoint}");
        assert_eq!((&checkpoint["tip"], &checkpoint["missing"]), (&head.number.into(), &0.into()));
    }
    for (block, expected) in [(0, "final"), (SIMULATED, "final"), (head.number, "tip")] {
        let found = rich.world.get(&format!("/blocks/{block}")).await;
        assert_eq!(found["status"], expected, "{block}");
    }
}

#[tokio::test]
async fn a_tip_that_changes_under_a_request_is_noticed() {
    let sim = sim(8);
    sim.grow(20);
    let world = World::of(blocks(&sim, 0..16), blocks(&sim, 16..21)).await;
    let reader = Reader::new(world.tables.clone(), CHAIN_ID);
    let before = reader.standings(&["token_worker", "evm_worker"]).await.expect("read");
    assert_eq!(before.len(), 2);
    assert!(before.iter().all(|one| one.tip.0.len() == 5 && one.done.covers(&(0..16))));
    assert_eq!(reader.standings(&[]).await.expect("read").len(), 12);
    let first = world.get("/tokens").await;
    sim.reorg(3, 3).expect("it can be reorganised");
    world.reorg(blocks(&sim, 16..21)).await;
    let after = reader.standings(&["token_worker", "evm_worker"]).await.expect("read");
    assert!(before.iter().zip(&after).all(|(a, b)| a.tip != b.tip && a.done == b.done));
    let second = world.get("/tokens").await;
    assert_eq!(first["asOf"]["block"], second["asOf"]["block"]);
    assert_ne!(first["asOf"]["hash"], second["asOf"]["hash"]);
}

#[tokio::test]
async fn the_tip_changes_what_final_blocks_say() {
    let rich = Rich::from(0).await;
    let born = rich.born;
    let moved: u64 = (SIMULATED + 1..SIMULATED + 4).sum();
    let holders = rich.world.all(&format!("/tokens/{born}/holders"), 1).await;
    let balances: Vec<(String, String)> = holders
        .iter()
        .map(|one| {
            let text = |name: &str| one[name].as_str().expect("text").to_owned();
            (text("address"), text("balance"))
        })
        .collect();
    let holder = rich.holder.to_string().to_lowercase();
    let proxy = PROXY.to_string().to_lowercase();
    let expected = [(holder, (1_000 - moved).to_string()), (proxy, moved.to_string())];
    assert_eq!(balances, expected);
}
