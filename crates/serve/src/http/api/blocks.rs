//! Stored blocks, and their derived transactions.
//!
//! Guarantees: the blocks come from one snapshot of the chain; where history is missing, a list continues below the
//! gap, and `asOf.covered` shows it. Leaves to others: whole blocks (JSON-RPC).

use std::ops::Range;

use logmill_chain::{Block, BlockRef};
use logmill_io::params;
use logmill_pipeline::View;
use logmill_pipeline::derive::Kind;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use serde_json::{Value as Json, json};

use super::data;
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{Direction, List, RowQuery};
use super::param::{Param, ParamKind, required};
use super::position::{OrderValue, Position};
use super::record::{Form, Object, Record, address, bytes, computed};
use super::transactions::{TRANSACTION, add_native_decimals};

static BLOCK: Record = Record {
    name: "Block",
    about: "A block. Fields are null if only the logs of the block are stored.",
    base: None,
    fields: &[
        computed("number", Form::Number, "block number"),
        computed("hash", Form::Bytes, "block hash"),
        computed("parentHash", Form::Bytes, "hash of the parent block"),
        computed("timestamp", Form::Number, "seconds since 1970"),
        computed("status", Form::Text, "`final`, `safe`, or `tip` if it may still be replaced"),
        computed("transactionCount", Form::Number, "number of transactions").or_null(),
        computed("logCount", Form::Number, "number of logs").or_null(),
        computed("gasUsed", Form::Number, "gas used by its transactions").or_null(),
        computed("gasLimit", Form::Number, "gas limit of the block").or_null(),
        computed("baseFeePerGas", Form::Amount, "base fee per gas, in wei; null before EIP-1559")
            .or_null(),
        computed("miner", Form::Address, "fee recipient of the block").or_null(),
        computed("size", Form::Number, "size in bytes").or_null(),
    ],
};

static TRANSACTIONS: List = List {
    table: &EVM_TRANSACTIONS,
    record: &TRANSACTION,
    order: &["tx_index"],
    direction: Direction::Up,
};

const BLOCK_PARAM: Param = required("block", ParamKind::Block, "block number or block hash");

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "blocks",
        path: "/blocks",
        summary: "The blocks, newest first.",
        needs: &[],
        uses: &[],
        params: &[],
        shape: Shape::Page(&BLOCK),
        run: |call| Box::pin(blocks(call)),
    },
    Endpoint {
        id: "block",
        path: "/blocks/{block}",
        summary: "A block.",
        needs: &[],
        uses: &[],
        params: &[BLOCK_PARAM],
        shape: Shape::One(&BLOCK),
        run: |call| Box::pin(block(call)),
    },
    Endpoint {
        id: "block_transactions",
        path: "/blocks/{block}/transactions",
        summary: "The transactions of a block, in block order.",
        needs: &[ProcessorName::Evm],
        uses: &[],
        params: &[BLOCK_PARAM],
        shape: Shape::Page(&TRANSACTION),
        run: |call| Box::pin(transactions(call)),
    },
];

/// The `asOf` of answers about the chain itself.
pub(super) fn as_of(view: &View) -> Json {
    let (head, last) = (view.head(), view.finalized());
    let hash = head.filter(|head| last.is_none_or(|last| last.number < head.number));
    let hash = hash.map(|head| head.hash);
    let (head, last) = (head.map(|head| head.number), last.map(|last| last.number));
    data::as_of(head, hash, last, &view.covered())
}

async fn blocks(call: &Call) -> ApiResult<Reply> {
    let view = call.served.chain.view().await?;
    let before = match call.position(&[Kind::Int])?.map(|from| from.0) {
        Some(places) => match places[..] {
            [OrderValue::Int(number)] => u64::try_from(number).map_err(|_| ApiError::cursor())?,
            _ => return Err(ApiError::cursor()),
        },
        None => u64::MAX,
    };
    let mut numbers = below(view.covered(), before, call.limit() + 1);
    let next = (numbers.len() > call.limit()).then(|| {
        numbers.truncate(call.limit());
        let last = numbers.last().and_then(|last| i64::try_from(*last).ok());
        Position(vec![OrderValue::Int(last.unwrap_or(i64::MAX))])
    });
    let mut items = Vec::new();
    for number in numbers {
        // History may be pruned between listing and reading.
        items.extend(read(&view, number).await?);
    }
    Ok(call.reply(items, next))
}

