//! Tests of asking for state: contracts and nodes of all sorts.

use std::sync::atomic::Ordering;

use logmill_io::{ErrorKind, SimClock, Timestamp};

use super::*;
use crate::observe::fake::{FakeNode, Says};

const TOKEN: Address = Address::with_last_byte(7);
const NAME: [u8; 4] = [6, 0xfd, 0xde, 3];

fn reader(node: &Arc<FakeNode>) -> StateReader {
    let source = Arc::clone(node) as Arc<dyn ChainSource>;
    StateReader::new(source, SimClock::at(Timestamp(0)), StateSettings::default())
}

fn call() -> Call {
    Call::new(TOKEN, NAME, &[])
}

async fn said(says: Says) -> Result<(Status, Bytes)> {
    let node = FakeNode::new(100);
    node.tell(TOKEN, &NAME, says);
    let answer = reader(&node).call(&call(), 50).await?;
    assert_eq!(answer.block, 50);
    Ok((answer.status, answer.value))
}

#[tokio::test(start_paused = true)]
async fn what_a_contract_does_is_its_answer() {
    let check = async |says: Says, status: Status, value: &[u8]| {
        let shown = format!("{says:?}");
        assert_eq!(said(says).await.expect(&shown), (status, value.to_vec().into()), "{shown:.80}");
    };
    check(Says::Bytes(vec![1, 2]), Status::Ok, &[1, 2]).await;
    check(Says::Bytes(vec![]), Status::Empty, &[]).await;
    check(Says::Json("\"0x\"".to_owned()), Status::Empty, &[]).await;
    check(Says::Error(3, "execution reverted: no"), Status::Reverted, b"execution reverted: no")
        .await;
    check(Says::Error(-32_000, "out of gas"), Status::Reverted, b"out of gas").await;
    let spoof = "execution reverted: missing trie node, rate limit exceeded";
    check(Says::Error(-32_000, spoof), Status::Reverted, spoof.as_bytes()).await;
    check(Says::Bytes(vec![7; VALUE_BYTES_MAX]), Status::Ok, &vec![7; VALUE_BYTES_MAX]).await;
    check(Says::Bytes(vec![7; VALUE_BYTES_MAX + 1]), Status::TooLarge, &[]).await;
    check(Says::Json(format!("\"0x{}", "0".repeat(8 << 20))), Status::TooLarge, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_node_does_is_no_answer() {
    for says in [
        Says::Error(-32_000, "header not found"),
        Says::Error(-32_601, "the method eth_call does not exist"),
        Says::Error(-32_000, "err: intrinsic gas too low (supplied gas 1)"),
        Says::Json("null".to_owned()),
        Says::Json("{}".to_owned()),
        Says::Json("\"hello\"".to_owned()),
        Says::Json("\"0xabc\"".to_owned()),
        Says::Json("\"0xzz\"".to_owned()),
        Says::Json("[".repeat(1_000)),
        Says::Nothing,
    ] {
        let shown = format!("{says:?}");
        let error = said(says).await.expect_err(&shown);
        assert_eq!(error.kind(), ErrorKind::Transient, "{shown:.80}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_state_is_gone_a_newer_block_is_asked_about() {
    let node = FakeNode::new(100);
    node.tell(TOKEN, &NAME, Says::Bytes(vec![1]));
    let reader = reader(&node);
    for (floor, block) in [(0, 10), (10, 10), (11, 100), (100, 100), (101, 164)] {
        node.floor.store(floor, Ordering::SeqCst);
        let answer = reader.call(&call(), 10).await.expect("an answer");
        assert_eq!(answer.block, block, "floor {floor}");
    }
    node.floor.store(1_000, Ordering::SeqCst);
    assert!(reader.call(&call(), 10).await.is_err());
    // All calls of a list are asked where the first one was answered.
    node.floor.store(50, Ordering::SeqCst);
    let before = node.asked();
    let answers = reader.call_all(&[call(), call(), call()], 10).await.expect("answers");
    assert!(answers.iter().all(|answer| answer.block == 100), "{answers:?}");
    assert_eq!(node.asked() - before, 4);
}

#[tokio::test(start_paused = true)]
async fn calls_carry_their_limit_of_gas_and_name_their_block() {
    let node = FakeNode::new(100);
    let word = B256::with_last_byte(9);
    reader(&node).call(&Call::new(TOKEN, NAME, &[word]), 16).await.expect("a revert");
    let last = node.last.lock().expect("sound").clone();
    let asked: serde_json::Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(asked[0]["gas"], "0x1c9c380");
    assert_eq!(asked[0]["to"], format!("{TOKEN:#x}"));
    let data = format!("0x06fdde03{}", hex::encode(word));
    assert_eq!((&asked[0]["data"], &asked[1]), (&data.into(), &"0x10".into()));
}

#[tokio::test(start_paused = true)]
async fn code_and_balances_are_read() {
    let node = FakeNode::new(100);
    let reader = reader(&node);
    node.tell(TOKEN, &[], Says::Bytes(vec![0x60, 0x80]));
    assert_eq!(reader.code(TOKEN, 5).await.expect("code").value, vec![0x60, 0x80]);
    node.create(TOKEN, 5);
    assert_eq!(reader.code(TOKEN, 4).await.expect("none").status, Status::Empty);
    node.tell(TOKEN, &[], Says::Json("\"0xfff\"".to_owned()));
    let balance = reader.balance(TOKEN, 5).await.expect("a balance").value;
    assert_eq!(B256::from_slice(&balance), B256::left_padding_from(&[0xf, 0xff]));
    for wrong in ["\"0x\"", "\"fff\"", "17", "null"] {
        node.tell(TOKEN, &[], Says::Json(wrong.to_owned()));
        assert!(reader.balance(TOKEN, 5).await.is_err(), "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_newest_final_block_is_asked_for_now_and_then() {
    let node = FakeNode::new(100);
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
