//! Compares a node's answer with what follows from the block, and keeps the differences.
//!
//! The block is rendered as it would be served. Each field of the node's answer that is missing there or differs is
//! kept beside the block. The case of hexadecimal digits is ignored; nothing else is.
//!
//! Guarantees: every field of the node's answer is served as it was reported, within the bounds below. The node's
//! sender is used only where `r` and `s` cannot be a signature. Leaves to others: parts that are kept entirely as
//! JSON.

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, Bytes, U64};
use metrics::counter;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::block::{Block, Header, Log, TransactionForm};
use crate::error::Result;
use crate::json_fields;
use crate::node_fields::{NodeFields, key};
use crate::render::BlockRenderer;
use crate::sender::Sender;
use crate::transaction_json::may_be_signature;
use crate::transaction_view::TransactionView;

/// Maximum bytes of one kept field as JSON.
const FIELD_BYTES_MAX: usize = 256 << 10;
/// Maximum kept fields of one part.
const FIELDS_MAX: usize = 256;
/// Maximum bytes of all kept fields of a block.
const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Remaining space for kept fields of a block.
#[derive(Debug)]
struct Budget {
    bytes: usize,
    left_out: u64,
    /// For the metric.
    chain: Option<u64>,
}

impl Budget {
    fn new(chain: Option<u64>) -> Self {
        Self { bytes: BLOCK_BYTES_MAX, left_out: 0, chain }
    }

    /// Removes fields that exceed the bounds.
    fn cut(&mut self, fields: &mut Map<String, Value>) {
        let mut count = 0;
        fields.retain(|name, value| {
            let bytes =
                name.len() + serde_json::to_vec(value).map_or(usize::MAX, |text| text.len());
            let fits = count < FIELDS_MAX && bytes <= FIELD_BYTES_MAX && bytes <= self.bytes;
            if fits {
                count += 1;
                self.bytes -= bytes;
            } else {
                self.left_out += 1;
            }
            fits
        });
    }

    /// Encodes fields within the bounds; `None` if there are none.
    fn kept(&mut self, mut fields: Map<String, Value>) -> Option<Bytes> {
        self.cut(&mut fields);
        if fields.is_empty() {
            return None;
        }
        serde_json::to_vec(&fields).ok().map(Bytes::from)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if self.left_out > 0 {
            let chain = chain_label(self.chain);
            counter!("logmill_chain_node_fields_left_out_total", "chain" => chain)
                .increment(self.left_out);
        }
    }
}

/// Metric label; empty if the chain is not known.
pub(super) fn chain_label(chain: Option<u64>) -> String {
    chain.map_or_else(String::new, |chain| chain.to_string())
}

/// Compares a block and its transactions with the node's JSON, and keeps the differences. Receipts come later.
pub(super) fn keep_block_fields(
    block: &mut Block,
    json: &RawValue,
    chain: Option<u64>,
) -> Result<()> {
    let mut budget = Budget::new(chain);
    let mut kept = NodeFields::default();
    let mut reported = json_fields::object(json.get().as_bytes(), "a block")?;
    let transactions = reported.remove("transactions");
    // Fields kept earlier must not take part in the comparison.
    block.node_fields = crate::KeptFields::default();
    let render = BlockRenderer::of(block)?;
    if matches!(block.header, Header::Canonical(_)) {
        let mut text = Vec::new();
        render.block(&mut text, false)?;
        let follows = json_fields::object(&text, "a block")?;
        kept.block = budget.kept(differing(reported, &follows));
    }
    let Some(Value::Array(transactions)) = transactions else {
        block.node_fields = crate::KeptFields::compared(kept);
        return Ok(());
    };
    for (position, reported) in transactions.into_iter().enumerate() {
        let Value::Object(reported) = reported else { continue };
        let Some(view) = assumed_view(block, position, &reported, render.base_fee())? else {
            continue;
        };
        let mut text = Vec::new();
        render.transaction(&mut text, position, &view)?;
        let follows = json_fields::object(&text, "a transaction")?;
        let fields = budget.kept(differing(reported, &follows));
        if let (Some(fields), Some(key)) = (fields, key(position)) {
            kept.transactions.insert(key, fields);
        }
    }
    block.node_fields = crate::KeptFields::compared(kept);
    Ok(())
}

/// Decodes a canonical transaction, with the sender that the node reported if the signature may be valid: recovering
/// the signer would cost more than all else. `None` for a foreign transaction.
fn assumed_view(
    block: &Block,
    position: usize,
    reported: &Map<String, Value>,
    base_fee: Option<u64>,
) -> Result<Option<TransactionView>> {
    let Some(TransactionForm::Canonical(bytes)) =
        block.transactions.get(position).map(|tx| &tx.form)
    else {
        return Ok(None);
    };
    let envelope = TxEnvelope::decode_2718_exact(bytes);
    let envelope = envelope.map_err(|error| crate::Error::corrupt(error.to_string()))?;
    let signature = envelope.signature();
    let from = match json_fields::field::<Address>(reported, "from") {
        Some(from) if may_be_signature(signature.r(), signature.s()) => Some(from),
        _ => Sender::of(&envelope).address(),
    };
    Ok(Some(TransactionView::canonical(envelope, from, base_fee)))
}

