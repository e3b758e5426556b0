//! An event, given by its Solidity signature, whose values are read by parameter name.
//!
//! Guarantees: a log yields values only if its topic and encoding are those of the event. Leaves to others: which
//! contract emitted the log, and what the values mean.

use std::collections::BTreeMap;

use alloy_dyn_abi::{DynSolEvent, DynSolValue, Specifier};
use alloy_primitives::B256;
use logmill_chain::Log;

use super::{
    DYNAMIC_DEPTH_MAX, NESTED_BYTES_MAX, dynamic_depth, invalid, parse_signature, too_deep,
    unreadable, value,
};
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct NamedEvent {
    topic: B256,
    event: DynSolEvent,
    /// Name of each parameter, and whether it is indexed.
    names: Vec<(String, bool)>,
    bytes_max: usize,
}

impl NamedEvent {
    pub(crate) fn new(signature: &str) -> Result<Self> {
        let event = parse_signature(signature)?;
        let resolved: DynSolEvent =
            event.resolve().map_err(|error| unreadable(signature, &error.to_string()))?;
        let types = resolved.indexed().iter().chain(resolved.body());
        let depth = types.map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
        let depth = depth.into_iter().max().unwrap_or(0);
        if depth > DYNAMIC_DEPTH_MAX {
            return Err(invalid(too_deep()));
        }
        let names = event.inputs.iter().map(|input| (input.name.clone(), input.indexed)).collect();
        let bytes_max = if depth > 1 { NESTED_BYTES_MAX } else { usize::MAX };
        Ok(Self { topic: event.selector(), event: resolved, names, bytes_max })
    }

    /// Whether the event has a parameter with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|(own, _)| own == name)
    }

    /// The values of a log; none if it is another event or wrongly encoded.
    pub(crate) fn read(&self, log: &Log) -> Option<BTreeMap<&str, DynSolValue>> {
        if log.topics.first() != Some(&self.topic) || log.data.len() > self.bytes_max {
            return None;
        }
        let values = value::decode(&self.event, log)?;
        let (mut indexed, mut body) = (values.indexed.into_iter(), values.body.into_iter());
        let named = self.names.iter().filter_map(|(name, by_topic)| {
            let value = if *by_topic { indexed.next() } else { body.next() };
            Some((name.as_str(), value?))
        });
        Some(named.collect())
    }
}
