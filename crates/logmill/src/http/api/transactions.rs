//! Transactions: the catalogue, and everything that is known of one.
//!
//! Guarantees: a transaction that is stored is found, whether tables have it yet or not. Leaves to others: its logs as
//! they are, which JSON-RPC gives.

use std::sync::Arc;

use alloy_primitives::B256;
use logmill_chain::render::Render;
use logmill_chain::{Block, Outcome};
use logmill_io::params;
use logmill_pipeline::derive::Table;
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use logmill_pipeline::processors::token::{FT_TRANSFERS, NFT_TRANSFERS};
use logmill_pipeline::processors::tx_contracts::{TX_CONTRACTS, TX_TAGS};
use logmill_pipeline::processors::tx_metrics::TX_METRICS;
use serde_json::{Value as Json, json};

use super::call::{Call, LIMIT_MAX, Reply};
use super::collections::NFT_TRANSFER;
use super::data::{BLOCK, Data, NATIVE_DECIMALS, TIME, TX_INDEX};
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Ask, Direction, List};
use super::param::{ParamKind, required};
use super::record::{Form, Object, Record, address, bytes, column, computed};
use super::tokens::{TRANSFER, complete_transfers};

/// A transaction of the catalogue.
pub(super) static TRANSACTION: Record = Record {
    name: "Transaction",
    about: "A transaction.",
    base: None,
    fields: &[
        BLOCK,
        TX_INDEX,
        column("hash", Form::Bytes, "hash", "its hash"),
        column("type", Form::Number, "tx_type", "its type, as of EIP-2718; 0 for a legacy one"),
        column("from", Form::Address, "from_address", "who sent it").or_null(),
        column("to", Form::Address, "to_address", "whom it calls; null if it creates a contract")
            .or_null(),
        column("contract", Form::Address, "contract_address", "the contract that it created")
            .or_null(),
        column("nonce", Form::Number, "nonce", "its number among those of its sender").or_null(),
        column("value", Form::Amount, "value", "what it sends, in wei"),
        computed("decimals", Form::Number, "of `value`"),
        column("selector", Form::Bytes, "selector", "which function it calls").or_null(),
        column("inputBytes", Form::Number, "input_bytes", "how long its input is"),
        column(
            "success",
            Form::Flag,
            "status",
            "whether it succeeded; null where the receipt does not tell",
        )
        .or_null(),
        TIME,
    ],
};

static METRICS: Record = Record {
    name: "TransactionMetrics",
    about: "What a transaction used and paid. It cost its sender `fee` + `blobFee` + `l1Fee`.",
    base: None,
    fields: &[
        column("logCount", Form::Number, "event_count", "its logs"),
        column("gasUsed", Form::Number, "gas_used", "the gas that it used").or_null(),
        column("gasLimit", Form::Number, "gas_limit", "the most that it could have used").or_null(),
        column("gasPrice", Form::Amount, "effective_gas_price", "what it paid per gas, in wei")
            .or_null(),
        column("fee", Form::Amount, "fee", "what it paid for being executed, in wei").or_null(),
        column("burnt", Form::Amount, "burnt", "the base fee's part of it").or_null(),
        column("tip", Form::Amount, "tip", "the rest of it").or_null(),
        column("blobFee", Form::Amount, "blob_fee", "what it paid for blobs, in wei").or_null(),
        column("l1Fee", Form::Amount, "l1_fee", "what a rollup took for its chain, in wei")
            .or_null(),
        computed("decimals", Form::Number, "of the fees"),
    ],
};

static TOUCHED: Record = Record {
    name: "TouchedContract",
    about: "A contract that a transaction touched.",
    base: None,
    fields: &[
        column("address", Form::Address, "contract", "the contract"),
        column("source", Form::Text, "source", "`create`, `call` or `log`"),
    ],
};

static TAG: Record = Record {
    name: "Tag",
    about: "What a transaction did.",
    base: None,
    fields: &[column("tag", Form::Text, "tag", "in a word")],
};

