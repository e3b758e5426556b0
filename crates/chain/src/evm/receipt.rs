//! Decodes a node's JSON of receipts and logs. Most bytes of a chain pass through here, so each is read once.
//!
//! Guarantees: on chains with Ethereum's rules, fields that follow from the block are dropped, and all others are
//! kept in [`Receipt::extra`] as JSON. On other chains a receipt is decoded as far as possible, and comes with the
//! reported JSON, to be compared ([`super::compare`]); only its logs must be readable. Leaves to others: whether the
//! receipts belong to the block.

use std::fmt;

use alloy_primitives::{Address, B256, Bytes, U64};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::compare;
use crate::block::{Log, Outcome, Receipt, Topics};
use crate::json_fields;

/// A receipt, with the transaction and block that the node assigns it to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeReceipt {
    /// `None` if the node does not report it.
    pub(super) transaction_hash: Option<B256>,
    pub(super) block_hash: Option<B256>,
    pub(super) receipt: Receipt,
    /// The node's JSON, if it is to be compared.
    pub(super) reported: Option<Map<String, Value>>,
}

/// A log, with the transaction and block that the node assigns it to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeLog {
    pub(super) address: Address,
    pub(super) topics: Topics,
    pub(super) data: Bytes,
    pub(super) block_hash: B256,
    pub(super) block_number: U64,
    /// `None` if the node does not report it.
    pub(super) transaction_hash: Option<B256>,
    pub(super) log_index: Option<U64>,
}

/// Decodes the receipts of a block; with `compared`, they come with the reported JSON.
pub(super) fn read_all(json: &RawValue, compared: bool) -> Result<Vec<NodeReceipt>, String> {
    let wrong = |error| format!("cannot parse the receipts: {error}");
    if !compared {
        return serde_json::from_str(json.get()).map_err(wrong);
    }
    let all: Vec<Option<Map<String, Value>>> = serde_json::from_str(json.get()).map_err(wrong)?;
    all.into_iter().flatten().map(lenient).collect()
}

pub(super) fn read(json: &RawValue, compared: bool) -> Result<NodeReceipt, String> {
    let wrong = |error| format!("cannot parse a receipt: {error}");
    match compared {
        false => serde_json::from_str(json.get()).map_err(wrong),
        true => lenient(serde_json::from_str(json.get()).map_err(wrong)?),
    }
}

/// Decodes a receipt as far as possible. Unreadable fields differ from the derived ones, so they are kept as
/// reported.
fn lenient(reported: Map<String, Value>) -> Result<NodeReceipt, String> {
    let number = |name| json_fields::number(&reported, name);
    let kind = number("type").map_or(0, |kind| u8::try_from(kind).unwrap_or(u8::MAX));
    let outcome = match (number("status"), json_fields::field(&reported, "root")) {
        (Some(status), _) => Outcome::Status(status != 0),
        (None, Some(root)) => Outcome::StateRoot(root),
        (None, None) => Outcome::Unknown,
    };
    let logs = match reported.get("logs") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(logs)) => logs.iter().map(compare::log).collect::<Result<_, _>>()?,
        Some(_) => return Err("cannot parse a receipt: its logs are not a list".to_owned()),
    };
    let receipt = Receipt {
        tx_type: kind,
        outcome,
        cumulative_gas_used: number("cumulativeGasUsed").unwrap_or(0),
        logs,
        extra: None,
    };
    Ok(NodeReceipt {
        transaction_hash: json_fields::field(&reported, "transactionHash"),
        block_hash: json_fields::field(&reported, "blockHash"),
        receipt,
        reported: Some(reported),
    })
}

/// Returns logs in the node's order, by their log indexes.
pub(super) fn read_logs(json: &RawValue) -> Result<Vec<NodeLog>, String> {
    let logs: Result<Vec<NodeLog>, _> = serde_json::from_str(json.get());
    let mut logs = logs.map_err(|error| format!("cannot parse the logs: {error}"))?;
    logs.sort_by_key(|log| (log.block_number, log.log_index));
    Ok(logs)
}

/// Known fields of a receipt.
enum Field {
    TransactionHash,
    BlockHash,
    Type,
    Status,
    Root,
    CumulativeGasUsed,
    Logs,
    Derived,
    Extra(String),
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl Visitor<'_> for Names {
            type Value = Field;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E>(self, name: &str) -> Result<Field, E> {
                Ok(match name {
                    "transactionHash" => Field::TransactionHash,
                    "blockHash" => Field::BlockHash,
                    "type" => Field::Type,
                    "status" => Field::Status,
                    "root" => Field::Root,
                    "cumulativeGasUsed" => Field::CumulativeGasUsed,
                    "logs" => Field::Logs,
                    "blockNumber" | "blockTimestamp" | "transactionIndex" | "from" | "to"
                    | "gasUsed" | "effectiveGasPrice" | "contractAddress" | "logsBloom" => {
                        Field::Derived
                    }
                    _ => Field::Extra(name.to_owned()),
                })
            }
        }
        deserializer.deserialize_identifier(Names)
    }
}

impl<'de> Deserialize<'de> for NodeReceipt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = NodeReceipt;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a receipt")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NodeReceipt, A::Error> {
                visit(map)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

