//! An event by its Solidity signature, whose values are read by the names of its parameters.
//!
//! Guarantees: a log gives values only if its topic and encoding are those of the event. Leaves to others: whose log it
//! is, and what values mean.

use std::collections::BTreeMap;

use alloy_dyn_abi::{DynSolEvent, DynSolValue, Specifier};
use alloy_primitives::B256;
use logmill_chain::Log;

use super::{
    DYNAMIC_DEPTH_MAX, NESTED_BYTES_MAX, dynamic_depth, invalid, parsed, unreadable, value,
};
use crate::error::Result;

/// An event whose values are read by name.
#[derive(Debug)]
pub(crate) struct NamedEvent {
    topic: B256,
    event: DynSolEvent,
    /// The name of every parameter, and whether it is indexed.
    names: Vec<(String, bool)>,
    bytes_max: usize,
}

impl NamedEvent {
    pub(crate) fn new(signature: &str) -> Result<Self> {
        let event = parsed(signature)?;
        let resolved: DynSolEvent =
            event.resolve().map_err(|error| unreadable(signature, &error.to_string()))?;
        let types = resolved.indexed().iter().chain(resolved.body());
        let depth = types.map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
        let depth = depth.into_iter().max().unwrap_or(0);
        if depth > DYNAMIC_DEPTH_MAX {
            return Err(invalid("arrays lie too deep in each other".to_owned()));
        }
        let names = event.inputs.iter().map(|input| (input.name.clone(), input.indexed)).collect();
        let bytes_max = if depth > 1 { NESTED_BYTES_MAX } else { usize::MAX };
        Ok(Self { topic: event.selector(), event: resolved, names, bytes_max })
    }

    /// Whether it has a parameter of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|(own, _)| own == name)
    }

    /// The values of a log; none if it is another event's, or is not encoded as it should be.
    pub(crate) fn read(&self, log: &Log) -> Option<BTreeMap<&str, DynSolValue>> {
        if log.topics.first() != Some(&self.topic) || log.data.len() > self.bytes_max {
            return None;
        }
        let values = value::decoded(&self.event, log)?;
        let (mut indexed, mut body) = (values.indexed.into_iter(), values.body.into_iter());
        let named = self.names.iter().filter_map(|(name, by_topic)| {
            let value = if *by_topic { indexed.next() } else { body.next() };
            Some((name.as_str(), value?))
        });
        Some(named.collect())
    }
}
