//! The verification level of an unknown chain.

use alloy_primitives::{B256, Bytes};
use serde_json::{Value, json};

use super::*;
use crate::block::Header;
use crate::sim::{Shape, SimChain};

fn blocks() -> Vec<Block> {
    let chain = SimChain::new(5, Shape::sparse());
    chain.grow(9);
    let block = |number| Block::clone(&chain.block(number).expect("grown"));
    let blocks: Vec<Block> = [1, 4, 9].map(block).to_vec();
    assert!(blocks.iter().all(|block| block.log_count() > 0));
    blocks
}

/// A block of a chain that hashes its headers differently, with this bloom.
fn foreign(block: &Block, bloom: Option<Value>, field: Option<&str>) -> Block {
    let header = block.header.decode().expect("it is RLP").expect("a header");
    let mut fields = serde_json::to_value(&header).expect("JSON");
    match bloom {
        Some(bloom) => fields["logsBloom"] = bloom,
        None => drop(fields.as_object_mut().expect("an object").remove("logsBloom")),
    }
    if let Some(name) = field {
        fields[name] = json!("0x1");
    }
    let header = Header::Foreign(Bytes::from(fields.to_string().into_bytes()));
    let at = crate::BlockRef { hash: B256::repeat_byte(7), ..block.at };
    Block { at, header, ..block.clone() }
}

fn own_bloom(block: &Block) -> Option<Value> {
    Some(json!(block.header.bloom().expect("it is read").expect("one")))
}

#[test]
fn an_unknown_chain_is_checked_as_far_as_all_of_its_blocks_can_pass() {
    let level = |blocks: Vec<Block>| decide(blocks).map_or(VerifyLevel::Full, |found| found.verify);
    let whole = blocks();
    assert_eq!(level(whole.clone()), VerifyLevel::Full);
    let each = |change: &dyn Fn(&Block) -> Block| whole.iter().map(change).collect::<Vec<_>>();
    let hashed = each(&|block| foreign(block, own_bloom(block), None));
    assert_eq!(level(hashed[..1].to_vec()), VerifyLevel::Bloom, "its header has another hash");
    assert_eq!(level(hashed), VerifyLevel::Bloom, "no header has its hash");
    let named = foreign(&whole[1], own_bloom(&whole[1]), Some("secondHash"));
    let mut one = whole.clone();
    one[1] = named;
    assert_eq!(level(one), VerifyLevel::Bloom, "one has a field of its chain");
    let empty = json!(alloy_primitives::Bloom::ZERO);
    let bare = each(&|block| foreign(block, Some(empty.clone()), None));
    assert_eq!(level(bare), VerifyLevel::Off, "blooms are not kept");
    assert_eq!(
        level(each(&|block| foreign(block, None, None))),
        VerifyLevel::Off,
        "there are none"
    );
}

#[test]
fn a_false_block_among_valid_ones_does_not_lower_the_level() {
    let mut blocks = blocks();
    blocks[1].receipts[0].logs.pop();
    blocks[1].receipts[0].cumulative_gas_used += 1;
    assert_eq!(decide(blocks.clone()), None, "it will be refused");
    let lone = blocks.split_off(1).into_iter().take(1).collect();
    assert_eq!(decide(lone), None, "one alone says nothing about its chain");
}
