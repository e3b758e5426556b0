//! The errors of blocks that fail their checks, and the advice in them.

use super::*;
use crate::profile::ChainProfile;

type Change = fn(&mut Value);

const BLOCK: &str = "eth_getBlockByNumber";
const RECEIPTS: &str = "eth_getBlockReceipts";

const FAMILIES: [u64; 10] = [1_337, 10, 42_161, 137, 56, 324, 747, 25, 31_337, 7_331];

/// Changes the answers to one method.
fn changed(method: &'static str, change: Change) -> Quirks {
    let tamper = tamper(move |called, result| {
        if called == method {
            change(result);
        }
    });
    Quirks { tamper, ..Quirks::default() }
}

/// The error of a chain whose only node returns block 5 changed, with all its causes, and the node's status.
async fn blamed(chain_id: u64, method: &'static str, change: Change) -> (String, NodeStatus) {
    let pool = pool(vec![Quirks { chain_id: Some(chain_id), ..changed(method, change) }]);
    let error = pool.blocks(5..6).await.expect_err("a block that is wrong");
    (logmill_io::error_chain(&error), pool.status(0))
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_false_block_names_both_values_and_the_node_without_advice() {
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
        // Added fields do not excuse wrong ones unless they can be part of the hash.
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
        (BLOCK, |block| block["number"] = json!("0x6"), &["for block 5 and returned block 6"]),
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
            &["receipt 0 belongs to transaction"],
        ),
        (RECEIPTS, |all| all[0]["logs"][0]["data"] = json!("0x01"), &["have the root 0x", &root]),
        (
            RECEIPTS,
            |all| drop(all[2]["logs"].as_array_mut().expect("a list").pop()),
            &["5 logs", "logsBloom", "3 bits are set only in the header's"],
        ),
    ];
    let of_each_family = FAMILIES.iter().flat_map(|id| cases.map(|case| (*id, case)));
    for (id, (method, change, expected)) in of_each_family {
        let (said, status) = blamed(id, method, change).await;
        check_lie(id, &said, expected);
        assert_eq!(status.lies, 1, "{said}");
    }
}

