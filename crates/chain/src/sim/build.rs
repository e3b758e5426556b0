//! Builds a block of a simulated chain: draws actions, signs transactions, and computes the header.
//!
//! Guarantees: the block follows only from the seed, the shape, its parent and its branch, and passes
//! [`crate::VerifyLevel::Full`]. Rules that need a state do not hold: balances, gapless nonces, the change of the
//! base fee. Leaves to others: the order of blocks.

use alloy_consensus::constants::EMPTY_OMMER_ROOT_HASH;
use alloy_consensus::{Header as EvmHeader, TxType};
use alloy_eips::eip4895::Withdrawal;
use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
use alloy_primitives::{Address, B64, Bloom, Bytes, U256, keccak256};
use alloy_rlp::BufMut;
use alloy_trie::root::{ordered_trie_root, ordered_trie_root_with_encoder};

use super::SimSettings;
use super::action::{self, Call};
use super::actors::Actors;
use super::draw::{self, Draw};
use super::envelope::{self, Envelope};
use super::extra_transaction::ExtraTransactions;
use super::shape::Fork;
use super::sign::Account;
use crate::block::{Block, BlockRef, Header, Outcome, Receipt, Transaction};
use crate::body;
use crate::verify::receipts_root;
use crate::verify_level::VerifyLevel;

/// How many of 1 024 transactions succeed without logs, and how many fail.
const QUIET_SHARE: u64 = 300;
const FAILED_SHARE: u64 = 40;
/// How many of 1 024 blocks are empty.
const EMPTY_SHARE: u64 = 12;
/// Maximum number of withdrawals in a block.
const WITHDRAWALS_MAX: u64 = 16;
/// Gas limit of a block, unless its transactions need more.
const GAS_LIMIT: u64 = 60_000_000;
/// Gas of a transfer, and the additional gas of a call.
const GAS_BASE: u64 = 21_000;
const GAS_CALL: u64 = 25_000;
/// Blob gas of one blob.
const GAS_PER_BLOB: u64 = 131_072;
/// Proposers of blocks.
const VALIDATORS: u64 = 7;
const VALIDATORS_COUNT: u64 = 32;
const GWEI: u64 = 1_000_000_000;

/// The first block of a chain: empty and without a parent.
pub(super) fn genesis(settings: &SimSettings) -> Block {
    let timestamp = settings.genesis_s;
    let parent = BlockRef { timestamp, ..BlockRef::default() };
    let mut draw = Draw::of(&[settings.seed]);
    assemble(
        settings,
        BlockPosition { parent, number: 0, timestamp, branch: 0 },
        Vec::new(),
        &mut draw,
    )
}

/// Builds the block on top of `parent` in a branch.
pub(super) fn next(
    settings: &SimSettings,
    actors: &Actors,
    parent: BlockRef,
    branch: u32,
    extra: ExtraTransactions,
) -> Block {
    let number = parent.number + 1;
    let timestamp = parent.timestamp + settings.slot_s;
    let place = BlockPosition { parent, number, timestamp, branch };
    let mut draw = Draw::of(&[settings.seed, number, u64::from(branch)]);
    let mut done = if draw.chance(EMPTY_SHARE) {
        Vec::new()
    } else {
        draw_transactions(settings, actors, place, &mut draw)
    };
    for added in extra(number, branch) {
        let (sender, failed) = (actors.draw_sender(&mut draw), false);
        seal(
            settings,
            actors,
            place,
            &mut draw,
            &mut done,
            DrawnCall { sender, call: added.call(), failed },
        );
    }
    assemble(settings, place, done, &mut draw)
}

#[derive(Clone, Copy)]
struct BlockPosition {
    parent: BlockRef,
    number: u64,
    timestamp: u64,
    branch: u32,
}

impl BlockPosition {
    fn base_fee(&self) -> u64 {
        8 * GWEI + Draw::of(&[self.number]).below(20 * GWEI)
    }
}

