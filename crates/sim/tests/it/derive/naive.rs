//! The expected contents of every table after some blocks, computed independently from raw bytes: no processor,
//! decoder or fold of the product is used.
//!
//! Transactions and headers are read with `alloy`, and signers are recovered here. Of the product's code only the types
//! that hold the bytes are used.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_consensus::{Header as EvmHeader, Transaction as _, TxEnvelope};
use alloy_primitives::{Address, B256, Bytes, Signed, U256, U512, hex, keccak256};
use alloy_rlp::Decodable;
use logmill_chain::{Block, Header, Log, Outcome, Transaction, TransactionForm};

use super::model::TableRows;

mod contracts;
mod participants;
mod pools;
mod signers;
mod staking;
mod tokens;

/// Wrapped ether, and the contract that collects fees.
pub(super) const WETH: &str = "c02aaa39b223fe8d0a0e5c4f27ead9083c756cc2";
const COLLECTOR: &str = "bd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9";

/// Wide enough for any sum of the tests.
pub(super) type I512 = Signed<512, 8>;

/// Assumptions about the chain and the settings of processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumptions {
    pub(crate) chain_id: u64,
    /// Price of blob gas, if known.
    pub(crate) blob_gas_price: Option<u64>,
    /// Contracts whose `FeesForwarded` count.
    pub(crate) forwarder: Option<Address>,
}

/// A block, decoded with `alloy`.
pub(super) struct Facts {
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) hash: B256,
    pub(super) miner: Address,
    pub(super) base_fee: u64,
    pub(super) transactions: Vec<Tx>,
    /// Index, validator, address, amount in Gwei.
    pub(super) withdrawals: Vec<(u64, u64, Address, u64)>,
}

/// A transaction and its receipt.
pub(super) struct Tx {
    pub(super) index: usize,
    pub(super) hash: B256,
    pub(super) kind: u8,
    pub(super) from: Address,
    pub(super) to: Option<Address>,
    pub(super) created: Option<Address>,
    pub(super) authorities: Vec<Address>,
    pub(super) nonce: u64,
    pub(super) value: U256,
    pub(super) input: Bytes,
    pub(super) success: Option<bool>,
    pub(super) gas_limit: u64,
    pub(super) gas_used: u64,
    pub(super) price: u128,
    pub(super) blobs: usize,
    /// Each log with its position in the block.
    pub(super) logs: Vec<(usize, Log)>,
}

/// The rows of all tables.
#[derive(Default)]
pub(super) struct ExpectedTables(BTreeMap<&'static str, TableRows>);

impl ExpectedTables {
    pub(super) fn add(&mut self, table: &'static str, row: Vec<String>) {
        self.0.entry(table).or_default().push(row);
    }
}

/// A value as text, for comparison.
pub(super) trait Text {
    fn text(&self) -> String;
}

macro_rules! plain {
    ($($kind:ty),*) => {
        $(impl Text for $kind { fn text(&self) -> String { self.to_string() } })*
    };
}
plain!(u8, u32, u64, u128, usize, i32, i64, U256, I512, str, String);

impl Text for bool {
    fn text(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Text for Address {
    fn text(&self) -> String {
        hex::encode(self)
    }
}

impl Text for B256 {
    fn text(&self) -> String {
        hex::encode(self)
    }
}

impl Text for [u8] {
    fn text(&self) -> String {
        hex::encode(self)
    }
}

impl<T: Text> Text for Option<T> {
    fn text(&self) -> String {
        self.as_ref().map_or("nothing".to_owned(), Text::text)
    }
}

impl<T: Text + ?Sized> Text for &T {
    fn text(&self) -> String {
        (**self).text()
    }
}

/// A row of values.
macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$(crate::derive::naive::Text::text(&$value)),*] };
}
pub(super) use row;

