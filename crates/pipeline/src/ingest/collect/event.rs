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

use alloy_dyn_abi::{DynSolEvent, DynSolType, Specifier};
use alloy_json_abi::{Event, EventParam};
use alloy_primitives::{Address, B256, hex, keccak256};
use logmill_chain::{FoundLog, Log, LogFilter};

use crate::cells;
use crate::derive::table::{key, once};
use crate::derive::{Column, DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::{Error, Result};
use crate::processors::fees::{FEES_COLLECTED, FEES_FORWARDED, Fees, LogPosition};

mod named;
mod names;
mod value;

pub(crate) use named::NamedEvent;

const SIGNATURE_BYTES_MAX: usize = 2_048;
/// Maximum number of parameters; Solidity itself can hardly emit more than seventeen.
const PARAMETERS_MAX: usize = 32;
const CONTRACTS_MAX: usize = 100;
/// Maximum number of letters of the event's name in the table's name; bytes of the hash in it.
const NAME_LETTERS_MAX: usize = 13;
const NAME_HASH_BYTES: usize = 4;
/// Maximum nesting of dynamic arrays: the decoded size of `n` bytes grows with that power of `n`.
const DYNAMIC_DEPTH_MAX: usize = 2;
/// Maximum size of a log with nested dynamic arrays.
const NESTED_BYTES_MAX: usize = 16 * 1024;

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
pub struct CollectedEvent {
    name: &'static str,
    contracts: Vec<Address>,
    topic: B256,
    event: DynSolEvent,
    /// For each parameter, whether it is indexed.
    indexed: Vec<bool>,
    table: &'static Table,
    tables: &'static [&'static Table],
    /// Larger logs are ignored.
    bytes_max: usize,
}

impl CollectedEvent {
    /// Parses a Solidity signature, such as `event Transfer(address indexed from, address to, uint256 value)`.
    ///
    /// Leaks the table's declaration: declarations are `'static`, and a program collects one event.
    pub fn new(contracts: &[Address], signature: &str) -> Result<Self> {
        let event = parse_signature(signature)?;
        let contracts = in_order(contracts);
        let resolved: DynSolEvent =
            event.resolve().map_err(|error| unreadable(signature, &error.to_string()))?;
        let types = resolved.indexed().iter().chain(resolved.body());
        let depth = types.map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
        let depth = depth.into_iter().max().unwrap_or(0);
        if depth > DYNAMIC_DEPTH_MAX {
            return Err(invalid(too_deep()));
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
        LogFilter { addresses: self.contracts.clone(), topics: vec![self.topic] }
    }

    fn process_log(&self, position: &LogPosition, log: &Log, rows: &mut Rows) -> Result<()> {
        if !self.filter().matches(log) || log.data.len() > self.bytes_max {
            return Ok(());
        }
        let Some(values) = value::decode(&self.event, log) else {
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
        let (mut indexed, mut body) = (values.indexed.into_iter(), values.body.into_iter());
        let ordered = self.indexed.iter();
        let ordered = ordered.map(|by_topic| if *by_topic { indexed.next() } else { body.next() });
        cells.extend(ordered.flatten().map(value::cell));
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

fn parse_signature(signature: &str) -> Result<Event> {
    let text = signature.trim().trim_end_matches(';');
    if text.len() > SIGNATURE_BYTES_MAX {
        return Err(invalid(format!("a signature may have at most {SIGNATURE_BYTES_MAX} bytes")));
    }
    let event = Event::parse(&names::without_parts(text));
    let event = event.map_err(|error| unreadable(text, &error.to_string()))?;
    let indexed = event.inputs.iter().filter(|input| input.indexed).count();
    if event.anonymous {
        return Err(invalid("an anonymous event cannot be found by its topic".to_owned()));
    }
    if indexed > 3 || event.inputs.len() > PARAMETERS_MAX {
        let what =
            format!("an event may have at most {PARAMETERS_MAX} parameters, 3 of them indexed");
        return Err(invalid(what));
    }
    Ok(event)
}

/// The common columns of all collected events, then one for each parameter.
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

/// Nesting of dynamic arrays; refuses types without a size.
fn dynamic_depth(ty: &DynSolType) -> Result<usize> {
    Ok(match ty {
        DynSolType::Array(of) => dynamic_depth(of)? + 1,
        DynSolType::FixedArray(_, 0) => {
            return Err(invalid("an array type has no elements".to_owned()));
        }
        DynSolType::FixedArray(of, _) => dynamic_depth(of)?,
        DynSolType::Tuple(parts) if parts.is_empty() => {
            return Err(invalid("a tuple type has no components".to_owned()));
        }
        DynSolType::Tuple(parts) => {
            let depths = parts.iter().map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
            depths.into_iter().max().unwrap_or(0)
        }
        _ => 0,
    })
}

/// Identifies what is collected: types, names, which parameters are indexed, and the contracts.
fn hash(event: &Event, contracts: &[Address]) -> String {
    let all = format!("{} {contracts:?}", event.full_signature());
    hex::encode(&keccak256(all)[..NAME_HASH_BYTES])
}

fn too_deep() -> String {
    format!("arrays are nested too deep: at most {DYNAMIC_DEPTH_MAX} levels")
}

fn invalid(what: String) -> Error {
    Error::Invalid { what }
}

fn unreadable(signature: &str, why: &str) -> Error {
    let why = why.lines().map(str::trim).rfind(|line| !line.is_empty());
    let why = why.unwrap_or_default();
    invalid(format!(
        "{signature:?} is not an event signature such as `event Transfer(address indexed from, address indexed to, \
         uint256 value)`: {why}"
    ))
}

#[cfg(test)]
mod tests;
