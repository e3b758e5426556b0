//! Naive computation of the token tables, with maps, from raw log bytes.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, U256, address};
use logmill_chain::Log;
use logmill_chain::sim::action::{DEPOSIT, TRANSFER, TRANSFER_BATCH, TRANSFER_SINGLE, WITHDRAWAL};
use logmill_io::Amount;

use crate::cells;
use crate::derive::{Cell, DecodedBlock};

const WETH: Address = address!("0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2");

/// An account and a token.
type HoldingKey = (Address, Address);
/// A collection and an item.
type ItemKey = (Address, U256);

/// Amounts received and given, in which transactions, and the last height.
#[derive(Default)]
struct Flow {
    received: Vec<U256>,
    given: Vec<U256>,
    transfers: u64,
    transactions: BTreeSet<(u64, usize)>,
    last: u64,
}

#[derive(Default)]
pub(super) struct NaiveTables {
    pub(super) ft_transfers: usize,
    pub(super) nft_transfers: usize,
    holdings: BTreeMap<HoldingKey, Flow>,
    daily: BTreeMap<(HoldingKey, u64), Flow>,
    /// Owner, last height, transfers.
    owners: BTreeMap<ItemKey, (Address, u64, u64)>,
    quantities: BTreeMap<(ItemKey, Address), Flow>,
}

fn word(bytes: &[u8], number: usize) -> U256 {
    U256::from_be_slice(&bytes[number * 32..number * 32 + 32])
}

fn party(log: &Log, topic: usize) -> Address {
    Address::from_slice(&log.topics[topic][12..])
}

impl Flow {
    fn add(&mut self, place: (u64, usize), received: bool, amount: U256) {
        if received { &mut self.received } else { &mut self.given }.push(amount);
        self.transactions.insert(place);
        self.last = place.0;
    }

    fn sum(&self) -> Amount {
        let of = |amount: &U256| Amount::from_be_bytes(&amount.to_be_bytes::<32>()).unwrap();
        let received = self.received.iter().map(of);
        let given = self.given.iter().map(|amount| -of(amount));
        received.chain(given).fold(Amount::ZERO, |sum, amount| sum.checked_add(amount).unwrap())
    }
}

impl NaiveTables {
    pub(super) fn of(blocks: &[DecodedBlock]) -> Self {
        let mut naive = Self::default();
        for block in blocks {
            for placed in block.block.logs() {
                let place = (block.number(), placed.transaction_index);
                naive.add(place, block.timestamp() / 86_400, placed.log);
            }
        }
        naive
    }

    fn add(&mut self, place: (u64, usize), day: u64, log: &Log) {
        let token = log.address;
        let (topic, count) = (log.topics.first().copied().unwrap_or_default(), log.topics.len());
        if topic == TRANSFER && count == 3 {
            self.moved(place, day, token, [party(log, 1), party(log, 2)], word(&log.data, 0));
        } else if topic == TRANSFER && count == 4 {
            self.nft_transfers += 1;
            let id = log.topics[3].into();
            let owned = self.owners.entry((token, id)).or_insert((Address::ZERO, 0, 0));
            *owned = (party(log, 2), place.0, owned.2 + 1);
        } else if topic == DEPOSIT && token == WETH {
            let parties = [Address::ZERO, party(log, 1)];
            self.moved(place, day, token, parties, word(&log.data, 0));
        } else if topic == WITHDRAWAL && token == WETH {
            let parties = [party(log, 1), Address::ZERO];
            self.moved(place, day, token, parties, word(&log.data, 0));
        } else if topic == TRANSFER_SINGLE {
            self.gave(place, log, word(&log.data, 0), word(&log.data, 1));
        } else if topic == TRANSFER_BATCH {
            let count: usize = word(&log.data, 2).to();
            for item in 0..count {
                let (id, quantity) = (word(&log.data, 3 + item), word(&log.data, 4 + count + item));
                self.gave(place, log, id, quantity);
            }
        }
    }

    fn moved(
        &mut self,
        place: (u64, usize),
        day: u64,
        token: Address,
        [from, to]: [Address; 2],
        amount: U256,
    ) {
        self.ft_transfers += 1;
        for (account, received) in [(from, false), (to, true)] {
            if account == Address::ZERO {
                continue;
            }
            let held = self.holdings.entry((account, token)).or_default();
            held.add(place, received, amount);
            // A transfer to oneself counts once.
            held.transfers += u64::from(!(received && from == to));
            let daily = self.daily.entry(((account, token), day)).or_default();
            daily.add(place, received, amount);
        }
    }

    fn gave(&mut self, place: (u64, usize), log: &Log, id: U256, quantity: U256) {
        self.nft_transfers += 1;
        for (account, received) in [(party(log, 2), false), (party(log, 3), true)] {
            if account != Address::ZERO {
                let held = self.quantities.entry(((log.address, id), account)).or_default();
                held.add(place, received, quantity);
            }
        }
    }

    pub(super) fn holdings(&self) -> Vec<Vec<Cell>> {
        let rows = self.holdings.iter().map(|((account, token), flow)| {
            cells![*account, *token, flow.sum(), flow.transfers, flow.last]
        });
        rows.collect()
    }

    pub(super) fn daily(&self) -> Vec<Vec<Cell>> {
        let rows = self.daily.iter().map(|(((account, token), day), flow)| {
            cells![*account, *token, *day, flow.sum(), flow.transactions.len(), flow.last]
        });
        rows.collect()
    }

    pub(super) fn owners(&self) -> Vec<Vec<Cell>> {
        let rows = self.owners.iter().map(|((collection, id), (owner, last, count))| {
            cells![*collection, *id, *owner, *last, *count]
        });
        rows.collect()
    }

    pub(super) fn quantities(&self) -> Vec<Vec<Cell>> {
        let rows = self.quantities.iter().map(|(((collection, id), owner), flow)| {
            cells![*collection, *id, *owner, flow.sum(), flow.last]
        });
        rows.collect()
    }
}