/// All tables of all processors after these blocks, which must be in chain order.
pub(crate) fn tables(
    assumptions: &Assumptions,
    blocks: &[Arc<Block>],
) -> BTreeMap<&'static str, TableRows> {
    let blocks: Vec<Facts> =
        blocks.iter().map(|block| facts(assumptions.chain_id, block)).collect();
    let mut out = ExpectedTables::default();
    transactions(assumptions, &blocks, &mut out);
    fees(assumptions, &blocks, &mut out);
    usage(&blocks, &mut out);
    tokens::tables(&blocks, &mut out);
    participants::tables(&blocks, &mut out);
    contracts::tables(assumptions.chain_id, &blocks, &mut out);
    staking::tables(assumptions.chain_id, &blocks, &mut out);
    pools::tables(&blocks, &mut out);
    out.0.values_mut().for_each(|rows| rows.sort());
    out.0
}

fn facts(chain_id: u64, block: &Block) -> Facts {
    let Header::Canonical(header) = &block.header else { panic!("a simulated block is canonical") };
    let header = EvmHeader::decode(&mut &header[..]).expect("a header");
    let (mut gas_before, mut log_index) = (0, 0);
    let mut transactions = Vec::new();
    for (index, (sent, receipt)) in block.transactions.iter().zip(&block.receipts).enumerate() {
        let success = match receipt.outcome {
            Outcome::Status(success) => Some(success),
            Outcome::StateRoot(_) | Outcome::Unknown => None,
        };
        let mut read = transaction(chain_id, sent, header.base_fee_per_gas);
        read.index = index;
        read.success = success;
        read.created = read.created.filter(|_| success != Some(false));
        read.gas_used = receipt.cumulative_gas_used - gas_before;
        gas_before = receipt.cumulative_gas_used;
        for log in &receipt.logs {
            read.logs.push((log_index, log.clone()));
            log_index += 1;
        }
        transactions.push(read);
    }
    Facts {
        number: header.number,
        time: header.timestamp,
        hash: block.at.hash,
        miner: header.beneficiary,
        base_fee: header.base_fee_per_gas.unwrap_or(0),
        transactions,
        withdrawals: block.withdrawals.as_ref().map(|bytes| withdrawals(bytes)).unwrap_or_default(),
    }
}

fn transaction(chain_id: u64, sent: &Transaction, base_fee: Option<u64>) -> Tx {
    let TransactionForm::Canonical(bytes) = &sent.form else { panic!("they are canonical") };
    // Typed ones are RLP byte strings.
    let kind = if bytes[0] < 0x80 { bytes[0] } else { 0 };
    let wrapped = if kind == 0 { bytes.to_vec() } else { alloy_rlp::encode(bytes) };
    let envelope = TxEnvelope::decode(&mut &wrapped[..]).expect("a transaction");
    let from = signers::sender(&envelope).expect("it is signed");
    let creates = envelope.to().is_none();
    Tx {
        index: 0,
        hash: keccak256(bytes),
        kind,
        from,
        to: envelope.to(),
        created: creates.then(|| from.create(envelope.nonce())),
        authorities: signers::authorities(&envelope, chain_id),
        nonce: envelope.nonce(),
        value: envelope.value(),
        input: envelope.input().clone(),
        success: None,
        gas_limit: envelope.gas_limit(),
        gas_used: 0,
        price: envelope.effective_gas_price(base_fee),
        blobs: envelope.blob_versioned_hashes().map_or(0, <[B256]>::len),
        logs: Vec::new(),
    }
}

fn withdrawals(bytes: &[u8]) -> Vec<(u64, u64, Address, u64)> {
    let mut rest = alloy_rlp::Header::decode_bytes(&mut &bytes[..], true).expect("a list");
    let mut all = Vec::new();
    while !rest.is_empty() {
        let mut one = alloy_rlp::Header::decode_bytes(&mut rest, true).expect("a list");
        let number = |one: &mut &[u8]| u64::decode(one).expect("a number");
        let (index, validator) = (number(&mut one), number(&mut one));
        let address = Address::decode(&mut one).expect("an address");
        all.push((index, validator, address, number(&mut one)));
    }
    all
}

