//! Blocks with invalid bytes.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, keccak256};
use logmill_chain::{Block, Header, Log, Outcome, Transaction, TransactionForm};
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::{all, fees, meta::contracts, staking, tx_contracts::tags};
use super::chain;
use crate::derive::decoded_block_builder::{check_keys, rows_of};
use crate::derive::{DecodedBlock, Processor};

/// Topics that some processor handles.
const TOPICS: [B256; 9] = [
    fees::FEES_COLLECTED,
    fees::FEES_FORWARDED,
    contracts::UPGRADED,
    contracts::BEACON_UPGRADED,
    contracts::DIAMOND_CUT,
    staking::DEPOSIT_EVENT,
    tags::APPROVAL,
    tags::WRAPPED,
    tags::UNWRAPPED,
];

#[derive(Clone, Debug)]
enum ByteDamage {
    Flip(Index, u8),
    Cut(Index),
    Replace(Vec<u8>),
}

impl ByteDamage {
    fn of(&self, bytes: &Bytes) -> Bytes {
        let mut bytes = bytes.to_vec();
        match self {
            Self::Flip(at, with) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= with;
            }
            Self::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Self::Replace(other) => bytes.clone_from(other),
            Self::Flip(..) => {}
        }
        bytes.into()
    }
}

fn byte_damage() -> impl Strategy<Value = ByteDamage> {
    prop_oneof![
        (any::<Index>(), 1u8..).prop_map(|(at, with)| ByteDamage::Flip(at, with)),
        any::<Index>().prop_map(ByteDamage::Cut),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(ByteDamage::Replace),
    ]
}

/// A valid or invalid value for a field of a node's JSON.
fn odd() -> impl Strategy<Value = String> {
    let hex = prop::collection::vec(any::<u8>(), 0..40)
        .prop_map(|bytes| format!("\"{}\"", alloy_primitives::hex::encode_prefixed(bytes)));
    let fixed = prop::sample::select(vec![
        "null",
        "true",
        "0",
        "-1",
        "1e400",
        "\"\"",
        "\"0x\"",
        "\"0x0\"",
        "\"0xzz\"",
        "[]",
        "{}",
        "[[]]",
        "\"0xffffffffffffffff\"",
        "\"0x7e\"",
        "\"\\u0000\"",
        "\"0x1111111111111111111111111111111111111111\"",
        "[{\"chainId\":\"0x0\",\"address\":\"0x1111111111111111111111111111111111111111\",\"nonce\":\"0x0\",\
          \"yParity\":\"0xff\",\"r\":\"0x0\",\"s\":\"0x0\"}]",
    ]);
    prop_oneof![hex, fixed.prop_map(str::to_owned)]
}

/// An object with fields that are decoded, some of them twice.
fn object() -> impl Strategy<Value = Bytes> {
    let names = prop::sample::select(vec![
        "from",
        "to",
        "nonce",
        "value",
        "input",
        "data",
        "gas",
        "gasPrice",
        "type",
        "miner",
        "authorizationList",
        "blobVersionedHashes",
        "baseFeePerGas",
        "gasUsed",
        "gasLimit",
        "excessBlobGas",
        "l1Fee",
        "blobGasPrice",
        "blobGasUsed",
    ]);
    prop::collection::vec((names, odd()), 0..16).prop_map(|fields| {
        let fields: Vec<String> =
            fields.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        Bytes::from(format!("{{{}}}", fields.join(",")).into_bytes())
    })
}

fn log() -> impl Strategy<Value = Log> {
    let topic = prop_oneof![
        prop::sample::select(TOPICS.to_vec()),
        any::<[u8; 20]>().prop_map(|bytes| Address::from(bytes).into_word()),
        any::<[u8; 32]>().prop_map(B256::from),
    ];
    let address = prop_oneof![
        Just(staking::deposit_contract(1).expect("mainnet has one")),
        Just(Address::ZERO),
        any::<[u8; 20]>().prop_map(Address::from),
    ];
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        prop::collection::vec(0u8..2, 576..=576),
        prop::collection::vec(any::<u8>(), 576..=576),
    ];
    (address, prop::collection::vec(topic, 0..=4), data).prop_map(|(address, topics, data)| Log {
        address,
        topics: topics.into_iter().collect(),
        data: data.into(),
    })
}

