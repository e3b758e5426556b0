//! `usage_worker`: contract events that are billed as usage, selected by rules.
//!
//! A rule names an event by its Solidity signature, and the parameters that are the customer, the value and the
//! dimensions. The meter records each final row once; rows of the tip are shown separately.
//!
//! Guarantees: a log counts only if its contract, topic and encoding match, and its value is exact: a whole number with
//! the decimal point moved as the rule says. Leaves to others: the meter, which knows nothing about chains.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_dyn_abi::DynSolValue;
use alloy_primitives::{Address, B256, hex, keccak256};
use logmill_chain::{Block, Log};

use crate::cells;
use crate::derive::decoded::event::EventDecoder;
use crate::derive::table::{key, once};
use crate::derive::{BlockParts, DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::{Error, Result};

const RULES_MAX: usize = 1_000;
const DECIMALS_MAX: u8 = 36;
/// Maximum length of a customer or dimension in bytes: the meter's limit.
const TEXT_BYTES_MAX: usize = 200;

/// Usage found on a chain, one row per log and rule.
pub static USAGE_EVENTS: Table = Table {
    name: "usage_events",
    columns: &[
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        key("rule_index", Kind::Int),
        once("block_hash", Kind::Bytes),
        once("tx_hash", Kind::Bytes),
        once("timestamp", Kind::Int),
        once("rule", Kind::Text),
        once("event_type", Kind::Text),
        once("customer", Kind::Text),
        once("amount", Kind::Text),
        once("metadata", Kind::Text),
    ],
    indexes: &[],
};

/// Selects a contract event and maps it to usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRule {
    /// Part of the ids of its usage events.
    pub name: String,
    /// Solidity signature, such as `event FeesCollected(address indexed token, address indexed integrator, …)`.
    pub event: String,
    /// Contracts whose events count; all contracts if empty.
    pub contracts: Vec<Address>,
    /// Event type in the meter.
    pub event_type: String,
    /// Name of the parameter with the customer.
    pub customer: String,
    /// Name of the parameter with the value; without it each event counts 1.
    pub value: Option<String>,
    /// Number of the value's digits after the decimal point.
    pub decimals: u8,
    /// Name of the parameter with the token, if the decimals depend on it.
    pub token: Option<String>,
    /// Decimals by token; `decimals` applies to the others.
    pub token_decimals: BTreeMap<Address, u8>,
    /// Event parameters that are kept as metadata, by their names there.
    pub dimensions: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct UsageWorker {
    rules: Vec<UsageRule>,
    events: Arc<[EventDecoder]>,
}

impl PartialEq for UsageWorker {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

impl Eq for UsageWorker {}

impl UsageWorker {
    /// Checks the rules.
    pub fn new(rules: Vec<UsageRule>) -> Result<Self> {
        let wrong = |what: String| Err(Error::Invalid { what });
        if rules.is_empty() || rules.len() > RULES_MAX {
            return wrong(format!("give 1 to {RULES_MAX} usage rules"));
        }
        let mut events = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let event = EventDecoder::new(&rule.event)?;
            let twice = rules[..index].iter().any(|other| other.name == rule.name);
            if twice || rule.name.is_empty() || rule.name.len() > TEXT_BYTES_MAX {
                return wrong("every usage rule needs a unique name".to_owned());
            }
            let named = [Some(&rule.customer), rule.value.as_ref(), rule.token.as_ref()];
            for name in named.into_iter().flatten().chain(rule.dimensions.values()) {
                if !event.has(name) {
                    return wrong(format!("rule {}: the event has no parameter {name}", rule.name));
                }
            }
            if rule.token_decimals.values().chain([&rule.decimals]).any(|n| *n > DECIMALS_MAX) {
                return wrong(format!("rule {}: at most {DECIMALS_MAX} decimals", rule.name));
            }
            events.push(event);
        }
        Ok(Self { rules, events: events.into() })
    }
}

impl UsageWorker {
    /// Name of each rule, and a hash of everything that determines its usage events; never 0.
    pub fn rule_versions(&self) -> Vec<(String, i64)> {
        let version = |rule: &UsageRule| {
            let text = format!("{} {rule:?}", self.version());
            let hash = keccak256(text.as_bytes());
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&hash[..8]);
            (rule.name.clone(), i64::from_be_bytes(bytes) | 1)
        };
        self.rules.iter().map(version).collect()
    }
}

