//! The rules, version 1: how the lines of a bill follow from a transaction and its receipt.
//!
//! | statement | follows from |
//! |---|---|
//! | sender | the signature of the transaction |
//! | value of the transaction | a transfer of `native`, if the transaction took effect and the value is not 0 |
//! | token transfers | logs of the receipt, as the tables decode them ([`logmill_pipeline`], `decoded/tokens.rs`) |
//! | network fee | gas used (both receipts), price (transaction and base fee), blob gas (transaction and header) |
//! | totals | the lines |
//!
//! Guarantees: pure functions of the facts, so that a bill and its verification agree; nothing but the fee is a line of
//! a reverted transaction. Leaves to others: symbols, prices and what only a node reports.

use std::collections::BTreeMap;

use alloy_primitives::{Address, Bytes, U256, U512};
use logmill_chain::{
    Block, BlockRef, Header, KeptFields, Log, Outcome, Receipt, Transaction, VerifyLevel,
};
use logmill_pipeline::derive::decoded::{NftStandard, TokenSettings, Tokens, TransferKind};

use crate::document::{
    Amount, Basis, BillDocument, FORMAT, FeeKind, FeePart, Identity, Line, LineKind, NetworkFee,
    Party, RULES, Role, Status, Total, VERSION,
};
use crate::evidence::TransactionFacts;

const NATIVE: &str = "native";

/// The document that follows from facts. All of it has the same basis.
pub fn document(facts: &TransactionFacts, basis: Basis) -> BillDocument {
    let lines = lines(facts, basis);
    BillDocument {
        format: FORMAT.to_owned(),
        version: VERSION,
        rules: RULES,
        identity: identity(facts, basis),
        parties: parties(facts, basis),
        totals: totals(&lines, basis),
        lines,
        network_fee: network_fee(facts, basis),
    }
}

fn identity(facts: &TransactionFacts, basis: Basis) -> Identity {
    Identity {
        chain_id: facts.chain_id,
        block_number: facts.block.number,
        block_hash: facts.block.hash,
        timestamp: facts.block.timestamp,
        transaction_index: facts.index,
        transaction_hash: facts.hash,
        transaction_type: facts.tx_type,
        nonce: facts.nonce,
        status: match facts.succeeded {
            Some(true) => Status::Success,
            Some(false) => Status::Reverted,
            None => Status::Unknown,
        },
        basis,
    }
}

fn parties(facts: &TransactionFacts, basis: Basis) -> Vec<Party> {
    let sender = facts.from.map(|address| (Role::Sender, address));
    let recipient = facts.to.map(|address| (Role::Recipient, address));
    let created = facts.created.map(|address| (Role::CreatedContract, address));
    let authorities = facts.authorities.iter().map(|address| (Role::Authority, *address));
    let parties = [sender, recipient, created].into_iter().flatten().chain(authorities);
    let party = |(role, address)| {
        let basis = if role == Role::CreatedContract { effect_basis(facts, basis) } else { basis };
        Party { role, address: text(address), basis }
    };
    parties.map(party).collect()
}

/// The basis of what happened only if the transaction succeeded, where nothing shows that it did.
fn effect_basis(facts: &TransactionFacts, basis: Basis) -> Basis {
    if facts.took_effect().is_some() { basis } else { Basis::Attested }
}

fn lines(facts: &TransactionFacts, basis: Basis) -> Vec<Line> {
    if facts.took_effect() == Some(false) {
        return Vec::new();
    }
    let mut lines = Vec::new();
    let recipient = facts.to.or(facts.created);
    if let (Some(from), Some(to)) = (facts.from, recipient)
        && !facts.value.is_zero()
    {
        lines.push(Line {
            kind: LineKind::Transfer,
            asset: NATIVE.to_owned(),
            from: text(from),
            to: text(to),
            amount: amount(facts.value),
            basis: effect_basis(facts, basis),
            log: None,
            item: None,
        });
    }
    lines.extend(token_lines(&facts.logs, basis));
    lines
}

