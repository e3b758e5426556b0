//! Transactions: the catalogue, and the details of one transaction.
//!
//! Guarantees: a stored transaction is found, whether or not it is in the tables yet. Leaves to others: its raw logs
//! (JSON-RPC).

use std::sync::Arc;

use alloy_primitives::B256;
use logmill_chain::render::BlockRenderer;
use logmill_chain::{Block, Outcome};
use logmill_io::params;
use logmill_pipeline::derive::Table;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use logmill_pipeline::processors::token::{FT_TRANSFERS, NFT_TRANSFERS};
use logmill_pipeline::processors::tx_contracts::{TX_CONTRACTS, TX_TAGS};
use logmill_pipeline::processors::tx_metrics::TX_METRICS;
use serde_json::{Value as Json, json};

use super::collections::NFT_TRANSFER;
use super::data::{BLOCK, Data, NATIVE_DECIMALS, TIME, TX_INDEX};
use super::endpoint::{Call, Endpoint, LIMIT_MAX, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Direction, List, RowQuery};
use super::param::{ParamKind, required};
use super::record::{Form, Object, Record, address, bytes, column, computed};
use super::tokens::{TRANSFER, complete_transfers};

pub(super) static TRANSACTION: Record = Record {
    name: "Transaction",
    about: "A transaction.",
    base: None,
    fields: &[
        BLOCK,
        TX_INDEX,
        column("hash", Form::Bytes, "hash", "transaction hash"),
        column(
            "type",
            Form::Number,
            "tx_type",
            "EIP-2718 transaction type; 0 for a legacy transaction",
        ),
        column("from", Form::Address, "from_address", "the sender").or_null(),
        column(
            "to",
            Form::Address,
            "to_address",
            "the recipient; null if the transaction creates a contract",
        )
        .or_null(),
        column(
            "contract",
            Form::Address,
            "contract_address",
            "the contract that it created, if any",
        )
        .or_null(),
        column("nonce", Form::Number, "nonce", "nonce of the sender").or_null(),
        column("value", Form::Amount, "value", "transferred value, in wei"),
        computed("decimals", Form::Number, "decimals of `value`"),
        column("selector", Form::Bytes, "selector", "selector of the called function").or_null(),
        column("inputBytes", Form::Number, "input_bytes", "length of the input, in bytes"),
        column(
            "success",
            Form::Flag,
            "status",
            "whether it succeeded; null if the receipt has no status",
        )
        .or_null(),
        TIME,
    ],
};

static METRICS: Record = Record {
    name: "TransactionMetrics",
    about: "Gas and fees of a transaction. The sender paid `fee` + `blobFee` + `l1Fee` in total.",
    base: None,
    fields: &[
        column("logCount", Form::Number, "event_count", "number of logs"),
        column("gasUsed", Form::Number, "gas_used", "gas used").or_null(),
        column("gasLimit", Form::Number, "gas_limit", "gas limit").or_null(),
        column("gasPrice", Form::Amount, "effective_gas_price", "effective gas price, in wei")
            .or_null(),
        column("fee", Form::Amount, "fee", "execution fee, in wei").or_null(),
        column("burnt", Form::Amount, "burnt", "the part of `fee` that was burnt (base fee)")
            .or_null(),
        column("tip", Form::Amount, "tip", "the rest of `fee`").or_null(),
        column("blobFee", Form::Amount, "blob_fee", "fee for blobs, in wei").or_null(),
        column(
            "l1Fee",
            Form::Amount,
            "l1_fee",
            "fee that a rollup charged for its parent chain, in wei",
        )
        .or_null(),
        computed("decimals", Form::Number, "decimals of the fees"),
    ],
};

static TOUCHED_CONTRACT: Record = Record {
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
    about: "A classification of a transaction.",
    base: None,
    fields: &[column("tag", Form::Text, "tag", "the tag")],
};

static DETAIL: Record = Record {
    name: "TransactionDetail",
    about: "All details of a transaction. Lists of transfers and contracts have at most 100 entries.",
    base: Some(&TRANSACTION),
    fields: &[
        computed("blockHash", Form::Bytes, "block hash, if the block is stored").or_null(),
        computed("final", Form::Flag, "whether the block is final"),
        computed(
            "derived",
            Form::Flag,
            "whether it is in the derived tables; if not, the lists are empty",
        ),
        computed("metrics", Form::Object(&METRICS), "gas and fees").or_null(),
        computed("tags", Form::List(&Form::Text), "tags that classify the transaction"),
        computed(
            "contracts",
            Form::List(&Form::Object(&TOUCHED_CONTRACT)),
            "contracts that it touched",
        ),
        computed(
            "tokenTransfers",
            Form::List(&Form::Object(&TRANSFER)),
            "transfers of fungible tokens",
        ),
        computed("nftTransfers", Form::List(&Form::Object(&NFT_TRANSFER)), "transfers of NFTs"),
        computed("truncated", Form::Flag, "whether a list has more entries than it shows"),
    ],
};