/// The highest numbers in some ranges that are below a number.
fn below(ranges: Vec<Range<u64>>, before: u64, most: usize) -> Vec<u64> {
    let below = |range: Range<u64>| range.start..range.end.min(before).max(range.start);
    ranges.into_iter().rev().flat_map(|range| below(range).rev()).take(most).collect()
}

async fn read(view: &View, number: u64) -> ApiResult<Option<Object>> {
    let Some(at) = view.block_ref(number).await? else {
        return Ok(None);
    };
    let mut block = BLOCK.empty();
    let outline = view.outline(number).await?;
    if let Some((outline, logs)) = &outline {
        add_outline(outline, *logs, &mut block)?;
    }
    block.insert("number".to_owned(), at.number.into());
    block.insert("hash".to_owned(), bytes(at.hash.as_slice()));
    block.insert("parentHash".to_owned(), bytes(at.parent_hash.as_slice()));
    block.insert("timestamp".to_owned(), at.timestamp.into());
    block.insert("status".to_owned(), status(view, at).into());
    Ok(Some(block))
}

fn status(view: &View, at: BlockRef) -> &'static str {
    let is_within = |end: Option<BlockRef>| end.is_some_and(|end| at.number <= end.number);
    match () {
        () if is_within(view.finalized()) => "final",
        () if is_within(view.safe()) => "safe",
        () => "tip",
    }
}

fn add_outline(block: &Block, logs: u64, object: &mut Object) -> ApiResult<()> {
    let facts = block.header.facts()?;
    let base_fee = facts.base_fee_per_gas.map(|fee| fee.to_string());
    for (name, value) in [
        ("transactionCount", json!(block.listed_transactions())),
        ("logCount", json!(logs)),
        ("gasUsed", json!(facts.gas_used)),
        ("gasLimit", json!(facts.gas_limit)),
        ("baseFeePerGas", json!(base_fee)),
        ("miner", facts.miner.as_ref().map(address).unwrap_or_default()),
        ("size", json!(block.size)),
    ] {
        object.insert(name.to_owned(), value);
    }
    Ok(())
}

/// The number of the block named in the path.
async fn number(call: &Call, view: &View) -> ApiResult<u64> {
    let Some(hash) = call.opt_hash("block") else {
        return call.number("block");
    };
    let unknown = || match view.is_complete() {
        true => ApiError::not_found("no block has this hash"),
        false => ApiError::not_stored(
            "not found in the stored blocks; it may be in history that is not stored here",
        ),
    };
    let at = view.block_ref_by_hash(&hash).await?;
    Ok(at.ok_or_else(unknown)?.number)
}

async fn block(call: &Call) -> ApiResult<Reply> {
    let view = call.served.chain.view().await?;
    let number = number(call, &view).await?;
    read(&view, number).await?.map(Reply::One).ok_or_else(|| missing(&view, number))
}

fn missing(view: &View, number: u64) -> ApiError {
    match view.head() {
        Some(head) if number <= head.number => {
            ApiError::not_stored(format!("block {number} is not stored here"))
        }
        _ => ApiError::not_found(format!("block {number} does not exist yet")),
    }
}

async fn transactions(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let view = call.served.chain.view().await?;
    let number = number(call, &view).await?;
    if !data.covered(ProcessorName::Evm)?.contains(number) {
        return Err(match view.block_ref(number).await? {
            Some(_) => ApiError::not_stored(format!("block {number} is not derived yet")),
            None => missing(&view, number),
        });
    }
    let height = i64::try_from(number).unwrap_or(i64::MAX);
    let query = RowQuery::key("block_height = $1", params![height]);
    let (mut items, next) = call.page_of(&TRANSACTIONS, &query, |_| true).await?;
    add_native_decimals(&mut items);
    Ok(call.reply(items, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_blocks_continues_below_gaps() {
        let check = |before, most, expected: &[u64]| {
            assert_eq!(below(vec![0..3, 7..9], before, most), expected);
        };
        check(u64::MAX, 9, &[8, 7, 2, 1, 0]);
        check(u64::MAX, 3, &[8, 7, 2]);
        check(8, 2, &[7, 2]);
        check(7, 9, &[2, 1, 0]);
        check(5, 9, &[2, 1, 0]);
        check(0, 9, &[]);
    }
}