/// Lines of logs, in the order of the logs and of the items of a batch.
fn token_lines(logs: &[Log], basis: Basis) -> Vec<Line> {
    let tokens = Tokens::of(&block_of(logs), TokenSettings::known());
    let fungible = tokens.ft.into_iter().map(|moved| Line {
        kind: kind(moved.kind),
        asset: format!("erc20:{:#x}", moved.token),
        from: text(moved.from),
        to: text(moved.to),
        amount: amount(moved.amount),
        basis,
        log: Some(moved.log_index as u64),
        item: None,
    });
    let items = tokens.nft.into_iter().map(|moved| {
        let (standard, item) = match moved.standard {
            NftStandard::Erc721 => ("erc721", None),
            NftStandard::Erc1155 => ("erc1155", Some(moved.batch_index as u64)),
        };
        Line {
            kind: kind(moved.kind),
            asset: format!("{standard}:{:#x}/{}", moved.collection, moved.token_id),
            from: text(moved.from),
            to: text(moved.to),
            amount: amount(moved.quantity),
            basis,
            log: Some(moved.log_index as u64),
            item,
        }
    });
    let mut lines: Vec<Line> = fungible.chain(items).collect();
    lines.sort_by_key(|line| (line.log, line.item));
    lines
}

/// A block that holds these logs alone, so that their index is their position in the receipt.
fn block_of(logs: &[Log]) -> Block {
    let receipt = Receipt {
        tx_type: 0,
        outcome: Outcome::Status(true),
        cumulative_gas_used: 0,
        logs: logs.to_vec(),
        extra: None,
    };
    Block {
        at: BlockRef::default(),
        header: Header::Foreign(Bytes::new()),
        uncles: Vec::new(),
        withdrawals: None,
        size: 0,
        transactions: vec![Transaction::canonical(Bytes::new())],
        receipts: vec![receipt],
        verified: VerifyLevel::Off,
        node_fields: KeptFields::default(),
    }
}

fn network_fee(facts: &TransactionFacts, basis: Basis) -> NetworkFee {
    let gas = facts.gas_used.zip(facts.gas_price);
    let mut parts = Vec::new();
    let part = |kind, amount: U512| FeePart { kind, amount: Amount(amount), basis };
    if let Some((gas, price)) = gas {
        let of_gas = |price: u128| U512::from(gas) * U512::from(price);
        match facts.base_fee.map(u128::from).filter(|base| *base <= price) {
            Some(base) => {
                parts.push(part(FeeKind::Base, of_gas(base)));
                parts.push(part(FeeKind::Tip, of_gas(price - base)));
            }
            None => parts.push(part(FeeKind::Execution, of_gas(price))),
        }
    }
    if let Some((gas, price)) = facts.blob_gas_used.zip(facts.blob_gas_price) {
        parts.push(part(FeeKind::Blob, U512::from(gas) * U512::from(price)));
    }
    if let Some(fee) = facts.l1_fee {
        parts.push(part(FeeKind::L1Data, U512::from(fee)));
    }
    let is_whole = gas.is_some() && facts.blob_gas_used.is_some() == facts.blob_gas_price.is_some();
    let total = is_whole.then(|| Amount(parts.iter().map(|part| part.amount.0).sum()));
    NetworkFee {
        payer: facts.from.map(text),
        gas_limit: facts.gas_limit,
        gas_used: facts.gas_used,
        gas_price: facts.gas_price.map(|price| Amount(U512::from(price))),
        parts,
        total,
        basis,
    }
}

/// Sums by asset. A sum is proven only if all of its lines are.
fn totals(lines: &[Line], basis: Basis) -> Vec<Total> {
    let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
    for line in lines {
        let asset = line.asset.clone();
        let empty = || Total { asset, lines: 0, moved: Amount::default(), basis };
        let total = totals.entry(&line.asset).or_insert_with(empty);
        total.lines += 1;
        // The lines of a receipt are far too few for their sum to exceed 512 bits.
        total.moved = Amount(total.moved.0 + line.amount.0);
        if line.basis == Basis::Attested {
            total.basis = Basis::Attested;
        }
    }
    totals.into_values().collect()
}

fn kind(kind: TransferKind) -> LineKind {
    match kind {
        TransferKind::Transfer => LineKind::Transfer,
        TransferKind::Mint => LineKind::Mint,
        TransferKind::Burn => LineKind::Burn,
    }
}

fn amount(value: U256) -> Amount {
    Amount(U512::from(value))
}

/// Lower case, without a checksum.
fn text(address: Address) -> String {
    format!("{address:#x}")
}
