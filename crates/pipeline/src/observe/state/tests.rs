//! Queries for state, with all sorts of contracts and nodes.

use std::sync::atomic::Ordering;

use logmill_io::{ErrorKind, SimClock, Timestamp};
use logmill_sim::scripted_node::{ScriptedAnswer, ScriptedNode};

use super::*;

const TOKEN: Address = Address::with_last_byte(7);
const NAME: [u8; 4] = [6, 0xfd, 0xde, 3];

fn reader(node: &Arc<ScriptedNode>) -> StateReader {
    let source = Arc::clone(node) as Arc<dyn NodeSource>;
    StateReader::new(source, SimClock::at(Timestamp(0)), StateSettings::default())
}

fn call() -> Call {
    Call::new(TOKEN, NAME, &[])
}

async fn answer_to(scripted: ScriptedAnswer) -> Result<(AnswerStatus, Bytes)> {
    let node = ScriptedNode::new(100);
    node.script(TOKEN, &NAME, scripted);
    let answer = reader(&node).call(&call(), 50).await?;
    assert_eq!(answer.block, 50);
    Ok((answer.status, answer.value))
}

#[tokio::test(start_paused = true)]
async fn a_result_or_failure_of_a_contract_is_an_answer() {
    let check = async |scripted: ScriptedAnswer, status: AnswerStatus, value: &[u8]| {
        let shown = format!("{scripted:?}");
        assert_eq!(
            answer_to(scripted).await.expect(&shown),
            (status, value.to_vec().into()),
            "{shown:.80}"
        );
    };
    check(ScriptedAnswer::Bytes(vec![1, 2]), AnswerStatus::Ok, &[1, 2]).await;
    check(ScriptedAnswer::Bytes(vec![]), AnswerStatus::Empty, &[]).await;
    check(ScriptedAnswer::Json("\"0x\"".to_owned()), AnswerStatus::Empty, &[]).await;
    check(
        ScriptedAnswer::Error(3, "execution reverted: no"),
        AnswerStatus::Reverted,
        b"execution reverted: no",
    )
    .await;
    check(ScriptedAnswer::Error(-32_000, "out of gas"), AnswerStatus::Reverted, b"out of gas")
        .await;
    let spoof = "execution reverted: missing trie node, rate limit exceeded";
    check(ScriptedAnswer::Error(-32_000, spoof), AnswerStatus::Reverted, spoof.as_bytes()).await;
    check(
        ScriptedAnswer::Bytes(vec![7; VALUE_BYTES_MAX]),
        AnswerStatus::Ok,
        &vec![7; VALUE_BYTES_MAX],
    )
    .await;
    check(ScriptedAnswer::Bytes(vec![7; VALUE_BYTES_MAX + 1]), AnswerStatus::TooLarge, &[]).await;
    check(
        ScriptedAnswer::Json(format!("\"0x{}", "0".repeat(8 << 20))),
        AnswerStatus::TooLarge,
        &[],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_a_node_is_no_answer() {
    for scripted in [
        ScriptedAnswer::Error(-32_000, "header not found"),
        ScriptedAnswer::Error(-32_601, "the method eth_call does not exist"),
        ScriptedAnswer::Error(-32_000, "err: intrinsic gas too low (supplied gas 1)"),
        ScriptedAnswer::Json("null".to_owned()),
        ScriptedAnswer::Json("{}".to_owned()),
        ScriptedAnswer::Json("\"hello\"".to_owned()),
        ScriptedAnswer::Json("\"0xabc\"".to_owned()),
        ScriptedAnswer::Json("\"0xzz\"".to_owned()),
        ScriptedAnswer::Json("[".repeat(1_000)),
        ScriptedAnswer::Nothing,
    ] {
        let shown = format!("{scripted:?}");
        let error = answer_to(scripted).await.expect_err(&shown);
        assert_eq!(error.kind(), ErrorKind::Transient, "{shown:.80}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_block_is_queried_if_the_state_is_gone() {
    let node = ScriptedNode::new(100);
    node.script(TOKEN, &NAME, ScriptedAnswer::Bytes(vec![1]));
    let reader = reader(&node);
    for (floor, block) in [(0, 10), (10, 10), (11, 100), (100, 100), (101, 164)] {
        node.floor.store(floor, Ordering::SeqCst);
        let answer = reader.call(&call(), 10).await.expect("an answer");
        assert_eq!(answer.block, block, "floor {floor}");
    }
    node.floor.store(1_000, Ordering::SeqCst);
    assert!(reader.call(&call(), 10).await.is_err());
    // All calls of a list use the block at which the first one was answered.
    node.floor.store(50, Ordering::SeqCst);
    let before = node.requests();
    let answers = reader.call_all(&[call(), call(), call()], 10).await.expect("answers");
    assert!(answers.iter().all(|answer| answer.block == 100), "{answers:?}");
    assert_eq!(node.requests() - before, 4);
}

#[tokio::test(start_paused = true)]
async fn a_call_at_a_block_is_answered_from_its_state_or_not_at_all() {
    let node = ScriptedNode::new(100);
    node.script(TOKEN, &call().data, ScriptedAnswer::Bytes(vec![2]));
    node.script_until(50, TOKEN, &call().data, ScriptedAnswer::Bytes(vec![1]));
    let reader = reader(&node);
    let value = async |block| {
        let answer = reader.call_at(&call(), block).await.expect("a node");
        answer.map(|answer| (answer.block, answer.value.to_vec()))
    };
    assert_eq!(value(50).await, Some((50, vec![1])));
    assert_eq!(value(51).await, Some((51, vec![2])));
    node.floor.store(51, Ordering::SeqCst);
    assert_eq!(value(50).await, None, "its state is gone");
}

#[tokio::test(start_paused = true)]
async fn calls_carry_their_gas_limit_and_block() {
    let node = ScriptedNode::new(100);
    let word = B256::with_last_byte(9);
    reader(&node).call(&Call::new(TOKEN, NAME, &[word]), 16).await.expect("a revert");
    let last = node.last.lock().expect("sound").clone();
    let requests: serde_json::Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(requests[0]["gas"], "0x1c9c380");
    assert_eq!(requests[0]["to"], format!("{TOKEN:#x}"));
    let data = format!("0x06fdde03{}", hex::encode(word));
    assert_eq!((&requests[0]["data"], &requests[1]), (&data.into(), &"0x10".into()));
}

#[tokio::test(start_paused = true)]
async fn code_and_balances_are_read() {
    let node = ScriptedNode::new(100);
    let reader = reader(&node);
    node.script(TOKEN, &[], ScriptedAnswer::Bytes(vec![0x60, 0x80]));
    assert_eq!(reader.code(TOKEN, 5).await.expect("code").value, vec![0x60, 0x80]);
    node.create(TOKEN, 5);
    assert_eq!(reader.code(TOKEN, 4).await.expect("none").status, AnswerStatus::Empty);
    node.script(TOKEN, &[], ScriptedAnswer::Json("\"0xfff\"".to_owned()));
    let balance = reader.balance(TOKEN, 5).await.expect("a balance").value;
    assert_eq!(B256::from_slice(&balance), B256::left_padding_from(&[0xf, 0xff]));
    for wrong in ["\"0x\"", "\"fff\"", "17", "null"] {
        node.script(TOKEN, &[], ScriptedAnswer::Json(wrong.to_owned()));
        assert!(reader.balance(TOKEN, 5).await.is_err(), "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_newest_final_block_is_cached_for_a_while() {
    let node = ScriptedNode::new(100);
    let reader = reader(&node);
    assert_eq!(reader.final_block(0).await.expect("heads"), 100);
    node.finalized.store(132, Ordering::SeqCst);
    assert_eq!(reader.clone().final_block(100).await.expect("heads"), 100, "just asked");
    assert_eq!(reader.final_block(101).await.expect("heads"), 132, "what is known is too old");
    assert_eq!(reader.final_block(140).await.expect("heads"), 140, "the node lags");
    node.finalized.store(164, Ordering::SeqCst);
    assert_eq!(reader.final_block(0).await.expect("heads"), 132, "just asked");
    reader.clock.sleep(StateSettings::default().final_age).await;
    assert_eq!(reader.final_block(0).await.expect("heads"), 164);
}