/// A signed transaction and its receipt.
struct SealedTransaction {
    bytes: Bytes,
    receipt: Receipt,
    blobs: u64,
}

/// Draws and signs the transactions of a block.
fn draw_transactions(
    settings: &SimSettings,
    actors: &Actors,
    place: BlockPosition,
    draw: &mut Draw,
) -> Vec<SealedTransaction> {
    let count = draw.around(settings.shape.transactions);
    let mut logs_left = draw.around(settings.shape.logs);
    let mut done = Vec::with_capacity(count);
    for index in 0..count {
        let sender = actors.draw_sender(draw);
        // Scaled up, because quiet transactions leave their share of logs to the others.
        let share = logs_left * 1024 / 724 / (count - index);
        let mut call = call(actors, draw, sender.address, share);
        let failed = draw.chance(FAILED_SHARE);
        if failed {
            call.logs.clear();
        }
        logs_left = logs_left.saturating_sub(call.logs.len());
        seal(settings, actors, place, draw, &mut done, DrawnCall { sender, call, failed });
    }
    done
}

/// A call that is to become a transaction.
struct DrawnCall {
    sender: Account,
    call: Call,
    failed: bool,
}

/// Signs a call and appends it, with its receipt, to `done`.
fn seal(
    settings: &SimSettings,
    actors: &Actors,
    place: BlockPosition,
    draw: &mut Draw,
    done: &mut Vec<SealedTransaction>,
    sent: DrawnCall,
) {
    let DrawnCall { sender, call, failed } = sent;
    let gas = gas(&call);
    let envelope = Envelope {
        chain_id: settings.chain_id,
        base_fee: place.base_fee(),
        // Grows with each transaction of an account, but not by one.
        nonce: place.number * 4096 + u64::try_from(done.len()).unwrap_or(0),
        gas,
        fork: settings.shape.fork,
    };
    let (tx_type, blobs, bytes) = envelope::seal(&envelope, &call, actors, &sender, draw);
    let before = done.last().map_or(0, |done| done.receipt.cumulative_gas_used);
    let receipt = receipt(settings, draw, tx_type, failed, before + gas, call);
    done.push(SealedTransaction { bytes, blobs, receipt });
}

fn call(actors: &Actors, draw: &mut Draw, sender: Address, logs: usize) -> Call {
    if logs == 0 || draw.chance(QUIET_SHARE) {
        return action::quiet(actors, draw);
    }
    let mut call = action::loud(actors, draw, sender);
    while call.logs.len() < logs {
        // One call that does several things, like those of routers.
        call.logs.extend(action::loud(actors, draw, sender).logs);
    }
    call
}

fn gas(call: &Call) -> u64 {
    let bytes = |length: usize| u64::try_from(length).unwrap_or(0);
    if call.input.is_empty() {
        return GAS_BASE;
    }
    let logs = call
        .logs
        .iter()
        .map(|log| 10_000 + 375 * (1 + bytes(log.topics.len())) + 8 * bytes(log.data.len()));
    GAS_BASE + GAS_CALL + 16 * bytes(call.input.len()) + logs.sum::<u64>()
}

fn receipt(
    settings: &SimSettings,
    draw: &mut Draw,
    tx_type: TxType,
    failed: bool,
    cumulative_gas_used: u64,
    call: Call,
) -> Receipt {
    let outcome = match settings.shape.fork {
        Fork::Homestead => Outcome::StateRoot(draw.word()),
        Fork::London | Fork::Prague => Outcome::Status(!failed),
    };
    let tx_type = u8::from(tx_type);
    Receipt { tx_type, outcome, cumulative_gas_used, logs: call.logs, extra: None }
}

