//! The `asOf` of answers: coverage, completeness, finality, and one branch of the chain.

use logmill_pipeline::derive::Reader;
use serde_json::json;

use super::super::test_server::CHAIN_ID;
use super::derived_server::{DerivedServer, blocks, sim};
use super::sample_chain::{PROXY, SIMULATED, SampleChain};

#[tokio::test]
async fn a_sum_is_called_a_balance_only_if_the_tokens_whole_life_is_covered() {
    let whole = SampleChain::from(0).await;
    let part = SampleChain::from(3).await;
    let path = format!("/accounts/{}/holdings", whole.holder);
    for holding in whole.derived.all(&path, 100).await {
        assert_eq!((&holding["complete"], &holding["balance"]), (&true.into(), &holding["delta"]));
    }
    let born = part.born.to_string().to_lowercase();
    let holdings = part.derived.all(&path, 100).await;
    assert!(holdings.len() > 1);
    for holding in &holdings {
        let is_born = holding["token"] == born;
        assert_eq!(holding["complete"], is_born, "{holding}");
        assert_eq!(holding["balance"].is_null(), !is_born);
        assert_eq!(holding["negative"].is_null(), !is_born);
    }
    let born = part.derived.get(&format!("/tokens/{}", part.born)).await;
    assert_eq!(born["complete"], true);
    assert!(born["createdBlock"].as_u64().is_some_and(|block| block >= 3));
    let other = part.derived.get(&format!("/tokens/{}", part.pool.1[0])).await;
    assert_eq!((&other["complete"], &other["createdBlock"]), (&false.into(), &().into()));
    let path = format!("/accounts/{}/balances?token=", part.holder);
    let days = part.derived.get(&format!("{path}{}", part.pool.1[0])).await;
    assert_eq!(
        (&days["items"][0]["closing"], &days["items"][0]["complete"]),
        (&().into(), &false.into())
    );
    let days = part.derived.get(&format!("{path}{}", part.born)).await;
    assert_eq!(days["items"][0]["closing"], days["items"][0]["sum"]);
    let holders = part.derived.get(&format!("/tokens/{}/holders", part.born)).await;
    assert_eq!(holders["items"][0]["complete"], true);
    let covered = json!([{"from": 3, "to": SIMULATED + 3}]);
    assert_eq!(holders["asOf"]["covered"], covered);
}

#[tokio::test]
async fn an_answer_reports_the_blocks_it_is_based_on() {
    let sample = SampleChain::from(0).await;
    let head = sample.scan.blocks.last().expect("a block").at();
    let expected = json!({
        "block": head.number,
        "hash": head.hash,
        "final": SIMULATED,
        "covered": [{"from": 0, "to": head.number}],
        "ranges": 1,
        "complete": true,
        "reason": null,
    });
    for path in sample.requests().values() {
        assert_eq!(sample.derived.get(path).await["asOf"], expected, "{path}");
    }
    let status = sample.derived.get("/status").await;
    assert_eq!(status["chainId"], CHAIN_ID);
    assert_eq!((&status["head"]["hash"], &status["complete"]), (&json!(head.hash), &true.into()));
    let checkpoints = status["checkpoints"].as_array().expect("a list");
    assert_eq!(checkpoints.len(), 12);
    for checkpoint in checkpoints {
        assert_eq!(checkpoint["covered"], json!([{"from": 0, "to": SIMULATED}]), "{checkpoint}");
        assert_eq!((&checkpoint["tip"], &checkpoint["missing"]), (&head.number.into(), &0.into()));
    }
    for (block, expected) in [(0, "final"), (SIMULATED, "final"), (head.number, "tip")] {
        let found = sample.derived.get(&format!("/blocks/{block}")).await;
        assert_eq!(found["status"], expected, "{block}");
    }
}

#[tokio::test]
async fn a_tip_that_changes_during_a_request_is_detected() {
    let sim = sim(8);
    sim.grow(20);
    let derived = DerivedServer::of(blocks(&sim, 0..16), blocks(&sim, 16..21)).await;
    let reader = Reader::new(derived.tables.clone(), CHAIN_ID);
    let before = reader.progress(&["token_worker", "evm_worker"]).await.expect("read");
    assert_eq!(before.len(), 2);
    assert!(before.iter().all(|one| one.tip.0.len() == 5 && one.done.covers(&(0..16))));
    assert_eq!(reader.progress(&[]).await.expect("read").len(), 12);
    let first = derived.get("/tokens").await;
    sim.reorg(3, 3).expect("it can be reorganised");
    derived.reorg(blocks(&sim, 16..21)).await;
    let after = reader.progress(&["token_worker", "evm_worker"]).await.expect("read");
    assert!(before.iter().zip(&after).all(|(a, b)| a.tip != b.tip && a.done == b.done));
    let second = derived.get("/tokens").await;
    assert_eq!(first["asOf"]["block"], second["asOf"]["block"]);
    assert_ne!(first["asOf"]["hash"], second["asOf"]["hash"]);
}

#[tokio::test]
async fn blocks_of_the_tip_are_added_to_final_rows() {
    let sample = SampleChain::from(0).await;
    let born = sample.born;
    let moved: u64 = (SIMULATED + 1..SIMULATED + 4).sum();
    let holders = sample.derived.all(&format!("/tokens/{born}/holders"), 1).await;
    let balances: Vec<(String, String)> = holders
        .iter()
        .map(|one| {
            let text = |name: &str| one[name].as_str().expect("text").to_owned();
            (text("address"), text("balance"))
        })
        .collect();
    let holder = sample.holder.to_string().to_lowercase();
    let proxy = PROXY.to_string().to_lowercase();
    let expected = [(holder, (1_000 - moved).to_string()), (proxy, moved.to_string())];
    assert_eq!(balances, expected);
}
