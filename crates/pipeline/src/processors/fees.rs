//! `fees_worker`: what integrators and LI.FI earned: `FeesCollected` of the fee collector, and `FeesForwarded` of its
//! successor, which splits a fee immediately.
//!
//! ```text
//! FeesCollected(address indexed token, address indexed integrator, uint256 integratorFee, uint256 lifiFee)
//! FeesForwarded(address indexed token, (address recipient, uint256 amount)[] distributions)
//! ```
//!
//! Other contracts have events with the same names and topics (a trading pair's `FeesCollected` counts tokens, not
//! fees), so only logs of the configured contracts count.
//!
//! Guarantees: a log counts only if its contract, topic and shape match. Leaves to others: decimals of tokens.

use alloy_primitives::{Address, B256, U256, address, b256};
use logmill_chain::Log;

use crate::cells;
use crate::derive::decoded::abi;
use crate::derive::table::{key, once};
use crate::derive::{BlockParts, DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::Result;

pub const FEES_COLLECTED: B256 =
    b256!("0x28a87b6059180e46de5fb9ab35eb043e8fe00ab45afcc7789e3934ecbbcde3ea");
pub(crate) const FEES_FORWARDED: B256 =
    b256!("0x3a7029951ba36c1af37954df919ce2f9a95c3f5c2c2e872d5e7fd47c61a6df26");

/// The fee collector of Ethereum, Optimism, BNB, Gnosis, Polygon and all chains not known to have another.
pub const COLLECTOR: Address = address!("0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9");
/// The chains known to have it.
const COLLECTOR_CHAINS: [u64; 5] = [1, 10, 56, 100, 137];

/// Chains with another fee collector.
const COLLECTORS: [(u64, Address); 12] = [
    // Fantom, Moonbeam, Arbitrum, Avalanche, Aurora.
    (250, address!("0xb0210de78e28e2633ca200609d9f528c13c26cd9")),
    (1_284, address!("0xb0210de78e28e2633ca200609d9f528c13c26cd9")),
    (42_161, address!("0xb0210de78e28e2633ca200609d9f528c13c26cd9")),
    (43_114, address!("0xb0210de78e28e2633ca200609d9f528c13c26cd9")),
    (1_313_161_554, address!("0xb0210de78e28e2633ca200609d9f528c13c26cd9")),
    // Base, Linea.
    (8_453, address!("0x0a6d96e7f4d7b96cfe42185df61e64d255c12dff")),
    (59_144, address!("0xa4a24bdd4608d7dfc496950850f9763b674f0db2")),
    // Mantle, Mode, Celo, Blast, Scroll.
    (5_000, address!("0xf048e5816b0c7951ac179f656c5b86e5a79bd7b5")),
    (34_443, address!("0xf048e5816b0c7951ac179f656c5b86e5a79bd7b5")),
    (42_220, address!("0xf048e5816b0c7951ac179f656c5b86e5a79bd7b5")),
    (81_457, address!("0xf048e5816b0c7951ac179f656c5b86e5a79bd7b5")),
    (534_352, address!("0xf048e5816b0c7951ac179f656c5b86e5a79bd7b5")),
];

/// Known fee forwarders: Polygon's.
const FORWARDERS: [(u64, Address); 1] =
    [(137, address!("0xce40449b773a3e6e5e769adb4e567179d4828cbd"))];

/// `FeesCollected`, one row per log.
pub static FEE_EVENTS: Table = Table {
    name: "fee_events",
    columns: &[
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("tx_hash", Kind::Bytes),
        once("timestamp", Kind::Int),
        once("contract", Kind::Address),
        once("token", Kind::Address),
        once("integrator", Kind::Address),
        once("integrator_fee", Kind::Amount),
        once("lifi_fee", Kind::Amount),
    ],
    indexes: &[&["integrator", "block_height"]],
};

/// `FeesForwarded`, one row per recipient.
pub(crate) static FEE_FORWARDS: Table = Table {
    name: "fee_forwards",
    columns: &[
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        key("batch_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("tx_hash", Kind::Bytes),
        once("timestamp", Kind::Int),
        once("contract", Kind::Address),
        once("token", Kind::Address),
        once("recipient", Kind::Address),
        once("amount", Kind::Amount),
    ],
    indexes: &[&["recipient", "block_height"]],
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fees {
    /// Contracts whose `FeesCollected` counts.
    pub collectors: Vec<Address>,
    /// Contracts whose `FeesForwarded` counts.
    pub forwarders: Vec<Address>,
}

/// Position and time of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPosition {
    pub block: u64,
    /// In seconds since 1970.
    pub timestamp: u64,
    pub transaction_index: usize,
    pub transaction_hash: B256,
    /// Index in the block.
    pub log_index: usize,
}

impl Fees {
    /// With the known contracts of a chain.
    pub fn of_chain(chain_id: u64) -> Self {
        let of = |known: &[(u64, Address)]| -> Vec<Address> {
            known.iter().filter(|(chain, _)| *chain == chain_id).map(|(_, it)| *it).collect()
        };
        let mut collectors = of(&COLLECTORS);
        if collectors.is_empty() {
            collectors.push(COLLECTOR);
        }
        Self { collectors, forwarders: of(&FORWARDERS) }
    }

    /// Whether the fee collector of a chain is known; on other chains [`Fees::of_chain`] assumes [`COLLECTOR`].
    pub fn is_known(chain_id: u64) -> bool {
        let mut others = COLLECTORS.iter();
        COLLECTOR_CHAINS.contains(&chain_id) || others.any(|(chain, _)| *chain == chain_id)
    }

    /// The processor for the given contracts. If all are known on the chain it equals [`Fees::of_chain`], so that a
    /// collector of named contracts and a deriver of everything fill the same tables.
    pub fn of_contracts(chain_id: u64, contracts: &[Address]) -> Self {
        let known = Self::of_chain(chain_id);
        let is_known =
            |it: &Address| known.collectors.contains(it) || known.forwarders.contains(it);
        if contracts.iter().all(is_known) {
            return known;
        }
        Self { collectors: contracts.to_vec(), forwarders: contracts.to_vec() }
    }

    /// Adds the rows of a log if it is one of these events.
    pub fn process_log(&self, position: &LogPosition, log: &Log, rows: &mut Rows) -> Result<()> {
        match log.topics.first() {
            Some(&FEES_COLLECTED) if self.collectors.contains(&log.address) => {
                push_collected(position, log, rows)
            }
            Some(&FEES_FORWARDED) if self.forwarders.contains(&log.address) => {
                push_forwarded(position, log, rows)
            }
            _ => Ok(()),
        }
    }
}

impl Processor for Fees {
    fn name(&self) -> &'static str {
        super::ProcessorName::Fees.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn parameters(&self) -> String {
        format!("{:?} {:?}", self.collectors, self.forwarders)
    }

    fn parameter_settings(&self) -> &'static str {
        "collect.contract_address"
    }

    fn reads(&self) -> BlockParts {
        BlockParts::Logs
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&FEE_EVENTS, &FEE_FORWARDS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for placed in block.block.logs() {
            let position = LogPosition {
                block: block.number(),
                timestamp: block.timestamp(),
                transaction_index: placed.transaction_index,
                transaction_hash: placed.transaction_hash,
                log_index: placed.log_index,
            };
            self.process_log(&position, placed.log, rows)?;
        }
        Ok(())
    }
}

fn push_collected(position: &LogPosition, log: &Log, rows: &mut Rows) -> Result<()> {
    let [_, token, integrator] = log.topics[..] else {
        return Ok(());
    };
    let (Some(token), Some(integrator)) = (abi::address(&token), abi::address(&integrator)) else {
        return Ok(());
    };
    let Some([integrator_fee, lifi_fee]) = abi::words(&log.data) else {
        return Ok(());
    };
    let cells = cells![
        position.block,
        position.log_index,
        position.transaction_index,
        position.transaction_hash,
        position.timestamp,
        log.address,
        token,
        integrator,
        U256::from_be_bytes(integrator_fee.0),
        U256::from_be_bytes(lifi_fee.0),
    ];
    rows.push(&FEE_EVENTS, position.log_index, cells)
}

fn push_forwarded(position: &LogPosition, log: &Log, rows: &mut Rows) -> Result<()> {
    let [_, token] = log.topics[..] else {
        return Ok(());
    };
    let (Some(token), Some(parts)) = (abi::address(&token), distributions(&log.data)) else {
        return Ok(());
    };
    for (batch_index, (recipient, amount)) in parts.into_iter().enumerate() {
        let cells = cells![
            position.block,
            position.log_index,
            batch_index,
            position.transaction_index,
            position.transaction_hash,
            position.timestamp,
            log.address,
            token,
            recipient,
            amount,
        ];
        rows.push(&FEE_FORWARDS, position.log_index, cells)?;
    }
    Ok(())
}

/// The elements of the array of pairs that makes up the whole data.
fn distributions(data: &[u8]) -> Option<Vec<(Address, U256)>> {
    let words = abi::array(data, 0, 2)?;
    let pair = |pair: &[B256]| Some((abi::address(&pair[0])?, U256::from_be_bytes(pair[1].0)));
    words.chunks_exact(2).map(pair).collect()
}

#[cfg(test)]
mod tests;