/// Builds the block from its transactions.
fn assemble(
    settings: &SimSettings,
    place: BlockPosition,
    done: Vec<SealedTransaction>,
    draw: &mut Draw,
) -> Block {
    let blobs: u64 = done.iter().map(|done| done.blobs).sum();
    let (bytes, receipts): (Vec<Bytes>, Vec<Receipt>) =
        done.into_iter().map(|done| (done.bytes, done.receipt)).unzip();
    let withdrawals = withdrawals(settings, place.number, draw);
    let header = header(settings, place, &bytes, &receipts, blobs, withdrawals.as_deref(), draw);
    let header = Bytes::from(alloy_rlp::encode(&header));
    let mut block = Block {
        at: BlockRef {
            number: place.number,
            hash: keccak256(&header),
            parent_hash: place.parent.hash,
            timestamp: place.timestamp,
        },
        header: Header::Canonical(header),
        uncles: Vec::new(),
        withdrawals: withdrawals.map(|list| alloy_rlp::encode(&list).into()),
        size: 0,
        transactions: bytes.into_iter().map(Transaction::canonical).collect(),
        receipts,
        verified: VerifyLevel::Off,
        node_fields: crate::KeptFields::default(),
    };
    // Cannot fail: everything in the block is canonical, and there are no uncles.
    block.size = body::size_of(&block).unwrap_or(0);
    block
}

fn withdrawals(settings: &SimSettings, number: u64, draw: &mut Draw) -> Option<Vec<Withdrawal>> {
    if settings.shape.fork < Fork::Prague {
        return None;
    }
    let count = if number == 0 { 0 } else { draw.below(WITHDRAWALS_MAX + 1) };
    let withdrawal = |index| Withdrawal {
        index: number * WITHDRAWALS_MAX + index,
        validator_index: draw.below(1 << 20),
        address: Address::from_slice(&draw.word()[12..]),
        amount: draw.below(20_000_000),
    };
    Some((0..count).map(withdrawal).collect())
}

fn header(
    settings: &SimSettings,
    place: BlockPosition,
    transactions: &[Bytes],
    receipts: &[Receipt],
    blobs: u64,
    withdrawals: Option<&[Withdrawal]>,
    draw: &mut Draw,
) -> EvmHeader {
    let fork = settings.shape.fork;
    let mut logs_bloom = Bloom::ZERO;
    let logs = receipts.iter().flat_map(|receipt| &receipt.logs);
    logs.for_each(|log| log.accrue(&mut logs_bloom));
    let gas_used = receipts.last().map_or(0, |receipt| receipt.cumulative_gas_used);
    let is_prague = fork == Fork::Prague;
    EvmHeader {
        parent_hash: place.parent.hash,
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: draw::address(settings.seed, VALIDATORS, draw.below(VALIDATORS_COUNT)),
        state_root: draw.word(),
        transactions_root: ordered_trie_root_with_encoder(transactions, |bytes, out| {
            out.put_slice(bytes);
        }),
        receipts_root: receipts_root(receipts),
        logs_bloom,
        difficulty: if is_prague { U256::ZERO } else { U256::from(131_072 + draw.below(1 << 12)) },
        number: place.number,
        gas_limit: GAS_LIMIT.max(gas_used),
        gas_used,
        timestamp: place.timestamp,
        // Makes branches differ even if their blocks are empty.
        extra_data: Bytes::from(format!("sim {} {}", settings.seed, place.branch).into_bytes()),
        mix_hash: draw.word(),
        nonce: if is_prague { B64::ZERO } else { B64::from(draw.bits()) },
        base_fee_per_gas: (fork >= Fork::London).then(|| place.base_fee()),
        withdrawals_root: withdrawals.map(ordered_trie_root),
        blob_gas_used: is_prague.then_some(blobs * GAS_PER_BLOB),
        excess_blob_gas: is_prague.then_some(0),
        parent_beacon_block_root: is_prague.then(|| draw.word()),
        requests_hash: is_prague.then_some(EMPTY_REQUESTS_HASH),
        ..EvmHeader::default()
    }
}