/// Checks that the error names the false part, and gives no advice.
fn check_lie(id: u64, said: &str, expected: &[&str]) {
    assert!(said.contains("block 5") || said.contains("block 6"), "{said}");
    for part in expected.iter().chain(&["node0"]) {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    // Where headers are not hashed as on Ethereum, a wrong hash does not prove that the block is false.
    let has_own_hashes = ChainProfile::of(id).verify == VerifyLevel::Off;
    if !(has_own_hashes && said.contains("fields of its header")) {
        assert!(!said.contains("verify") && !said.contains("\"bloom\""), "chain {id}: {said}");
    }
}

fn unsigned(transaction: &mut Value, number: &str) {
    (transaction["r"], transaction["s"]) = (json!(number), json!(number));
}

#[tokio::test(start_paused = true)]
async fn only_fields_and_types_that_ethereum_lacks_lead_to_the_advice_bloom() {
    let cases: [(Change, &[&str]); 5] = [
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
        // Anvil returns transactions of impersonated accounts like this; their hashes are not those of their bytes.
        (
            |block| unsigned(&mut block["transactions"][1], "0x0"),
            &["transaction 1", "no signature"],
        ),
        (
            |block| unsigned(&mut block["transactions"][2], "0x1"),
            &["transaction 2", "no signature"],
        ),
    ];
    let of_each_family = FAMILIES.iter().flat_map(|id| cases.map(|case| (*id, case)));
    for (id, (change, expected)) in of_each_family {
        let (said, status) = blamed(id, BLOCK, change).await;
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
async fn missing_ethereum_fields_are_named_and_bloom_accepts_the_block() {
    let cases: [(Change, &str); 4] = [
        (|block| drop(block.as_object_mut().expect("a block").remove("stateRoot")), "stateRoot"),
        (
            |block| drop(block["transactions"][1].as_object_mut().expect("one").remove("gas")),
            "transaction 1 is not one of Ethereum's: missing field `gas`",
        ),
        (
            |block| block["transactions"][0]["v"] = json!("0x0"),
            "transaction 0 is not one of Ethereum's: it lacks a field or a signature that type 0 requires",
        ),
        (
            |block| block["transactions"][0]["type"] = json!("0x4"),
            "transaction 0 is not one of Ethereum's: it lacks a field or a signature that type 4 requires",
        ),
    ];
    let of_each_family = FAMILIES.iter().flat_map(|id| cases.map(|case| (*id, case)));
    for (id, (change, expected)) in of_each_family {
        let (said, status) = blamed(id, BLOCK, change).await;
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("leave it out, set `verify = \"bloom\"`"), "{said}");
        assert_eq!(status.lies, 0);
        let set = |settings: &mut EvmSettings| settings.verify = VerifyLevel::Bloom;
        let pool = pool_with(vec![changed(BLOCK, change)], set, |_, _| {});
        pool.blocks(5..6).await.expect("the setting helps");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_do_not_excuse_a_wrong_hash_once_headers_matched_without_them() {
    let pool = pool(vec![changed(BLOCK, |block| block["validatorSet"] = json!("0x1"))]);
    pool.blocks(3..5).await.expect("a field that is not hashed does no harm");
    pool.nodes[0].quirks.lock().unwrap().tamper = tamper(|method, block| {
        if method == BLOCK {
            block["stateRoot"] = block["parentHash"].clone();
            block["validatorSet"] = json!("0x1");
        }
    });
    let error = pool.blocks(5..6).await.expect_err("a false header");
    let said = logmill_io::error_chain(&error);
    assert!(said.contains("fields of its header") && said.contains("validatorSet"), "{said}");
    assert!(!said.contains("\"bloom\""), "{said}");
    assert_eq!(pool.status(0).lies, 1);
}

/// A block of a chain that is checked in `bloom` and whose only node returns it changed, and the node's lies.
async fn in_bloom(chain_id: u64, change: Change) -> (Result<(), String>, u64) {
    let set = |settings: &mut EvmSettings| settings.verify = VerifyLevel::Bloom;
    let quirks = Quirks { chain_id: Some(chain_id), ..changed(BLOCK, change) };
    let pool = pool_with(vec![quirks], set, |_, _| {});
    let fetched = pool.blocks(5..6).await;
    (fetched.map(drop).map_err(|error| logmill_io::error_chain(&error)), pool.status(0).lies)
}

#[tokio::test(start_paused = true)]
async fn in_bloom_a_header_of_known_fields_must_match_its_hash_where_it_is_hashed_as_on_ethereum() {
    let false_headers: [Change; 3] = [
        |block| block["stateRoot"] = block["parentHash"].clone(),
        |block| block["timestamp"] = json!("0x1"),
        // Fields that nodes show with a block are not hashed, and a null field is none.
        |block| {
            block["receiptsRoot"] = block["parentHash"].clone();
            block["sendRoot"] = block["parentHash"].clone();
            block["futureField"] = json!(null);
        },
    ];
    let cases = FAMILIES.iter().flat_map(|id| false_headers.map(|change| (*id, change)));
    for (id, change) in cases {
        let (fetched, lies) = in_bloom(id, change).await;
        if !ChainProfile::of(id).has_ethereum_headers() {
            assert_eq!((fetched, lies), (Ok(()), 0), "chain {id} may have its own hashes");
            continue;
        }
        let said = fetched.expect_err("a false header");
        assert!(said.contains("fields of its header hash to"), "chain {id}: {said}");
        assert!(!said.contains("set `verify"), "chain {id}: {said}");
        assert_eq!(lies, 1, "chain {id}: {said}");
    }
    for id in FAMILIES {
        let unknown_field: Change = |block| {
            block["stateRoot"] = block["parentHash"].clone();
            block["validatorSet"] = json!("0x1");
        };
        let not_hashed: Change = |block| block["sendRoot"] = block["parentHash"].clone();
        for change in [unknown_field, not_hashed] {
            assert_eq!(in_bloom(id, change).await, (Ok(()), 0), "chain {id}");
        }
    }
}

/// A block whose header has another hash and whose second transaction has a type of its own.
fn has_own_hash_and_type(block: &mut Value) {
    block["stateRoot"] = block["parentHash"].clone();
    block["transactions"][1]["type"] = json!("0x3f");
}

#[tokio::test(start_paused = true)]
async fn own_types_explain_a_wrong_hash_only_where_headers_may_be_hashed_otherwise() {
    for id in FAMILIES {
        let (said, status) = blamed(id, BLOCK, has_own_hash_and_type).await;
        assert!(said.contains("fields of its header hash to"), "chain {id}: {said}");
        let is_explained = !ChainProfile::of(id).has_ethereum_headers();
        assert_eq!(said.contains("transaction 1 has the type 0x3f"), is_explained, "{id}: {said}");
        assert_eq!(said.contains("set `verify = \"bloom\"`"), is_explained, "chain {id}: {said}");
        assert_eq!(status.lies == 0, is_explained, "chain {id}: {said}");
    }
    let pool = pool(vec![Quirks { chain_id: Some(7_331), ..Quirks::default() }]);
    pool.blocks(3..5).await.expect("headers that match their hashes");
    pool.nodes[0].quirks.lock().unwrap().tamper = changed(BLOCK, has_own_hash_and_type).tamper;
    let error = pool.blocks(5..6).await.expect_err("a false header");
    assert!(!logmill_io::error_chain(&error).contains("\"bloom\""), "{error}");
    assert_eq!(pool.status(0).lies, 1);
}

#[tokio::test(start_paused = true)]
async fn a_header_without_a_bloom_is_an_error_but_not_a_lie() {
    let set = |settings: &mut EvmSettings| settings.verify = VerifyLevel::Bloom;
    let quirks =
        changed(BLOCK, |block| drop(block.as_object_mut().expect("a block").remove("logsBloom")));
    let pool = pool_with(vec![quirks], set, |_, _| {});
    let error = pool.blocks(5..6).await.expect_err("nothing to compare with");
    let said = logmill_io::error_chain(&error);
    assert!(said.contains("its header has no logsBloom"), "{said}");
    assert_eq!(pool.status(0).lies, 0);
}

/// An unknown chain whose blocks decide the level.
fn unknown(quirks: Vec<Quirks>) -> PoolFixture {
    let named = quirks.into_iter().map(|quirks| Quirks { chain_id: Some(7_331), ..quirks });
    pool_with(named.collect(), |settings| settings.auto = true, |_, _| {})
}

/// Makes block 5 uncheckable: its hash is right, but it has a transaction of another type.
fn has_a_foreign_type() -> Quirks {
    changed(BLOCK, |block| {
        if block["number"] == json!("0x5") {
            block["transactions"][1]["type"] = json!("0x7e");
        }
    })
}

/// Adds a field that the chain hashes to every block.
fn has_a_foreign_field() -> Quirks {
    changed(BLOCK, |block| {
        block["stateRoot"] = block["parentHash"].clone();
        block["validatorSet"] = json!("0x1");
    })
}

#[tokio::test(start_paused = true)]
async fn one_node_cannot_lower_the_level_of_an_unknown_chain() {
    for liar in [has_a_foreign_type(), has_a_foreign_field()] {
        for liars_first in [true, false] {
            let honest = Quirks::default();
            let quirks =
                if liars_first { vec![liar.clone(), honest] } else { vec![honest, liar.clone()] };
            let pool = unknown(quirks);
            let blocks = pool.all().await;
            assert!(blocks.iter().all(|block| block.verified == VerifyLevel::Full));
            assert_eq!(pool.source.checks().expect("a known chain").verify, VerifyLevel::Full);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_type_does_not_lower_the_level_once_blocks_have_passed() {
    let pool = unknown(vec![has_a_foreign_type()]);
    let error = pool.blocks(5..6).await.expect_err("the blocks that were looked at passed");
    assert!(logmill_io::error_chain(&error).contains("type 0x7e"), "{error}");
    assert_eq!(pool.source.checks().expect("a known chain").verify, VerifyLevel::Full);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_field_from_all_nodes_lowers_the_level() {
    let pool = unknown(vec![has_a_foreign_field(), has_a_foreign_field()]);
    let blocks = pool.blocks(4..7).await.expect("blocks of an unknown chain");
    assert!(blocks.iter().all(|block| block.verified == VerifyLevel::Bloom));
    assert_eq!(pool.source.checks().expect("a known chain").verify, VerifyLevel::Bloom);
}
