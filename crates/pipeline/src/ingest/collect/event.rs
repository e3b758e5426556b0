//! Which event is collected, and into which table.
//!
//! A [`LogProcessor`] is a processor that needs nothing of a block but some of its logs: the collector feeds it logs
//! that a node found, a deriver whole blocks, and both fill the same tables under the same coverage.
//!
//! | event | lines | tables |
//! |---|---|---|
//! | none said | `fees_worker` | those of [`Fees`] |
//! | a Solidity signature | `collect_<event>_<hash>` | `collected_<event>_<hash>`: a column for each parameter |
//!
//! The hash is of the signature and the contracts: another question is another table.
//!
//! Guarantees: a log counts only if its contract, topic and encoding are right. Leaves to others: storing.

use std::sync::Arc;

use alloy_dyn_abi::{DynSolEvent, DynSolType, Specifier};
use alloy_json_abi::{Event, EventParam};
use alloy_primitives::{Address, B256, hex, keccak256};
use logmill_chain::{FoundLog, Log, LogFilter};

use crate::cells;
use crate::derive::table::{key, once};
use crate::derive::{Column, DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::{Error, Result};
use crate::processors::fees::{FEES_COLLECTED, FEES_FORWARDED, Fees, LogPlace};

mod named;
mod names;
mod value;

pub(crate) use named::NamedEvent;

/// The longest signature that is read.
const SIGNATURE_BYTES_MAX: usize = 2_048;
/// The most parameters; Solidity itself can hardly emit more than seventeen.
const PARAMETERS_MAX: usize = 32;
/// The most contracts.
const CONTRACTS_MAX: usize = 100;
/// The most letters of an event that are part of its table's name, and digits of the hash.
const NAME_LETTERS_MAX: usize = 13;
const NAME_HASH_BYTES: usize = 4;
/// How deep arrays of unknown length may lie in each other: what is decoded of `n` bytes grows with that power of `n`.
const DYNAMIC_DEPTH_MAX: usize = 2;
/// The most bytes of a log with arrays in arrays.
const NESTED_BYTES_MAX: usize = 16 * 1024;

/// A processor that needs nothing but logs.
pub trait LogProcessor: Processor {
    /// Which logs.
    fn filter(&self) -> LogFilter;

    /// Adds the rows of a log, if it is one of its events.
    fn process_log(&self, place: &LogPlace, log: &Log, rows: &mut Rows) -> Result<()>;

    /// The same as a processor of blocks.
    fn as_processor(self: Arc<Self>) -> Arc<dyn Processor>;
}

/// The place of a log that a node found.
pub(super) fn place(found: &FoundLog) -> LogPlace {
    LogPlace {
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

    fn process_log(&self, place: &LogPlace, log: &Log, rows: &mut Rows) -> Result<()> {
        Self::process_log(self, place, log, rows)
    }

    fn as_processor(self: Arc<Self>) -> Arc<dyn Processor> {
        self
    }
}

/// What collects an event of some contracts: fees if none is said, else any by its Solidity signature.
pub fn collected(
    chain_id: u64,
    contracts: &[Address],
    signature: &str,
) -> Result<Arc<dyn LogProcessor>> {
    if contracts.is_empty() || contracts.len() > CONTRACTS_MAX {
        return Err(invalid(format!("1 to {CONTRACTS_MAX} contracts are needed")));
    }
    if signature.trim().is_empty() {
        return Ok(Arc::new(Fees::of_contracts(chain_id, &in_order(contracts))));
    }
    Ok(Arc::new(CollectedEvent::new(contracts, signature)?))
}

/// An event of some contracts, with a typed table.
#[derive(Debug)]
pub struct CollectedEvent {
    name: &'static str,
    contracts: Vec<Address>,
    topic: B256,
    event: DynSolEvent,
    /// For each column, whether its parameter is indexed.
    indexed: Vec<bool>,
    table: &'static Table,
    tables: &'static [&'static Table],
    /// The most bytes of a log.
    bytes_max: usize,
}

impl CollectedEvent {
    /// An event by its Solidity signature, such as `event Transfer(address indexed from, address to, uint256 value)`.
    ///
    /// Its table is declared for as long as the program runs: declarations are `'static`, and a program collects one
    /// event.
    pub fn new(contracts: &[Address], signature: &str) -> Result<Self> {
        let event = parsed(signature)?;
        let contracts = in_order(contracts);
        let resolved: DynSolEvent =
            event.resolve().map_err(|error| unreadable(signature, &error.to_string()))?;
        let types = resolved.indexed().iter().chain(resolved.body());
        let depth = types.map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
        let depth = depth.into_iter().max().unwrap_or(0);
        if depth > DYNAMIC_DEPTH_MAX {
            return Err(invalid("arrays lie too deep in each other".to_owned()));
        }
        let (word, hash) = (names::word(&event.name, "event"), hash(&event, &contracts));
        let word = &word[..word.len().min(NAME_LETTERS_MAX)];
        let columns = columns(&event, &resolved);
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
            topic: event.selector(),
            event: resolved,
            indexed: event.inputs.iter().map(|input| input.indexed).collect(),
            table,
            tables: vec![table].leak(),
            bytes_max: if depth > 1 { NESTED_BYTES_MAX } else { usize::MAX },
        })
    }

    /// Its table.
    pub fn table(&self) -> &'static Table {
        self.table
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

    fn tables(&self) -> &'static [&'static Table] {
        self.tables
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for placed in block.block.logs() {
            let place = LogPlace {
                block: block.number(),
                timestamp: block.timestamp(),
                transaction_index: placed.transaction_index,
                transaction_hash: placed.transaction_hash,
                log_index: placed.log_index,
            };
            self.process_log(&place, placed.log, rows)?;
        }
        Ok(())
    }
}