/// Compares the receipts of a block and their logs with the node's JSON, and keeps the differences. `reported` is by
/// position; `None` where the node returned no receipt.
pub(super) fn keep_receipt_fields(
    block: &mut Block,
    reported: Vec<Option<Map<String, Value>>>,
    chain: Option<u64>,
) -> Result<()> {
    let mut budget = Budget::new(chain);
    let indexes: Vec<Option<u64>> = reported.iter().flatten().flat_map(log_indexes).collect();
    let mut compared = Vec::with_capacity(reported.len());
    let render = BlockRenderer::of(block)?;
    for (position, reported) in reported.into_iter().enumerate() {
        let Some(reported) = reported else { continue };
        let view = match assumed_view(block, position, &reported, render.base_fee())? {
            Some(view) if !is_sender_kept(block, position) => view,
            _ => render.transaction_view(position)?,
        };
        let mut text = Vec::new();
        render.receipt(&mut text, position, &view)?;
        let follows = json_fields::object(&text, "a receipt")?;
        compared.push((position, compare_receipt(reported, follows, &mut budget)));
    }
    let mut firsts = Vec::with_capacity(block.receipts.len());
    let mut first = 0;
    for receipt in &block.receipts {
        firsts.push(first);
        first += receipt.logs.len();
    }
    for (position, found) in compared {
        let (Some(receipt), Some(first)) = (block.receipts.get_mut(position), firsts.get(position))
        else {
            continue;
        };
        receipt.extra = found.extra;
        let logs = found.logs.into_iter().filter_map(|(at, log)| Some((key(first + at)?, log)));
        block.node_fields.get_mut().logs.extend(logs);
    }
    keep_log_indexes(block, &indexes, chain);
    Ok(())
}

/// Kept fields of a receipt.
struct ReceiptFields {
    extra: Option<Bytes>,
    /// By position in the receipt.
    logs: Vec<(usize, Bytes)>,
}

fn compare_receipt(
    mut reported: Map<String, Value>,
    mut follows: Map<String, Value>,
    budget: &mut Budget,
) -> ReceiptFields {
    let (logs, followed) = (reported.remove("logs"), follows.remove("logs"));
    let extra = budget.kept(differing(reported, &follows));
    let mut kept = Vec::new();
    if let (Some(Value::Array(logs)), Some(Value::Array(followed))) = (logs, followed) {
        for (at, pair) in logs.into_iter().zip(followed).enumerate() {
            let (Value::Object(mut log), Value::Object(follows)) = pair else { continue };
            // Log indexes are compared for the block as a whole.
            log.remove("logIndex");
            kept.extend(budget.kept(differing(log, &follows)).map(|fields| (at, fields)));
        }
    }
    ReceiptFields { extra, logs: kept }
}

fn is_sender_kept(block: &Block, position: usize) -> bool {
    let kept = block.node_fields.get().of_transaction(position).unwrap_or_default();
    kept.contains_key("from")
}

/// The reported fields that are missing from `follows` or differ from it.
fn differing(mut reported: Map<String, Value>, follows: &Map<String, Value>) -> Map<String, Value> {
    reported.retain(|name, value| !follows.get(name).is_some_and(|ours| is_same(value, ours)));
    reported
}

/// Whether a reported value equals the derived one, which may have additional fields.
fn is_same(reported: &Value, follows: &Value) -> bool {
    match (reported, follows) {
        (Value::String(a), Value::String(b)) => a.eq_ignore_ascii_case(b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Keeps the node's log indexes if they differ from the positions and increase strictly. If they do not increase,
/// they are wrong, and the positions are used.
pub(super) fn keep_log_indexes(block: &mut Block, reported: &[Option<u64>], chain: Option<u64>) {
    if reported.len() != block.log_count() || reported.iter().all(Option::is_none) {
        return;
    }
    let indexes: Option<Vec<u32>> =
        reported.iter().map(|index| u32::try_from((*index)?).ok()).collect();
    let increasing = indexes.filter(|indexes| indexes.is_sorted_by(|a, b| a < b));
    let Some(indexes) = increasing else {
        counter!("logmill_chain_log_indexes_ignored_total", "chain" => chain_label(chain))
            .increment(1);
        return;
    };
    let are_positions = indexes.iter().enumerate().all(|(at, index)| key(at) == Some(*index));
    if !are_positions {
        block.node_fields.get_mut().log_indexes = indexes;
    }
}

fn log_indexes(reported: &Map<String, Value>) -> Vec<Option<u64>> {
    let logs = reported.get("logs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let index = |log: &Value| serde_json::from_value::<U64>(log.get("logIndex")?.clone()).ok();
    logs.iter().map(|log| index(log).map(|index| index.to())).collect()
}

/// Parses a log in a node's JSON.
pub(super) fn log(reported: &Value) -> std::result::Result<Log, String> {
    #[derive(serde::Deserialize)]
    struct Fields {
        address: Address,
        topics: crate::block::Topics,
        #[serde(default)]
        data: Option<Bytes>,
    }
    let fields = <Fields as serde::Deserialize>::deserialize(reported);
    let Fields { address, topics, data } =
        fields.map_err(|error| format!("cannot parse a log: {error}"))?;
    Ok(Log { address, topics, data: data.unwrap_or_default() })
}

/// The JSON of a part that is kept whole, without fields that are too large; `None` if nothing needs to be removed.
pub(super) fn bounded(json: &[u8], known: &[&str]) -> Option<Bytes> {
    let is_small = json.len() <= FIELD_BYTES_MAX;
    if is_small {
        return None;
    }
    let mut fields = json_fields::object(json, "a part of a block").ok()?;
    let mut unknown = Map::new();
    fields.retain(|name, value| {
        let is_known = known.contains(&name.as_str());
        if !is_known {
            unknown.insert(name.clone(), value.take());
        }
        is_known
    });
    // The caller does not know the chain.
    Budget::new(None).cut(&mut unknown);
    fields.extend(unknown);
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}