/// A log's usage under a rule.
struct Usage {
    customer: String,
    amount: String,
    metadata: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundUsage<'a> {
    /// Index in the block.
    pub log: usize,
    pub transaction_hash: B256,
    pub rule_index: usize,
    pub rule: &'a UsageRule,
    pub customer: String,
    /// Exact decimal number.
    pub amount: String,
    /// The dimensions as a JSON object.
    pub metadata: String,
}

impl UsageWorker {
    /// The usage events of a block, in log order.
    pub fn find(&self, block: &Block) -> Vec<FoundUsage<'_>> {
        let mut found = Vec::new();
        for placed in block.logs() {
            for (rule_index, (rule, event)) in self.rules.iter().zip(&*self.events).enumerate() {
                let Some(usage) = rule.usage(event, placed.log) else { continue };
                let Usage { customer, amount, metadata } = usage;
                found.push(FoundUsage {
                    log: placed.log_index,
                    transaction_hash: placed.transaction_hash,
                    rule_index,
                    rule,
                    customer,
                    amount,
                    metadata,
                });
            }
        }
        found
    }
}

impl UsageRule {
    fn usage(&self, event: &EventDecoder, log: &Log) -> Option<Usage> {
        if !self.contracts.is_empty() && !self.contracts.contains(&log.address) {
            return None;
        }
        let values = event.decode_named(log)?;
        let customer = text(values.get(self.customer.as_str())?)?;
        let amount = match &self.value {
            None => "1".to_owned(),
            Some(name) => {
                let whole = whole(values.get(name.as_str())?)?;
                with_point(&whole, self.decimals_of(&values))
            }
        };
        let metadata: BTreeMap<&str, String> = self
            .dimensions
            .iter()
            .filter_map(|(name, of)| Some((name.as_str(), text(values.get(of.as_str())?)?)))
            .collect();
        let metadata = serde_json::to_string(&metadata).ok()?;
        Some(Usage { customer, amount, metadata })
    }

    fn decimals_of(&self, values: &BTreeMap<&str, DynSolValue>) -> u8 {
        let token = self.token.as_deref().and_then(|name| values.get(name)?.as_address());
        let own = token.and_then(|token| self.token_decimals.get(&token));
        own.copied().unwrap_or(self.decimals)
    }
}

impl Processor for UsageWorker {
    fn name(&self) -> &'static str {
        super::ProcessorName::Usage.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn parameters(&self) -> String {
        format!("{:?}", self.rules)
    }

    fn parameter_settings(&self) -> &'static str {
        "meter.rules"
    }

    fn reads(&self) -> BlockParts {
        BlockParts::Logs
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&USAGE_EVENTS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for found in self.find(&block.block) {
            let cells = cells![
                block.number(),
                found.log,
                found.rule_index,
                block.block.at.hash,
                found.transaction_hash,
                block.timestamp(),
                found.rule.name.as_str(),
                found.rule.event_type.as_str(),
                found.customer.as_str(),
                found.amount.as_str(),
                found.metadata.as_str(),
            ];
            rows.push(&USAGE_EVENTS, found.log, cells)?;
        }
        Ok(())
    }
}

/// A value as text; none if the text would be empty, too long or contain control characters, or for composite types.
fn text(value: &DynSolValue) -> Option<String> {
    let text = match value {
        DynSolValue::Address(address) => hex::encode_prefixed(address),
        DynSolValue::Uint(number, _) => number.to_string(),
        DynSolValue::Int(number, _) => number.to_string(),
        DynSolValue::Bool(truth) => truth.to_string(),
        DynSolValue::FixedBytes(word, size) => hex::encode_prefixed(&word[..(*size).min(32)]),
        DynSolValue::Bytes(bytes) => hex::encode_prefixed(bytes),
        DynSolValue::String(text) => text.clone(),
        _ => return None,
    };
    let fits = !text.is_empty() && text.len() <= TEXT_BYTES_MAX;
    (fits && !text.contains(char::is_control)).then_some(text)
}