fn transactions(assumptions: &Assumptions, blocks: &[Facts], out: &mut ExpectedTables) {
    for block in blocks {
        for tx in &block.transactions {
            let selector = tx.to.and(tx.input.get(..4));
            let place = row![block.number, tx.index];
            let about = row![
                tx.hash,
                tx.kind,
                tx.from,
                tx.to,
                tx.created,
                tx.nonce,
                tx.value,
                selector,
                tx.input.len(),
                tx.success,
                block.time
            ];
            out.add("evm_transactions", [place.clone(), about].concat());
            let (gas, price) = (u128::from(tx.gas_used), tx.price);
            let burnt = gas * price.min(u128::from(block.base_fee));
            let blob_fee = (tx.blobs > 0).then_some(assumptions.blob_gas_price).flatten();
            let metrics = row![
                tx.logs.len(),
                gas,
                tx.gas_limit,
                price,
                gas * price,
                burnt,
                gas * price - burnt,
                blob_fee.map(|price| 131_072 * tx.blobs as u64 * price),
                None::<u64>,
                tx.success
            ];
            out.add("tx_metrics", [place, metrics].concat());
        }
    }
}

fn fees(assumptions: &Assumptions, blocks: &[Facts], out: &mut ExpectedTables) {
    let collected = keccak256("FeesCollected(address,address,uint256,uint256)");
    let forwarded = keccak256("FeesForwarded(address,(address,uint256)[])");
    for (block, tx, index, log) in logs(blocks) {
        let place = row![block.number, index];
        let about = row![tx.index, tx.hash, block.time, log.address];
        if is(log, collected, 3, 2) && log.address.text() == COLLECTOR {
            let said =
                row![topic_address(log, 1), topic_address(log, 2), word(log, 0), word(log, 1)];
            out.add("fee_events", [place, about, said].concat());
        } else if log.topics.first() == Some(&forwarded)
            && Some(log.address) == assumptions.forwarder
        {
            let count: usize = word(log, 1).to();
            for part in 0..count {
                let recipient = Address::from_slice(&log.data[64 + 64 * part + 12..][..20]);
                let said = row![topic_address(log, 1), recipient, word(log, 3 + 2 * part)];
                let (place, batch) = (place.clone(), row![part]);
                out.add("fee_forwards", [place, batch, about.clone(), said].concat());
            }
        }
    }
}

/// The rule of the tests: transfers of fungible tokens, with six decimals, as usage of their senders.
fn usage(blocks: &[Facts], out: &mut ExpectedTables) {
    let transfer = keccak256("Transfer(address,address,uint256)");
    for (block, tx, index, log) in logs(blocks) {
        if !is(log, transfer, 3, 1) {
            continue;
        }
        let digits = format!("{:0>7}", word(log, 0).to_string());
        let (before, after) = digits.split_at(digits.len() - 6);
        let (from, to) = (topic_address(log, 1).text(), topic_address(log, 2).text());
        let amount = format!("{before}.{after}");
        let metadata = format!("{{\"to\":\"0x{to}\"}}");
        let place = row![block.number, index, 0u8, block.hash, tx.hash, block.time];
        let said = row!["transfers", "transfers", format!("0x{from}"), amount, metadata];
        out.add("usage_events", [place, said].concat());
    }
}

/// Every log, with its block, transaction and position.
pub(super) fn logs(blocks: &[Facts]) -> impl Iterator<Item = (&Facts, &Tx, usize, &Log)> {
    blocks.iter().flat_map(|block| {
        block
            .transactions
            .iter()
            .flat_map(move |tx| tx.logs.iter().map(move |(index, log)| (block, tx, *index, log)))
    })
}

/// Whether a log is of an event, with this many topics and words of data; topics that hold addresses must be valid.
pub(super) fn is(log: &Log, event: B256, topics: usize, words: usize) -> bool {
    log.topics.first() == Some(&event) && log.topics.len() == topics && log.data.len() == 32 * words
}

pub(super) fn word(log: &Log, number: usize) -> U256 {
    U256::from_be_slice(&log.data[32 * number..32 * number + 32])
}

pub(super) fn word_address(log: &Log, number: usize) -> Address {
    Address::from_slice(&log.data[32 * number + 12..32 * number + 32])
}

pub(super) fn topic_address(log: &Log, number: usize) -> Address {
    Address::from_slice(&log.topics[number][12..])
}

/// Widens a signed 256-bit number, for sums.
pub(super) fn wide(number: U256) -> I512 {
    I512::from_raw(U512::from(number))
}
