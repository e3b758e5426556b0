//! What the error of a block that does not pass its checks says, and what it advises.

use super::*;

type Change = fn(&mut Value);

const BLOCK: &str = "eth_getBlockByNumber";
const RECEIPTS: &str = "eth_getBlockReceipts";

/// What changes one method's answers.
fn changed(method: &'static str, change: Change) -> Quirks {
    let tamper = tamper(move |called, result| {
        if called == method {
            change(result);
        }
    });
    Quirks { tamper, ..Quirks::default() }
}

/// The error of a chain whose only node gives block 5 so, with all its causes, and the node's status.
async fn blamed(method: &'static str, change: Change) -> (String, NodeStatus) {
    let stage = stage(vec![changed(method, change)]);
    let error = stage.blocks(5..6).await.expect_err("a block that is wrong");
    (logmill_io::chain(&error), stage.status(0))
}

#[tokio::test(start_paused = true)]
async fn a_lie_is_named_with_both_values_and_the_node_and_no_advice_to_check_less() {
    let right = FakeChain::new(LENGTH, 0, 0);
    let hash = right.hash(5).to_string();
    let transaction =
        right.blocks[5]["transactions"][0]["hash"].as_str().expect("a hash").to_owned();
    let root = right.blocks[5]["receiptsRoot"].as_str().expect("a hash").to_owned();
    let cases: [(&str, Change, &[&str]); 12] = [
        (
            BLOCK,
            |block| block["stateRoot"] = block["parentHash"].clone(),
            &["fields of its header", &hash],
        ),
        (
            BLOCK,
            |block| block["receiptsRoot"] = block["parentHash"].clone(),
            &["fields of its header", &hash],
        ),
        (BLOCK, |block| block["timestamp"] = json!("0x1"), &["fields of its header", &hash]),
        (BLOCK, |block| block["gasUsed"] = json!("0x1"), &["fields of its header", &hash]),
        // What is added does not excuse what is wrong if nothing of it can be hashed.
        (
            BLOCK,
            |block| {
                block["stateRoot"] = block["parentHash"].clone();
                block["sendRoot"] = block["parentHash"].clone();
                block["totalDifficulty"] = json!("0x1");
                block["futureField"] = json!(null);
            },
            &["fields of its header", &hash],
        ),
        (BLOCK, |block| block["number"] = json!("0x6"), &["asked for block 5 and gave block 6"]),
        (
            BLOCK,
            |block| block["transactions"][0]["value"] = json!("0x6"),
            &["fields of transaction 0", &transaction],
        ),
        (
            BLOCK,
            |block| block["uncles"] = json!([block["parentHash"]]),
            &["hash of the uncles", "1 uncles"],
        ),
        (
            RECEIPTS,
            |all| drop(all.as_array_mut().expect("a list").pop()),
            &["3 transactions", "2 receipts"],
        ),
        (
            RECEIPTS,
            |all| all.as_array_mut().expect("a list").swap(0, 1),
            &["receipt 0 is of transaction"],
        ),
        (RECEIPTS, |all| all[0]["logs"][0]["data"] = json!("0x01"), &["receipts make 0x", &root]),
        (
            RECEIPTS,
            |all| drop(all[2]["logs"].as_array_mut().expect("a list").pop()),
            &["5 logs", "logsBloom", "3 bits of the header's"],
        ),
    ];
    for (method, change, expected) in cases {
        let (said, status) = blamed(method, change).await;
        assert!(said.contains("block 5") || said.contains("block 6"), "{said}");
        assert!(said.contains("node0"), "{said}");
        for part in expected {
            assert!(said.contains(part), "{part:?} in {said}");
        }
        assert!(!said.contains("verify") && !said.contains("\"bloom\""), "{said}");
        assert_eq!(status.lies, 1, "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_a_chain_adds_to_ethereum_is_answered_with_bloom() {
    let cases: [(Change, &[&str]); 3] = [
        (
            |block| {
                block["stateRoot"] = block["parentHash"].clone();
                block["validatorSet"] = json!("0x1");
                block["epochSeal"] = json!({"a": 1});
            },
            &["epochSeal, validatorSet"],
        ),
        (|block| block["transactions"][1]["type"] = json!("0x7e"), &["transaction 1", "type 0x7e"]),
        (
            |block| {
                block["transactions"][0]["feeCurrency"] = json!("0x1");
                block["transactions"][0]["value"] = json!("0x6");
            },
            &["transaction 0", "feeCurrency"],
        ),
    ];
    for (change, expected) in cases {
        let (said, status) = blamed(BLOCK, change).await;
        assert!(said.contains("set `verify = \"bloom\"`"), "{said}");
        for part in expected {
            assert!(said.contains(part), "{part:?} in {said}");
        }
        assert_eq!(
            (status.lies, status.failures),
            (0, 1),
            "what cannot be checked is no lie: {said}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_header_or_transaction_without_fields_of_ethereum_is_said_to_lack_them() {
    let cases: [(Change, &str); 3] = [
        (|block| drop(block.as_object_mut().expect("a block").remove("stateRoot")), "stateRoot"),
        (
            |block| drop(block["transactions"][1].as_object_mut().expect("one").remove("gas")),
            "transaction 1 is not one of Ethereum's: missing field `gas`",
        ),
        (
            |block| block["transactions"][0]["v"] = json!("0x0"),
            "transaction 0 is not one of Ethereum's: it lacks a field or a signature that type 0 has",
        ),
    ];
    for (change, expected) in cases {
        let (said, status) = blamed(BLOCK, change).await;
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("\"bloom\""), "{said}");
        assert_eq!(status.lies, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_excuse_nothing_where_headers_had_their_hashes_without_them() {
    let stage = stage(vec![changed(BLOCK, |block| block["validatorSet"] = json!("0x1"))]);
    stage.blocks(3..5).await.expect("a field that is not hashed does no harm");
    stage.nodes[0].quirks.lock().unwrap().tamper = tamper(|method, block| {
        if method == BLOCK {
            block["stateRoot"] = block["parentHash"].clone();
            block["validatorSet"] = json!("0x1");
        }
    });
    let error = stage.blocks(5..6).await.expect_err("a false header");
    let said = logmill_io::chain(&error);
    assert!(said.contains("fields of its header") && said.contains("validatorSet"), "{said}");
    assert!(!said.contains("\"bloom\""), "{said}");
    assert_eq!(stage.status(0).lies, 1);
}

#[tokio::test(start_paused = true)]
async fn logs_that_a_header_excludes_are_named_without_advice() {
    let set = |settings: &mut EvmSettings| settings.verify = Verify::Bloom;
    let quirks =
        changed(BLOCK, |block| drop(block.as_object_mut().expect("a block").remove("logsBloom")));
    let stage = stage_of(vec![quirks], set, |_, _| {});
    let error = stage.blocks(5..6).await.expect_err("nothing to compare with");
    let said = logmill_io::chain(&error);
    assert!(said.contains("its header has no logsBloom"), "{said}");
    assert_eq!(stage.status(0).lies, 0);
}