static TRANSACTIONS: List = List {
    table: &EVM_TRANSACTIONS,
    record: &TRANSACTION,
    order: &["block_height", "tx_index"],
    direction: Direction::Down,
};

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "transactions",
        path: "/transactions",
        summary: "The transactions, newest first.",
        needs: &[ProcessorName::Evm],
        uses: &[],
        params: &[],
        shape: Shape::Page(&TRANSACTION),
        run: |call| Box::pin(transactions(call)),
    },
    Endpoint {
        id: "transaction",
        path: "/transactions/{hash}",
        summary: "All details of a transaction.",
        needs: &[],
        uses: &[
            ProcessorName::Evm,
            ProcessorName::TxMetrics,
            ProcessorName::TxContracts,
            ProcessorName::Token,
        ],
        params: &[required("hash", ParamKind::Hash, "transaction hash")],
        shape: Shape::One(&DETAIL),
        run: |call| Box::pin(transaction(call)),
    },
];

async fn transactions(call: &Call) -> ApiResult<Reply> {
    let (mut items, next) = call.page_of(&TRANSACTIONS, &RowQuery::default(), |_| true).await?;
    add_native_decimals(&mut items);
    Ok(call.reply(items, next))
}

/// Adds the decimals of the native token, in which the amounts are.
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

/// The row of the catalogue, if it exists.
async fn catalogued(data: &Data, hash: B256) -> ApiResult<Option<Object>> {
    let query =
        RowQuery { filter: "hash = $1".to_owned(), ..RowQuery::key("", params![&hash[..]]) };
    let found = match list::row(data, (&EVM_TRANSACTIONS, &TRANSACTION), query).await {
        Err(error) if error.is_not_derived() => None,
        found => found?,
    };
    Ok(found.map(|mut transaction| {
        transaction.insert("decimals".to_owned(), NATIVE_DECIMALS.into());
        transaction
    }))
}

/// Reads the transaction from its stored block.
async fn stored(call: &Call, hash: B256) -> ApiResult<Object> {
    let view = call.served.chain.view().await?;
    match view.transaction(&hash).await? {
        Some((block, position)) => logmill_io::compute(move || of_block(&block, position)).await,
        None if view.is_complete() => Err(ApiError::not_found("no transaction has this hash")),
        None => Err(ApiError::not_stored(
            "not found in the stored blocks; it may be in history that is not stored here",
        )),
    }
}

fn of_block(block: &Arc<Block>, position: usize) -> ApiResult<Object> {
    let view = BlockRenderer::of(block)?.transaction_view(position)?;
    let hash = block.transactions.get(position).map(|transaction| transaction.hash);
    let receipt = block.receipts.get(position);
    let success = match receipt.map(|receipt| receipt.outcome) {
        Some(Outcome::Status(success)) => Some(success),
        _ => None,
    };
    let created = block.created_contract(position, &view).filter(|_| success != Some(false));
    let selector = view.to.and_then(|_| view.input.get(..4));
    let tx_type = view.tx_type.or(receipt.map(|receipt| receipt.tx_type));
    let transaction = json!({
        "blockNumber": block.at.number,
        "transactionIndex": position,
        "hash": hash,
        "type": tx_type.unwrap_or_default(),
        "from": view.from.as_ref().map(address),
        "to": view.to.as_ref().map(address),
        "contract": created.as_ref().map(address),
        "nonce": view.nonce,
        "value": view.value.to_string(),
        "decimals": NATIVE_DECIMALS,
        "selector": selector.map(bytes),
        "inputBytes": view.input.len(),
        "success": success,
        "timestamp": block.at.timestamp,
    });
    match transaction {
        Json::Object(transaction) => Ok(transaction),
        _ => Err(ApiError::internal("a rendered transaction is not an object")),
    }
}

/// Adds the rows that other tables hold about a transaction.
async fn add_detail(
    data: Option<&Data>,
    (block, index): (u64, u64),
    transaction: &mut Object,
) -> ApiResult<()> {
    let place = || {
        params![i64::try_from(block).unwrap_or(i64::MAX), i64::try_from(index).unwrap_or(i64::MAX)]
    };
    let by_key = || RowQuery::key("block_height = $1 AND tx_index = $2", place());
    // Transfers are keyed by block and log, so all transfers of the block are read.
    let by_filter = || RowQuery {
        filter: "tx_index = $2".to_owned(),
        ..RowQuery::key("block_height = $1", place())
    };
    let metrics = rows_if_derived(data, (&TX_METRICS, &METRICS), by_key(), "tx_index").await?;
    let tags = rows_if_derived(data, (&TX_TAGS, &TAG), by_key(), "tag").await?;
    let contracts =
        rows_if_derived(data, (&TX_CONTRACTS, &TOUCHED_CONTRACT), by_key(), "contract").await?;
    let mut fungible =
        rows_if_derived(data, (&FT_TRANSFERS, &TRANSFER), by_filter(), "event_index").await?;
    let order = "event_index, batch_index";
    let mut unique =
        rows_if_derived(data, (&NFT_TRANSFERS, &NFT_TRANSFER), by_filter(), order).await?;
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

/// The rows of a transaction in one table, up to one more than is shown; `None` if the table is not derived.
async fn rows_if_derived(
    data: Option<&Data>,
    of: (&'static Table, &'static Record),
    query: RowQuery,
    order: &str,
) -> ApiResult<Vec<Object>> {
    let Some(data) = data else {
        return Ok(Vec::new());
    };
    match list::rows(data, of, query, order, LIMIT_MAX + 1).await {
        Err(error) if error.is_not_derived() => Ok(Vec::new()),
        rows => rows,
    }
}