static DETAIL: Record = Record {
    name: "TransactionDetail",
    about: "Everything that is known of a transaction. Of transfers and contracts, the first hundred.",
    base: Some(&TRANSACTION),
    fields: &[
        computed("blockHash", Form::Bytes, "the hash of its block, if the block is stored")
            .or_null(),
        computed("final", Form::Flag, "whether its block is final"),
        computed("derived", Form::Flag, "whether tables have it; if not, the lists are empty"),
        computed("metrics", Form::Object(&METRICS), "what it used and paid").or_null(),
        computed("tags", Form::List(&Form::Text), "what it did, in a word each"),
        computed("contracts", Form::List(&Form::Object(&TOUCHED)), "the contracts that it touched"),
        computed("tokenTransfers", Form::List(&Form::Object(&TRANSFER)), "of fungible tokens"),
        computed("nftTransfers", Form::List(&Form::Object(&NFT_TRANSFER)), "of unique tokens"),
        computed("truncated", Form::Flag, "whether a list has more than it shows"),
    ],
};

/// The catalogue, newest first.
static TRANSACTIONS: List = List {
    table: &EVM_TRANSACTIONS,
    record: &TRANSACTION,
    order: &["block_height", "tx_index"],
    direction: Direction::Down,
};

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "transactions",
        path: "/transactions",
        summary: "The transactions, newest first.",
        needs: &["evm_worker"],
        uses: &[],
        params: &[],
        shape: Shape::Page(&TRANSACTION),
        run: |call| Box::pin(transactions(call)),
    },
    Endpoint {
        id: "transaction",
        path: "/transactions/{hash}",
        summary: "Everything that is known of a transaction.",
        needs: &[],
        uses: &["evm_worker", "tx_metrics_worker", "tx_contracts_worker", "token_worker"],
        params: &[required("hash", ParamKind::Hash, "its hash")],
        shape: Shape::One(&DETAIL),
        run: |call| Box::pin(transaction(call)),
    },
];

async fn transactions(call: &Call) -> ApiResult<Reply> {
    let (mut items, next) = call.stretch(&TRANSACTIONS, &Ask::default(), |_| true).await?;
    add_native_decimals(&mut items);
    Ok(call.reply(items, next))
}

/// Says of which unit the amounts of transactions are.
pub(super) fn add_native_decimals(items: &mut [Object]) {
    for item in items {
        item.insert("decimals".to_owned(), NATIVE_DECIMALS.into());
    }
}

async fn transaction(call: &Call) -> ApiResult<Reply> {
    let hash = call.hash("hash")?;
    let found = match call.some_data() {
        Some(data) => catalogued(data, hash).await?,
        None => None,
    };
    let (mut transaction, data) = match found {
        Some(transaction) => (transaction, call.some_data()),
        None => (stored(call, hash).await?, None),
    };
    let number = transaction["blockNumber"].as_u64().unwrap_or_default();
    let view = call.served.chain.view().await?;
    let block = view.block_ref(number).await?;
    transaction.insert("blockHash".to_owned(), json!(block.map(|block| block.hash)));
    let is_final = view.finalized().is_some_and(|at| number <= at.number);
    transaction.insert("final".to_owned(), is_final.into());
    transaction.insert("derived".to_owned(), data.is_some().into());
    let of = (number, transaction["transactionIndex"].as_u64().unwrap_or_default());
    add_detail(data, of, &mut transaction).await?;
    Ok(Reply::One(transaction))
}

/// The row of the catalogue, if there is one.
async fn catalogued(data: &Data, hash: B256) -> ApiResult<Option<Object>> {
    let ask = Ask { filter: "hash = $1".to_owned(), ..Ask::key("", params![&hash[..]]) };
    let found = match list::row(data, (&EVM_TRANSACTIONS, &TRANSACTION), ask).await {
        Err(error) if error.is_not_derived() => None,
        found => found?,
    };
    Ok(found.map(|mut transaction| {
        transaction.insert("decimals".to_owned(), NATIVE_DECIMALS.into());
        transaction
    }))
}

/// The transaction as it is stored.
async fn stored(call: &Call, hash: B256) -> ApiResult<Object> {
    let view = call.served.chain.view().await?;
    match view.transaction(&hash).await? {
        Some((block, position)) => logmill_io::compute(move || of_block(&block, position)).await,
        None if view.is_complete() => Err(ApiError::not_found("there is no such transaction")),
        None => Err(ApiError::not_stored("it may be in history that is not stored here")),
    }
}

