//! The event to collect, and the table that it fills.
//!
//! A [`LogProcessor`] is a processor that needs only some logs of a block. The collector feeds it logs that a node
//! found, a deriver whole blocks, and both fill the same tables under the same coverage.
//!
//! | event | lines | tables |
//! |---|---|---|
//! | not set | `fees_worker` | those of [`Fees`] |
//! | a Solidity signature | `collect_<event>_<hash>` | `collected_<event>_<hash>`: a column for each parameter |
//!
//! The hash covers the signature and the contracts, so another choice of either is another table.
//!
//! Guarantees: a log counts only if its contract, topic and encoding match. Leaves to others: storing.

use std::sync::Arc;

use alloy_primitives::{Address, hex, keccak256};
use logmill_chain::{FoundLog, Log, LogFilter};

use crate::cells;
use crate::derive::decoded::event::EventDecoder;
use crate::derive::table::{key, once};
use crate::derive::{Column, DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::{Error, Result};
use crate::processors::fees::{FEES_COLLECTED, FEES_FORWARDED, Fees, LogPosition};

mod names;
mod value;

const CONTRACTS_MAX: usize = 100;
/// Maximum number of letters of the event's name in the table's name; bytes of the hash in it.
const NAME_LETTERS_MAX: usize = 13;
const NAME_HASH_BYTES: usize = 4;

/// A processor that needs only logs.
pub trait LogProcessor: Processor {
    /// The logs that it needs.
    fn filter(&self) -> LogFilter;

    /// Adds the rows of a log, if it is one of its events.
    fn process_log(&self, position: &LogPosition, log: &Log, rows: &mut Rows) -> Result<()>;

    fn as_processor(self: Arc<Self>) -> Arc<dyn Processor>;
}

pub(super) fn position(found: &FoundLog) -> LogPosition {
    LogPosition {
        block: found.block,
        timestamp: found.timestamp,
        transaction_index: found.transaction_index,
        transaction_hash: found.transaction_hash,
        log_index: found.log_index,
    }
}

impl LogProcessor for Fees {
    fn filter(&self) -> LogFilter {
        let mut addresses = self.collectors.clone();
        addresses.extend(self.forwarders.iter().filter(|a| !self.collectors.contains(a)));
        LogFilter { addresses, topics: vec![FEES_COLLECTED, FEES_FORWARDED] }
    }

    fn process_log(&self, position: &LogPosition, log: &Log, rows: &mut Rows) -> Result<()> {
        Self::process_log(self, position, log, rows)
    }

    fn as_processor(self: Arc<Self>) -> Arc<dyn Processor> {
        self
    }
}

/// The processor for an event of some contracts: fees if `signature` is empty, else any event by its Solidity
/// signature.
pub fn event_processor(
    chain_id: u64,
    contracts: &[Address],
    signature: &str,
) -> Result<Arc<dyn LogProcessor>> {
    if contracts.is_empty() || contracts.len() > CONTRACTS_MAX {
        return Err(invalid(format!("give 1 to {CONTRACTS_MAX} contracts")));
    }
    if signature.trim().is_empty() {
        return Ok(Arc::new(Fees::of_contracts(chain_id, &in_order(contracts))));
    }
    Ok(Arc::new(CollectedEvent::new(contracts, signature)?))
}

#[derive(Debug)]
pub(crate) struct CollectedEvent {
    name: &'static str,
    contracts: Vec<Address>,
    decoder: EventDecoder,
    table: &'static Table,
    tables: &'static [&'static Table],
}

impl CollectedEvent {
    /// Parses a Solidity signature, such as `event Transfer(address indexed from, address to, uint256 value)`.
    ///
    /// Leaks the table's declaration: declarations are `'static`, and a program collects one event.
    pub(crate) fn new(contracts: &[Address], signature: &str) -> Result<Self> {
        let decoder = EventDecoder::new(signature)?;
        let contracts = in_order(contracts);
        let (word, hash) = (names::word(decoder.name(), "event"), hash(&decoder, &contracts));
        let word = &word[..word.len().min(NAME_LETTERS_MAX)];
        let columns = columns(&decoder);
        let table = Table {
            name: format!("collected_{word}_{hash}").leak(),
            columns: columns.leak(),
            indexes: &[],
        };
        table.check().map_err(invalid)?;
        let table: &'static Table = Box::leak(Box::new(table));
        Ok(Self {
            name: format!("collect_{word}_{hash}").leak(),
            contracts,
            decoder,
            table,
            tables: vec![table].leak(),
        })
    }
}

impl Processor for CollectedEvent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> u32 {
        1
    }

    fn parameters(&self) -> String {
        format!("{:?}", self.contracts)
    }

    fn parameter_settings(&self) -> &'static str {
        "collect.contract_address"
    }

    fn tables(&self) -> &'static [&'static Table] {
        self.tables
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

impl LogProcessor for CollectedEvent {
    fn filter(&self) -> LogFilter {
        LogFilter { addresses: self.contracts.clone(), topics: vec![self.decoder.topic()] }
    }

    fn process_log(&self, position: &LogPosition, log: &Log, rows: &mut Rows) -> Result<()> {
        if !self.filter().matches(log) || !self.decoder.accepts(log) {
            return Ok(());
        }
        let Some(values) = self.decoder.decode(log) else {
            metrics::counter!("logmill_collect_undecoded_total").increment(1);
            return Ok(());
        };
        let mut cells = cells![
            position.block,
            position.log_index,
            position.transaction_index,
            position.transaction_hash,
            position.timestamp,
            log.address,
        ];
        cells.extend(values.into_iter().map(value::cell));
        rows.push(self.table, position.log_index, cells)
    }

    fn as_processor(self: Arc<Self>) -> Arc<dyn Processor> {
        self
    }
}

/// Sorted without duplicates: only the set of contracts matters.
fn in_order(contracts: &[Address]) -> Vec<Address> {
    let mut contracts = contracts.to_vec();
    contracts.sort_unstable();
    contracts.dedup();
    contracts
}

/// The common columns of all collected events, then one for each parameter.
fn columns(event: &EventDecoder) -> Vec<Column> {
    let mut columns = vec![
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("tx_hash", Kind::Bytes),
        once("timestamp", Kind::Int),
        once("contract", Kind::Address),
    ];
    for (number, parameter) in event.parameters().enumerate() {
        let kind = value::kind(parameter.ty, parameter.indexed);
        let name = names::column(parameter.name, number, &columns);
        columns.push(once(name.leak(), kind));
    }
    columns
}

/// Identifies what is collected: types, names, which parameters are indexed, and the contracts.
fn hash(event: &EventDecoder, contracts: &[Address]) -> String {
    let all = format!("{} {contracts:?}", event.full_signature());
    hex::encode(&keccak256(all)[..NAME_HASH_BYTES])
}

fn invalid(what: String) -> Error {
    Error::Invalid { what }
}

#[cfg(test)]
mod tests;