impl LogProcessor for CollectedEvent {
    fn filter(&self) -> LogFilter {
        LogFilter { addresses: self.contracts.clone(), topics: vec![self.topic] }
    }

    fn process_log(&self, place: &LogPlace, log: &Log, rows: &mut Rows) -> Result<()> {
        if !self.filter().wants(log) || log.data.len() > self.bytes_max {
            return Ok(());
        }
        let Some(values) = value::decoded(&self.event, log) else {
            metrics::counter!("logmill_collect_undecoded_total").increment(1);
            return Ok(());
        };
        let mut cells = cells![
            place.block,
            place.log_index,
            place.transaction_index,
            place.transaction_hash,
            place.timestamp,
            log.address,
        ];
        let (mut indexed, mut body) = (values.indexed.into_iter(), values.body.into_iter());
        let ordered = self.indexed.iter();
        let ordered = ordered.map(|by_topic| if *by_topic { indexed.next() } else { body.next() });
        cells.extend(ordered.flatten().map(value::cell));
        rows.push(self.table, place.log_index, cells)
    }

    fn as_processor(self: Arc<Self>) -> Arc<dyn Processor> {
        self
    }
}

/// Each once, in one order: which contracts they are is what counts.
fn in_order(contracts: &[Address]) -> Vec<Address> {
    let mut contracts = contracts.to_vec();
    contracts.sort_unstable();
    contracts.dedup();
    contracts
}

fn parsed(signature: &str) -> Result<Event> {
    let text = signature.trim().trim_end_matches(';');
    if text.len() > SIGNATURE_BYTES_MAX {
        return Err(invalid(format!("a signature has at most {SIGNATURE_BYTES_MAX} bytes")));
    }
    let event = Event::parse(&names::without_parts(text));
    let event = event.map_err(|error| unreadable(text, &error.to_string()))?;
    let indexed = event.inputs.iter().filter(|input| input.indexed).count();
    if event.anonymous {
        return Err(invalid("an anonymous event can not be found by its topic".to_owned()));
    }
    if indexed > 3 || event.inputs.len() > PARAMETERS_MAX {
        let what = format!("an event has at most {PARAMETERS_MAX} parameters, 3 of them indexed");
        return Err(invalid(what));
    }
    Ok(event)
}

/// The first columns are those of every collected event; then comes one for each parameter.
fn columns(event: &Event, resolved: &DynSolEvent) -> Vec<Column> {
    let mut columns = vec![
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("tx_hash", Kind::Bytes),
        once("timestamp", Kind::Int),
        once("contract", Kind::Address),
    ];
    let (mut indexed, mut body) = (resolved.indexed().iter(), resolved.body().iter());
    for (number, EventParam { name, indexed: by_topic, .. }) in event.inputs.iter().enumerate() {
        let ty = if *by_topic { indexed.next() } else { body.next() };
        let Some(ty) = ty else { continue };
        let kind = value::kind(ty, *by_topic);
        let name = names::column(name, number, &columns);
        columns.push(once(name.leak(), kind));
    }
    columns
}

/// How deep arrays of unknown length lie in each other; refuses what has no size.
fn dynamic_depth(ty: &DynSolType) -> Result<usize> {
    Ok(match ty {
        DynSolType::Array(of) => dynamic_depth(of)? + 1,
        DynSolType::FixedArray(_, 0) => {
            return Err(invalid("an array without elements".to_owned()));
        }
        DynSolType::FixedArray(of, _) => dynamic_depth(of)?,
        DynSolType::Tuple(parts) if parts.is_empty() => {
            return Err(invalid("a tuple without parts".to_owned()));
        }
        DynSolType::Tuple(parts) => {
            let depths = parts.iter().map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
            depths.into_iter().max().unwrap_or(0)
        }
        _ => 0,
    })
}

/// What makes a question another: types, names, what is indexed, and whose events.
fn hash(event: &Event, contracts: &[Address]) -> String {
    let all = format!("{} {contracts:?}", event.full_signature());
    hex::encode(&keccak256(all)[..NAME_HASH_BYTES])
}

fn invalid(what: String) -> Error {
    Error::Invalid { what }
}

fn unreadable(signature: &str, why: &str) -> Error {
    let why = why.lines().map(str::trim).rfind(|line| !line.is_empty());
    let why = why.unwrap_or_default();
    invalid(format!(
        "{signature:?} is no event such as `event Transfer(address indexed from, address indexed to, \
         uint256 value)`: {why}"
    ))
}

#[cfg(test)]
mod tests;
