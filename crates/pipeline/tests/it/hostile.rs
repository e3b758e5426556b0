//! Encoding of stored blocks: round trips, and foreign bytes are an error.

use alloy_primitives::Address;
use logmill_chain::{Block, Sender, stored};
use logmill_pipeline::block::{restore, to_finalized};
use logmill_sim::chain_world::{logs_of, sim};
use proptest::prelude::*;

/// Any senders: the codec does not check them.
fn senders() -> impl Strategy<Value = Vec<Sender>> {
    let sender = prop_oneof![
        Just(Sender::Unknown),
        Just(Sender::Nobody),
        any::<[u8; 20]>().prop_map(|bytes| Sender::Signer(Address::from(bytes))),
    ];
    prop_oneof![Just(Vec::new()), prop::collection::vec(sender, 8)]
}

fn with_senders(mut block: Block, senders: &[Sender]) -> Block {
    for (transaction, sender) in block.transactions.iter_mut().zip(senders) {
        transaction.sender = *sender;
    }
    block
}

fn block(seed: u64) -> Block {
    let chain = sim(seed, None);
    chain.grow(3);
    Block::clone(&chain.block(2).expect("it exists"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(64)))]

    #[test]
    fn a_block_round_trips_with_its_logs_inside_or_apart(
        seed in 0_u64..40,
        senders in senders(),
    ) {
        let block = with_senders(block(seed), &senders);
        prop_assert_eq!(&stored::decode(&stored::encode(&block)).expect("read"), &block);
        let known = block.transactions.iter().any(|known| known.sender != Sender::Unknown);
        prop_assert_eq!(stored::encode(&block)[0], if known { 2 } else { 1 }, "the version");
        let indexed = to_finalized(block.clone());
        let body = indexed.body.expect("it has one");
        prop_assert_eq!(body.bytes[0], if known { 2 } else { 1 }, "the version");
        prop_assert_eq!(&restore(&body.bytes, logs_of(&block)).expect("read"), &block);
        let mut less = logs_of(&block);
        if less.pop().is_some() {
            restore(&body.bytes, less).expect_err("too few");
        }
        let more = logs_of(&block).into_iter().chain(logs_of(&block).into_iter().take(1));
        if block.log_count() > 0 {
            restore(&body.bytes, more.collect()).expect_err("too many");
        }
    }

    #[test]
    fn damaged_blocks_are_another_block_or_an_error_and_never_a_panic(
        seed in 0_u64..4,
        senders in senders(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let block = with_senders(block(seed), &senders);
        for whole in [stored::encode(&block), to_finalized(block.clone()).body.expect("one").bytes.to_vec()] {
            let mut bytes = whole;
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] = byte;
            }
            let _ = stored::decode(&bytes);
            let _ = stored::without_logs(&bytes);
            let _ = restore(&bytes, logs_of(&block));
        }
    }

    #[test]
    fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for version in [None, Some(1), Some(2)] {
            let bytes: Vec<u8> = version.into_iter().chain(bytes.iter().copied()).collect();
            let _ = stored::decode(&bytes);
            let _ = restore(&bytes, Vec::new());
        }
    }
}

/// Sets each length in an encoded block to four billion, and to the maximum.
#[test]
fn a_false_length_allocates_no_memory() {
    let plain = block(1);
    let mut recovered = plain.clone();
    recovered.recover_senders();
    for bytes in [stored::encode(&plain), stored::encode(&recovered)] {
        check_lies(&bytes);
    }
}

fn check_lies(bytes: &[u8]) {
    for at in 1..bytes.len().min(2_000) {
        for lie in
            [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0xff; 9], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x20]]
        {
            let mut lying = bytes[..at].to_vec();
            lying.extend_from_slice(lie);
            lying.extend_from_slice(&bytes[at + 1..]);
            let _ = stored::decode(&lying);
            let _ = stored::without_logs(&lying);
        }
    }
}