fn visit<'de, A: MapAccess<'de>>(mut map: A) -> Result<NodeReceipt, A::Error> {
    let mut transaction_hash: Option<B256> = None;
    let mut block_hash: Option<B256> = None;
    let mut kind: Option<U64> = None;
    let mut status: Option<U64> = None;
    let mut root: Option<&RawValue> = None;
    let mut gas: Option<U64> = None;
    let mut logs: Option<Vec<Log>> = None;
    let mut extra: Vec<(String, &RawValue)> = Vec::new();
    while let Some(field) = map.next_key()? {
        match field {
            Field::TransactionHash => transaction_hash = Some(map.next_value()?),
            Field::BlockHash => block_hash = map.next_value()?,
            Field::Type => kind = map.next_value()?,
            Field::Status => status = map.next_value()?,
            Field::Root => root = map.next_value()?,
            Field::CumulativeGasUsed => gas = Some(map.next_value()?),
            Field::Logs => logs = Some(map.next_value()?),
            Field::Derived => drop(map.next_value::<IgnoredAny>()?),
            Field::Extra(name) => extra.push((name, map.next_value()?)),
        }
    }
    let kind = u8::try_from(kind.map_or(0, |kind| kind.to::<u64>()));
    let receipt = Receipt {
        tx_type: kind.map_err(|_| A::Error::custom("the type does not fit into a byte"))?,
        outcome: outcome(status, root),
        cumulative_gas_used: gas.ok_or_else(|| A::Error::missing_field("cumulativeGasUsed"))?.to(),
        logs: logs.ok_or_else(|| A::Error::missing_field("logs"))?,
        extra: kept(extra),
    };
    let missing = || A::Error::missing_field("transactionHash");
    let transaction_hash = Some(transaction_hash.ok_or_else(missing)?);
    Ok(NodeReceipt { transaction_hash, block_hash, receipt, reported: None })
}

fn outcome(status: Option<U64>, root: Option<&RawValue>) -> Outcome {
    if let Some(status) = status {
        return Outcome::Status(status != U64::ZERO);
    }
    // Some nodes return "0x" or null where there is none.
    let root = root.and_then(|root| serde_json::from_str::<B256>(root.get()).ok());
    root.map_or(Outcome::Unknown, Outcome::StateRoot)
}

/// The other fields as a JSON object, sorted, so that nodes that report the same produce the same bytes.
fn kept(mut fields: Vec<(String, &RawValue)>) -> Option<Bytes> {
    fields.retain(|(_, value)| value.get() != "null");
    if fields.is_empty() {
        return None;
    }
    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
    let object: serde_json::Result<Vec<u8>> = {
        let mut out = Vec::new();
        let mut serializer = serde_json::Serializer::new(&mut out);
        serde::Serializer::collect_map(&mut serializer, fields).map(|()| out)
    };
    object.ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use alloy_primitives::b256;

    use super::*;

    fn parse(json: &str) -> Result<NodeReceipt, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    const HASH: &str = "0x1111111111111111111111111111111111111111111111111111111111111111";

    #[test]
    fn fields_that_do_not_follow_from_the_block_are_kept_sorted() {
        let json = format!(
            r#"{{"l1Fee":"0x9","transactionHash":"{HASH}","status":"0x1","cumulativeGasUsed":"0x5208","logs":[],
            "from":null,"blobGasPrice":"0x1","type":"0x7e","depositNonce":null,"l1":{{"b":[1]}},"logsBloom":"0x"}}"#
        );
        let parsed = parse(&json).expect("a receipt");
        assert_eq!(parsed.receipt.tx_type, 0x7e);
        assert_eq!(parsed.receipt.outcome, Outcome::Status(true));
        let extra = parsed.receipt.extra.expect("some");
        assert_eq!(
            extra,
            Bytes::from_static(br#"{"blobGasPrice":"0x1","l1":{"b":[1]},"l1Fee":"0x9"}"#)
        );
    }

    #[test]
    fn a_receipt_before_byzantium_has_a_state_root() {
        let json = format!(
            r#"{{"transactionHash":"{HASH}","root":"{HASH}","status":null,"cumulativeGasUsed":"0x1","logs":[]}}"#
        );
        let root = b256!("1111111111111111111111111111111111111111111111111111111111111111");
        let parsed = parse(&json).expect("a receipt");
        assert_eq!(parsed.receipt.outcome, Outcome::StateRoot(root));
        assert_eq!(parsed.receipt.extra, None);
    }

    #[test]
    fn broken_receipts_are_refused() {
        let topics = vec![format!("\"{HASH}\""); 5].join(",");
        let five = format!(
            r#"{{"transactionHash":"{HASH}","cumulativeGasUsed":"0x1",
            "logs":[{{"address":"0x{}","data":"0x","topics":[{topics}]}}]}}"#,
            "00".repeat(20)
        );
        let kind = format!(
            r#"{{"transactionHash":"{HASH}","cumulativeGasUsed":"0x1","logs":[],"type":"0x100"}}"#
        );
        let cases =
            ["{}", "[]", "null", r#"{"transactionHash":"0x12"}"#, five.as_str(), kind.as_str()];
        for case in cases {
            assert!(parse(case).is_err(), "{case}");
        }
    }
}