fn of_block(block: &Arc<Block>, position: usize) -> ApiResult<Object> {
    let sent = Render::of(block)?.sent(position)?;
    let hash = block.transactions.get(position).map(|transaction| transaction.hash);
    let receipt = block.receipts.get(position);
    let success = match receipt.map(|receipt| receipt.outcome) {
        Some(Outcome::Status(success)) => Some(success),
        _ => None,
    };
    let created = sent.created().filter(|_| success != Some(false));
    let selector = sent.to.and_then(|_| sent.input.get(..4));
    let tx_type = sent.tx_type.or(receipt.map(|receipt| receipt.tx_type));
    let transaction = json!({
        "blockNumber": block.at.number,
        "transactionIndex": position,
        "hash": hash,
        "type": tx_type.unwrap_or_default(),
        "from": sent.from.as_ref().map(address),
        "to": sent.to.as_ref().map(address),
        "contract": created.as_ref().map(address),
        "nonce": sent.nonce,
        "value": sent.value.to_string(),
        "decimals": NATIVE_DECIMALS,
        "selector": selector.map(bytes),
        "inputBytes": sent.input.len(),
        "success": success,
        "timestamp": block.at.timestamp,
    });
    match transaction {
        Json::Object(transaction) => Ok(transaction),
        _ => Err(ApiError::internal("a transaction is an object")),
    }
}

/// Adds what other tables have of a transaction.
async fn add_detail(
    data: Option<&Data>,
    (block, index): (u64, u64),
    transaction: &mut Object,
) -> ApiResult<()> {
    let place = || {
        params![i64::try_from(block).unwrap_or(i64::MAX), i64::try_from(index).unwrap_or(i64::MAX)]
    };
    let by_key = || Ask::key("block_height = $1 AND tx_index = $2", place());
    // Transfers are keyed by block and log: those of the block are looked at.
    let by_filter =
        || Ask { filter: "tx_index = $2".to_owned(), ..Ask::key("block_height = $1", place()) };
    let metrics = some(data, (&TX_METRICS, &METRICS), by_key(), "tx_index").await?;
    let tags = some(data, (&TX_TAGS, &TAG), by_key(), "tag").await?;
    let contracts = some(data, (&TX_CONTRACTS, &TOUCHED), by_key(), "contract").await?;
    let mut fungible = some(data, (&FT_TRANSFERS, &TRANSFER), by_filter(), "event_index").await?;
    let order = "event_index, batch_index";
    let mut unique = some(data, (&NFT_TRANSFERS, &NFT_TRANSFER), by_filter(), order).await?;
    let mut is_truncated = tags.len() > LIMIT_MAX;
    let mut contracts = contracts;
    for list in [&mut contracts, &mut fungible, &mut unique] {
        is_truncated |= list.len() > LIMIT_MAX;
        list.truncate(LIMIT_MAX);
    }
    if let Some(data) = data {
        complete_transfers(data, &mut fungible).await?;
        data.add_hashes(&mut unique).await?;
    }
    let metrics = metrics.into_iter().next().map(|mut metrics| {
        metrics.insert("decimals".to_owned(), NATIVE_DECIMALS.into());
        metrics
    });
    let tags: Vec<Json> = tags.into_iter().filter_map(|mut tag| tag.remove("tag")).collect();
    transaction.insert("metrics".to_owned(), json!(metrics));
    transaction.insert("tags".to_owned(), tags.into());
    transaction.insert("contracts".to_owned(), json!(contracts));
    transaction.insert("tokenTransfers".to_owned(), json!(fungible));
    transaction.insert("nftTransfers".to_owned(), json!(unique));
    transaction.insert("truncated".to_owned(), is_truncated.into());
    Ok(())
}

/// The rows of a table of a transaction, and one more than is shown; none where they are not derived.
async fn some(
    data: Option<&Data>,
    of: (&'static Table, &'static Record),
    ask: Ask,
    order: &str,
) -> ApiResult<Vec<Object>> {
    let Some(data) = data else {
        return Ok(Vec::new());
    };
    match list::rows(data, of, ask, order, LIMIT_MAX + 1).await {
        Err(error) if error.is_not_derived() => Ok(Vec::new()),
        rows => rows,
    }
}