/// Damage to a block.
#[derive(Clone, Debug)]
enum BlockDamage {
    Header(ByteDamage),
    ForeignHeader(Bytes),
    Transaction(Index, ByteDamage),
    ForeignTransaction(Index, Bytes),
    Withdrawals(ByteDamage),
    Extra(Index, Bytes),
    Receipt(Index, u64, Option<bool>),
    Logs(Index, Vec<Log>),
    Twice(Index),
}

fn block_damage() -> impl Strategy<Value = BlockDamage> {
    let place = any::<Index>;
    prop_oneof![
        byte_damage().prop_map(BlockDamage::Header),
        object().prop_map(BlockDamage::ForeignHeader),
        (place(), byte_damage())
            .prop_map(|(at, byte_damage)| BlockDamage::Transaction(at, byte_damage)),
        (place(), object()).prop_map(|(at, text)| BlockDamage::ForeignTransaction(at, text)),
        byte_damage().prop_map(BlockDamage::Withdrawals),
        (place(), object()).prop_map(|(at, text)| BlockDamage::Extra(at, text)),
        (place(), any::<u64>(), any::<Option<bool>>())
            .prop_map(|(at, gas, status)| BlockDamage::Receipt(at, gas, status)),
        (place(), prop::collection::vec(log(), 0..8))
            .prop_map(|(at, logs)| BlockDamage::Logs(at, logs)),
        place().prop_map(BlockDamage::Twice),
    ]
}

impl BlockDamage {
    fn apply(&self, block: &mut Block) {
        let count = block.transactions.len();
        let at = |index: &Index| index.index(count);
        match self {
            Self::Header(byte_damage) => {
                let (Header::Canonical(bytes) | Header::Foreign(bytes)) = &mut block.header;
                *bytes = byte_damage.of(bytes);
            }
            Self::ForeignHeader(text) => block.header = Header::Foreign(text.clone()),
            Self::Withdrawals(byte_damage) => {
                block.withdrawals = block.withdrawals.take().map(|bytes| byte_damage.of(&bytes));
            }
            Self::Transaction(place, byte_damage) if count > 0 => {
                let (TransactionForm::Canonical(bytes) | TransactionForm::Foreign(bytes)) =
                    &mut block.transactions[at(place)].form;
                *bytes = byte_damage.of(bytes);
            }
            Self::ForeignTransaction(place, text) if count > 0 => {
                let form = TransactionForm::Foreign(text.clone());
                block.transactions[at(place)] = Transaction::new(keccak256(text), form);
            }
            Self::Extra(place, text) if count > 0 => {
                block.receipts[at(place)].extra = Some(text.clone());
            }
            Self::Receipt(place, gas, status) if count > 0 => {
                let receipt = &mut block.receipts[at(place)];
                receipt.cumulative_gas_used = *gas;
                receipt.outcome = status.map_or(Outcome::Unknown, Outcome::Status);
            }
            Self::Logs(place, logs) if count > 0 => {
                block.receipts[at(place)].logs.clone_from(logs);
            }
            Self::Twice(place) if count > 0 => {
                // For example, the same creation twice.
                let again = at(place);
                block.transactions.push(block.transactions[again].clone());
                block.receipts.push(block.receipts[again].clone());
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(256)))]

    #[test]
    fn no_bytes_make_a_block_panic_or_a_row_misfit(
        number in 1u64..=8,
        fork in 0u8..3,
        damages in prop::collection::vec(block_damage(), 1..6),
    ) {
        let mut block = (*chain(5, fork).block(number).expect("a block")).clone();
        damages.iter().for_each(|block_damage| block_damage.apply(&mut block));
        let Ok(decoded) = DecodedBlock::new(1, Arc::new(block)) else {
            return Ok(());
        };
        let decoded = [decoded];
        for processor in all(&crate::processors::Settings::of_chain(1)) {
            let processor: &dyn Processor = &*processor;
            check_keys(&rows_of(processor, &decoded));
        }
    }
}
