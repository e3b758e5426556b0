//! The filter of `eth_getLogs`, according to the execution API.
//!
//! Guarantees: an invalid filter is refused with a reason. Leaves to others: resolving tags.

use alloy_primitives::{Address, B256};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::block::{Log, TOPICS_MAX};

/// Maximum number of alternatives at one position of a filter.
const ALTERNATIVES_MAX: usize = 1_000;

#[derive(Debug)]
pub(super) struct Filter {
    pub(super) span: Span,
    /// Any address if empty.
    addresses: Vec<Address>,
    /// Alternatives per position; any topic if empty. A log must have at least this many topics.
    topics: Vec<Vec<B256>>,
}

/// The blocks of a query.
#[derive(Debug)]
pub(super) enum Span {
    Hash(B256),
    /// Both ends inclusive, as tags or numbers in hex.
    Range {
        from: Value,
        to: Value,
    },
}

impl Filter {
    pub(super) fn parse(filter: &Value) -> Result<Self, String> {
        if !filter.is_object() {
            return Err("a filter must be an object".to_owned());
        }
        let field = |name: &str| filter.get(name).filter(|value| !value.is_null());
        let span = match (field("blockHash"), field("fromBlock"), field("toBlock")) {
            (Some(hash), None, None) => Span::Hash(parse(hash)?),
            (Some(_), ..) => {
                let message = "cannot specify both BlockHash and FromBlock/ToBlock";
                return Err(message.to_owned());
            }
            (None, from, to) => {
                let latest = || json!("latest");
                let value = |end: Option<&Value>| end.cloned().unwrap_or_else(latest);
                Span::Range { from: value(from), to: value(to) }
            }
        };
        let topics = match field("topics") {
            None => Vec::new(),
            Some(Value::Array(positions)) if positions.len() <= TOPICS_MAX => {
                positions.iter().map(alternatives).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(format!("topics must be a list of at most {TOPICS_MAX}")),
        };
        let addresses = field("address").map_or(Ok(Vec::new()), alternatives)?;
        Ok(Self { span, addresses, topics })
    }

    pub(super) fn matches(&self, log: &Log) -> bool {
        let by_address = self.addresses.is_empty() || self.addresses.contains(&log.address);
        let mut positions = self.topics.iter().zip(&log.topics);
        by_address
            && self.topics.len() <= log.topics.len()
            && positions.all(|(wanted, topic)| wanted.is_empty() || wanted.contains(topic))
    }
}

/// Parses one value, a list of them, or null for any.
fn alternatives<T: DeserializeOwned>(value: &Value) -> Result<Vec<T>, String> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) if list.len() > ALTERNATIVES_MAX => {
            Err("exceed max addresses or topics per search position".to_owned())
        }
        // A null matches anything, which makes the other alternatives irrelevant.
        Value::Array(list) if list.contains(&Value::Null) => Ok(Vec::new()),
        Value::Array(list) => list.iter().map(parse).collect(),
        one => Ok(vec![parse(one)?]),
    }
}

fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}
