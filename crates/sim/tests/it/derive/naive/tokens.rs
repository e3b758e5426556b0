//! Transfers, tokens, collections, holdings, owners and days.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, U256, keccak256};
use logmill_chain::Log;

use super::{
    ExpectedTables, Facts, I512, Text, Tx, WETH, is, logs, row, topic_address, wide, word,
};

/// A transfer of any kind of token.
pub(super) struct TokenTransfer {
    pub(super) number: u64,
    time: u64,
    pub(super) transaction: usize,
    log: usize,
    batch: usize,
    /// 0 for a fungible one, else the standard.
    pub(super) standard: u64,
    token: Address,
    id: U256,
    pub(super) from: Address,
    pub(super) to: Address,
    amount: U256,
    /// Whether it comes from a `Deposit` or `Withdrawal` of wrapped ether.
    pub(super) wraps: bool,
}

impl TokenTransfer {
    /// 1 for a mint, 2 for a burn, else 0.
    pub(super) fn kind(&self) -> u8 {
        match (self.from.is_zero(), self.to.is_zero()) {
            (true, false) => 1,
            (false, true) => 2,
            _ => 0,
        }
    }
}

/// All transfers in the order of the chain.
pub(super) fn moved(blocks: &[Facts]) -> Vec<TokenTransfer> {
    logs(blocks).flat_map(|(block, tx, index, log)| read(block, tx, index, log)).collect()
}

fn read(block: &Facts, tx: &Tx, index: usize, log: &Log) -> Vec<TokenTransfer> {
    let transfer = keccak256("Transfer(address,address,uint256)");
    let single = keccak256("TransferSingle(address,address,address,uint256,uint256)");
    let batch = keccak256("TransferBatch(address,address,address,uint256[],uint256[])");
    let (zero, one) = (Address::ZERO, U256::ONE);
    let party = |topic| topic_address(log, topic);
    let made = |batch, standard, id, from, to, amount, wraps| TokenTransfer {
        number: block.number,
        time: block.time,
        transaction: tx.index,
        log: index,
        batch,
        standard,
        token: log.address,
        id,
        from,
        to,
        amount,
        wraps,
    };
    let is_weth = log.address.text() == WETH;
    if is(log, transfer, 3, 1) {
        vec![made(0, 0, U256::ZERO, party(1), party(2), word(log, 0), false)]
    } else if is(log, transfer, 4, 0) {
        vec![made(0, 721, log.topics[3].into(), party(1), party(2), one, false)]
    } else if is_weth && is(log, keccak256("Deposit(address,uint256)"), 2, 1) {
        vec![made(0, 0, U256::ZERO, zero, party(1), word(log, 0), true)]
    } else if is_weth && is(log, keccak256("Withdrawal(address,uint256)"), 2, 1) {
        vec![made(0, 0, U256::ZERO, party(1), zero, word(log, 0), true)]
    } else if is(log, single, 4, 2) {
        vec![made(0, 1155, word(log, 0), party(2), party(3), word(log, 1), false)]
    } else if log.topics.first() == Some(&batch) {
        let count: usize = word(log, 2).to();
        let item = |item| {
            let (id, amount) = (word(log, 3 + item), word(log, 4 + count + item));
            made(item, 1155, id, party(2), party(3), amount, false)
        };
        (0..count).map(item).collect()
    } else {
        Vec::new()
    }
}

pub(super) fn tables(blocks: &[Facts], out: &mut ExpectedTables) {
    let all = moved(blocks);
    let (ft, nft): (Vec<&TokenTransfer>, Vec<&TokenTransfer>) =
        all.iter().partition(|it| it.standard == 0);
    for it in &ft {
        let place = row![it.number, it.log, it.transaction];
        let said = row![it.token, it.from, it.to, it.amount, it.kind(), it.time];
        out.add("ft_transfers", [place, said].concat());
    }
    for it in &nft {
        let place = row![it.number, it.log, it.batch, it.transaction];
        let said =
            row![it.token, it.id, it.from, it.to, it.amount, it.standard, it.kind(), it.time];
        out.add("nft_transfers", [place, said].concat());
    }
    catalogue("ft_tokens", &ft, out);
    catalogue("nft_collections", &nft, out);
    holdings(&ft, out);
    owners(&nft, out);
}

fn catalogue(table: &'static str, all: &[&TokenTransfer], out: &mut ExpectedTables) {
    let tokens: BTreeSet<Address> = all.iter().map(|it| it.token).collect();
    for token in tokens {
        let of: Vec<&&TokenTransfer> = all.iter().filter(|it| it.token == token).collect();
        let supply = |kind| -> I512 {
            of.iter().filter(|it| it.kind() == kind).map(|it| wide(it.amount)).sum()
        };
        let heights = || of.iter().map(|it| it.number);
        let mut row = row![token];
        if table == "nft_collections" {
            row.extend(row![of.iter().map(|it| it.standard).max()]);
        }
        let counts = row![heights().min(), heights().max(), of.len(), supply(1), supply(2)];
        out.add(table, [row, counts].concat());
    }
}

/// The balance of an account, and the transfers that it took part in.
#[derive(Default)]
struct Balance<'a> {
    sum: I512,
    transfers: Vec<&'a TokenTransfer>,
}

impl<'a> Balance<'a> {
    fn add(&mut self, it: &'a TokenTransfer, received: bool) {
        let amount = wide(it.amount);
        self.sum += if received { amount } else { -amount };
        let is_new = self.transfers.last().is_none_or(|last| !std::ptr::eq(*last, it));
        if is_new {
            self.transfers.push(it);
        }
    }

    fn last(&self) -> Option<u64> {
        self.transfers.iter().map(|it| it.number).max()
    }
}

fn holdings(ft: &[&TokenTransfer], out: &mut ExpectedTables) {
    let mut all: BTreeMap<(Address, Address), Balance<'_>> = BTreeMap::new();
    let mut days: BTreeMap<(Address, Address, u64), Balance<'_>> = BTreeMap::new();
    for it in ft {
        for (party, received) in [(it.from, false), (it.to, true)] {
            if !party.is_zero() {
                all.entry((party, it.token)).or_default().add(it, received);
                days.entry((party, it.token, it.time / 86_400)).or_default().add(it, received);
            }
        }
    }
    for ((party, token), held) in &all {
        let row = row![party, token, held.sum, held.transfers.len(), held.last()];
        out.add("ft_holdings", row);
    }
    for ((party, token, day), held) in &days {
        let transactions: BTreeSet<(u64, usize)> =
            held.transfers.iter().map(|it| (it.number, it.transaction)).collect();
        let row = row![party, token, day, held.sum, transactions.len(), held.last()];
        out.add("daily_balances", row);
    }
}

fn owners(nft: &[&TokenTransfer], out: &mut ExpectedTables) {
    let mut items: BTreeMap<(Address, U256), Vec<&TokenTransfer>> = BTreeMap::new();
    let mut quantities: BTreeMap<(Address, U256, Address), Balance<'_>> = BTreeMap::new();
    for it in nft {
        if it.standard == 721 {
            items.entry((it.token, it.id)).or_default().push(it);
            continue;
        }
        for (party, received) in [(it.from, false), (it.to, true)] {
            if !party.is_zero() {
                quantities.entry((it.token, it.id, party)).or_default().add(it, received);
            }
        }
    }
    for ((token, id), transfers) in &items {
        let last = transfers[transfers.len() - 1];
        out.add("nft_ownership", row![token, id, last.to, last.number, transfers.len()]);
    }
    for ((token, id, party), held) in &quantities {
        out.add("nft_balances", row![token, id, party, held.sum, held.last()]);
    }
}