fn whole(value: &DynSolValue) -> Option<String> {
    match value {
        DynSolValue::Uint(number, _) => Some(number.to_string()),
        DynSolValue::Int(number, _) => Some(number.to_string()),
        _ => None,
    }
}

/// A whole number with the decimal point moved.
fn with_point(whole: &str, decimals: u8) -> String {
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    let places = usize::from(decimals);
    if places == 0 {
        return whole.to_owned();
    }
    let padded = format!("{digits:0>width$}", width = places + 1);
    let (before, after) = padded.split_at(padded.len() - places);
    format!("{sign}{before}.{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_move_the_decimal_point() {
        for (whole, decimals, expected) in [
            ("0", 0, "0"),
            ("5", 0, "5"),
            ("5", 6, "0.000005"),
            ("1234567", 6, "1.234567"),
            ("-1234567", 6, "-1.234567"),
            ("-5", 1, "-0.5"),
        ] {
            assert_eq!(with_point(whole, decimals), expected);
        }
    }

    fn rule() -> UsageRule {
        UsageRule {
            name: "fees".to_owned(),
            event: "event FeesCollected(address indexed token, address indexed integrator, \
                    uint256 integratorFee, uint256 lifiFee)"
                .to_owned(),
            contracts: Vec::new(),
            event_type: "fees".to_owned(),
            customer: "integrator".to_owned(),
            value: Some("integratorFee".to_owned()),
            decimals: 0,
            token: Some("token".to_owned()),
            token_decimals: BTreeMap::from([(Address::repeat_byte(1), 6)]),
            dimensions: BTreeMap::from([("token".to_owned(), "token".to_owned())]),
        }
    }

    fn log(token: Address, fee: u64) -> Log {
        let word = |number: u64| alloy_primitives::U256::from(number).to_be_bytes::<32>();
        let mut data = word(fee).to_vec();
        data.extend(word(7));
        Log {
            address: Address::repeat_byte(9),
            topics: [
                crate::processors::fees::FEES_COLLECTED,
                token.into_word(),
                Address::repeat_byte(3).into_word(),
            ]
            .into_iter()
            .collect(),
            data: data.into(),
        }
    }

    #[test]
    fn fees_are_usage_of_their_integrator_in_units_of_their_token() {
        let worker = UsageWorker::new(vec![rule()]).expect("a rule");
        let usage = |log: &Log| worker.rules[0].usage(&worker.events[0], log);
        let known = usage(&log(Address::repeat_byte(1), 1_500_000)).expect("it is usage");
        assert_eq!(known.customer, "0x0303030303030303030303030303030303030303");
        assert_eq!(known.amount, "1.500000");
        assert_eq!(known.metadata, r#"{"token":"0x0101010101010101010101010101010101010101"}"#);
        let other = usage(&log(Address::repeat_byte(2), 1_500_000)).expect("it is usage");
        assert_eq!(other.amount, "1500000");
        let mut cut = log(Address::repeat_byte(1), 1);
        cut.data = cut.data.slice(..63);
        assert!(usage(&cut).is_none());
    }

    #[test]
    fn a_rule_that_finds_other_usage_has_another_version() {
        let version = |rule: UsageRule| {
            UsageWorker::new(vec![rule]).expect("a rule").rule_versions().remove(0)
        };
        assert_eq!(version(rule()), version(rule()));
        let (name, changed) = version(UsageRule { decimals: 3, ..rule() });
        assert!(name == "fees" && changed != version(rule()).1);
    }

    #[test]
    fn an_invalid_rule_is_refused() {
        let twice = UsageWorker::new(vec![rule(), rule()]);
        assert!(twice.is_err_and(|error| error.to_string().contains("a unique name")));
        for (rule, reason) in [
            (UsageRule { customer: "who".to_owned(), ..rule() }, "the event has no parameter who"),
            (UsageRule { event: "event (".to_owned(), ..rule() }, "is not an event signature"),
            (UsageRule { decimals: 37, ..rule() }, "at most 36 decimals"),
        ] {
            let error = UsageWorker::new(vec![rule]).expect_err("it is wrong");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}
