//! Participants: accounts, their transactions, and counts of these.

use std::collections::BTreeMap;

use alloy_primitives::{Address, U256};

use super::{ExpectedTables, Facts, row, tokens};

#[derive(Default)]
struct Account {
    heights: Vec<u64>,
    is_contract: bool,
    is_signer: bool,
}

#[derive(Default)]
struct Stats {
    transactions: u64,
    sent: u64,
    gas: U256,
    last: u64,
}

pub(super) fn tables(blocks: &[Facts], out: &mut ExpectedTables) {
    accounts(blocks, out);
    let roles = roles(blocks);
    let mut stats: BTreeMap<Address, Stats> = BTreeMap::new();
    for ((address, number, index), roles) in &roles {
        out.add("address_transactions", row![address, number, index, roles]);
        let block = blocks.iter().find(|block| block.number == *number).expect("its block");
        let stats = stats.entry(*address).or_default();
        stats.transactions += 1;
        stats.last = stats.last.max(*number);
        if roles & 1 != 0 {
            stats.sent += 1;
            stats.gas += U256::from(block.transactions[*index].gas_used);
        }
    }
    for (address, stats) in stats {
        let row = row![address, stats.transactions, stats.sent, stats.gas, stats.last];
        out.add("account_stats", row);
    }
}

fn accounts(blocks: &[Facts], out: &mut ExpectedTables) {
    let mut all: BTreeMap<Address, Account> = BTreeMap::new();
    let mut see = |address: Address, number: u64, is_contract: bool, is_signer: bool| {
        let account = all.entry(address).or_default();
        account.heights.push(number);
        account.is_contract |= is_contract;
        account.is_signer |= is_signer;
    };
    for it in tokens::moved(blocks) {
        see(it.from, it.number, false, false);
        see(it.to, it.number, false, false);
    }
    for block in blocks {
        see(block.miner, block.number, false, false);
        for (_, _, address, _) in &block.withdrawals {
            see(*address, block.number, false, false);
        }
        for tx in &block.transactions {
            see(tx.from, block.number, false, true);
            tx.to.into_iter().for_each(|to| see(to, block.number, false, false));
            let succeeded = tx.success == Some(true);
            tx.created.into_iter().for_each(|it| see(it, block.number, succeeded, false));
            tx.authorities.iter().for_each(|it| see(*it, block.number, false, true));
            tx.logs.iter().for_each(|(_, log)| see(log.address, block.number, true, false));
        }
    }
    all.remove(&Address::ZERO);
    for (address, seen) in all {
        let (first, last) = (seen.heights.iter().min(), seen.heights.iter().max());
        out.add("accounts", row![address, first, last, seen.is_contract, seen.is_signer]);
    }
}

/// The roles of each address in each transaction: payer 1, receiver 2, created 4, sender and receiver of fungible
/// tokens 8 and 16, of others 32 and 64, authorizer 128.
fn roles(blocks: &[Facts]) -> BTreeMap<(Address, u64, usize), u8> {
    let mut all: BTreeMap<(Address, u64, usize), u8> = BTreeMap::new();
    let mut add = |address: Address, number: u64, index: usize, role: u8| {
        if !address.is_zero() {
            *all.entry((address, number, index)).or_default() |= role;
        }
    };
    for block in blocks {
        for tx in &block.transactions {
            add(tx.from, block.number, tx.index, 1);
            tx.to.into_iter().for_each(|to| add(to, block.number, tx.index, 2));
            tx.created.into_iter().for_each(|it| add(it, block.number, tx.index, 4));
            tx.authorities.iter().for_each(|it| add(*it, block.number, tx.index, 128));
        }
    }
    for it in tokens::moved(blocks) {
        let (sender, receiver) = if it.standard == 0 { (8, 16) } else { (32, 64) };
        add(it.from, it.number, it.transaction, sender);
        add(it.to, it.number, it.transaction, receiver);
    }
    all
}
