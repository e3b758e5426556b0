//! Accounts: what is known about an address, its transactions, and the tokens it sent and received.
//!
//! Transfers are found through the account's transactions: first those in which it sent or received a token, then the
//! transfers of their blocks.
//!
//! Guarantees: a page reads a bounded number of the account's transactions and of blocks. Leaves to others: holdings
//! ([`super::holdings`], [`super::nfts`]).

use std::collections::BTreeSet;

use logmill_io::{Value, params};
use logmill_pipeline::derive::{Kind, Select};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::accounts::{ACCOUNTS, is_contract};
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use logmill_pipeline::processors::meta::{ACCOUNT_STATS, ADDRESS_TRANSACTIONS, role_names};
use logmill_pipeline::processors::token::FT_TRANSFERS;
use serde_json::{Value as Json, json};

use super::data::{BLOCK, Data, NATIVE_DECIMALS, Source, TX_INDEX, padded, places};
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Direction, Item, List, RowQuery, ScanPage};
use super::param::{Param, ParamKind, required};
use super::position::{OrderValue, Position};
use super::record::{Form, Object, Record, column, computed};
use super::tokens::{TRANSFER, complete_transfers};
use super::transactions::TRANSACTION;

pub(super) const ACCOUNT_PARAM: Param = required("address", ParamKind::Address, "the account");

static ACCOUNT: Record = Record {
    name: "Account",
    about: "An address that takes part in transactions or transfers.",
    base: None,
    fields: &[
        column("address", Form::Address, "address", "the address"),
        column(
            "firstBlock",
            Form::Number,
            "first_seen_height",
            "the first block in which it takes part",
        ),
        column(
            "lastBlock",
            Form::Number,
            "last_seen_height",
            "the last block in which it takes part",
        ),
        column("hasCode", Form::Flag, "is_contract", "whether it is known to have had code"),
        column("hasKey", Form::Flag, "is_signer", "whether it is known to have signed"),
        computed("isContract", Form::Flag, "whether it is known to be a contract"),
        computed(
            "stats",
            Form::Object(&STATS),
            "transaction counts; null if no transaction is known",
        )
        .or_null(),
    ],
};

static STATS: Record = Record {
    name: "AccountStats",
    about: "Transaction counts of an account.",
    base: None,
    fields: &[
        column(
            "transactionCount",
            Form::Number,
            "tx_count",
            "number of transactions in which it has any role",
        ),
        column("sentCount", Form::Number, "sent_count", "number of transactions that it sent"),
        column(
            "gasUsed",
            Form::Amount,
            "total_gas_used",
            "gas used by the transactions that it sent",
        ),
        column("lastBlock", Form::Number, "last_updated_block", "block of the last transaction"),
    ],
};

static ROLES: Record = Record {
    name: "AccountRoles",
    about: "A transaction of an account, by block and index.",
    base: None,
    fields: &[
        BLOCK,
        TX_INDEX,
        column(
            "roles",
            Form::Words(role_names),
            "roles",
            "roles of the account in the transaction",
        ),
    ],
};

static ACCOUNT_TRANSACTION: Record = Record {
    name: "AccountTransaction",
    about: "A transaction in which an account has a role.",
    base: Some(&ROLES),
    fields: &[computed(
        "transaction",
        Form::Object(&TRANSACTION),
        "the transaction; null if `evm_worker` has not derived its block",
    )
    .or_null()],
};

static TRANSACTIONS: List = List {
    table: &ADDRESS_TRANSACTIONS,
    record: &ROLES,
    order: &["block_height", "tx_index"],
    direction: Direction::Down,
};

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "account",
        path: "/accounts/{address}",
        summary: "An account.",
        needs: &[ProcessorName::Accounts],
        uses: &[ProcessorName::Meta],
        params: &[ACCOUNT_PARAM],
        shape: Shape::One(&ACCOUNT),
        run: |call| Box::pin(account(call)),
    },
    Endpoint {
        id: "account_transactions",
        path: "/accounts/{address}/transactions",
        summary: "The transactions in which an account has a role, newest first.",
        needs: &[ProcessorName::Meta],
        uses: &[ProcessorName::Evm],
        params: &[ACCOUNT_PARAM],
        shape: Shape::Page(&ACCOUNT_TRANSACTION),
        run: |call| Box::pin(transactions(call)),
    },
    Endpoint {
        id: "account_transfers",
        path: "/accounts/{address}/transfers",
        summary: "The transfers of fungible tokens from and to an account, newest first.",
        needs: &[ProcessorName::Meta, ProcessorName::Token],
        uses: &[ProcessorName::Evm],
        params: &[ACCOUNT_PARAM],
        shape: Shape::Page(&TRANSFER),
        run: |call| Box::pin(transfers(call)),
    },
];

async fn account(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let unknown = || ApiError::not_found("no covered block mentions this account");
    let id = data.id(call.address("address")?).await?.ok_or_else(unknown)?;
    let query = || RowQuery::key("address = $1", params![id]);
    let found = list::row(data, (&ACCOUNTS, &ACCOUNT), query()).await?;
    let mut account = found.ok_or_else(unknown)?;
    let mark = |name: &str| account[name] == Json::Bool(true);
    let is_contract = is_contract(mark("hasCode"), mark("hasKey"));
    account.insert("isContract".to_owned(), is_contract.into());
    let stats = match list::row(data, (&ACCOUNT_STATS, &STATS), query()).await {
        Err(error) if error.is_not_derived() => None,
        stats => stats?,
    };
    account.insert("stats".to_owned(), json!(stats));
    Ok(Reply::One(account))
}

async fn transactions(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(id) = data.id(call.address("address")?).await? else {
        call.position(&TRANSACTIONS.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let query = RowQuery::key("address = $1", params![id]);
    let (mut items, next) = call.page_of(&TRANSACTIONS, &query, |_| true).await?;
    add_transactions(data, &mut items).await?;
    Ok(call.reply(items, next))
}

/// Adds to each object the transaction at its block number and index.
async fn add_transactions(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    let Some((params, values)) = data.places_of(items).await? else {
        items.iter_mut().for_each(|item| drop(item.insert("transaction".to_owned(), Json::Null)));
        return Ok(());
    };
    let query = RowQuery::key(&format!("(block_height, tx_index) IN (VALUES {values})"), params);
    let of = (&EVM_TRANSACTIONS, &TRANSACTION);
    let mut found = list::rows(data, of, query, "block_height, tx_index", items.len()).await?;
    for transaction in &mut found {
        transaction.insert("decimals".to_owned(), NATIVE_DECIMALS.into());
    }
    for item in items {
        let same = |object: &&Object| {
            ["blockNumber", "transactionIndex"].iter().all(|name| object[*name] == item[*name])
        };
        let transaction = found.iter().find(same).cloned();
        item.insert("transaction".to_owned(), json!(transaction));
    }
    Ok(())
}

/// Column kinds of a position among the transfers of an account: block, transaction, log.
const TRANSFER_KINDS: [Kind; 3] = [Kind::Int, Kind::Int, Kind::Int];

async fn transfers(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let start = || Position(vec![OrderValue::Int(i64::MAX); TRANSFER_KINDS.len()]);
    let from = call.position(&TRANSFER_KINDS)?.unwrap_or_else(start);
    let Some(id) = data.id(call.address("address")?).await? else {
        return Ok(call.reply(Vec::new(), None));
    };
    let moving = moving(data, id, &from, call.limit() + 1).await?;
    let found = match moving.items.is_empty() {
        true => ScanPage { items: Vec::new(), end: moving.end.map(behind) },
        false => transfers_in(data, id, &from, moving, call.limit() + 1).await?,
    };
    let (mut items, next) = found.page(call.limit());
    complete_transfers(data, &mut items).await?;
    Ok(call.reply(items, next))
}

/// The position after all transfers of a transaction.
fn behind(transaction: Position) -> Position {
    let mut places = transaction.0;
    places.push(OrderValue::Int(i64::MIN));
    Position(places)
}

/// The account's transactions, starting with that of a position, in which it sent or received a token.
async fn moving(data: &Data, id: i64, from: &Position, want: usize) -> ApiResult<ScanPage> {
    let moves = |object: &Object| {
        let roles = object.get("roles").and_then(Json::as_array);
        roles.is_some_and(|roles| {
            roles.iter().any(|role| role == "FT_SENDER" || role == "FT_RECEIVER")
        })
    };
    // Includes the transaction of the position itself, because some of its transfers may be left.
    let from = match &from.0[..] {
        [block, OrderValue::Int(transaction), _] => {
            Position(vec![block.clone(), OrderValue::Int(transaction.saturating_add(1))])
        }
        _ => TRANSACTIONS.start(),
    };
    let query = RowQuery::key("address = $1", params![id]);
    TRANSACTIONS.scan(data, &query, from, want, moves).await
}

/// The account's transfers in these transactions, after a position.
async fn transfers_in(
    data: &Data,
    id: i64,
    from: &Position,
    mut moving: ScanPage,
    most: usize,
) -> ApiResult<ScanPage> {
    // Transactions beyond the requested number are left for the next page.
    if moving.items.len() > most {
        moving.items.truncate(most);
        moving.end = moving.items.last().map(|item| item.position.clone());
    }
    let blocks: BTreeSet<i64> =
        moving.items.iter().filter_map(|item| item.object["blockNumber"].as_i64()).collect();
    let Some(last) = moving.items.last().map(|item| item.position.clone()) else {
        return Ok(moving);
    };
    let mut params = params![id];
    params.extend(from.0.iter().chain(&last.0).map(OrderValue::value));
    let blocks = padded(blocks.into_iter().map(Value::Int).collect());
    let key = format!("block_height IN ({})", places(params.len() + 1, blocks.len()));
    params.extend(blocks);
    let filter = "(from_address = $1 OR to_address = $1)
        AND (block_height, tx_index, event_index) < ($2, $3, $4)
        AND (block_height, tx_index) >= ($5, $6)";
    let order = "block_height DESC, event_index DESC";
    let select = Select { key: &key, filter, order, limit: Some(most) };
    let columns = TRANSFER.select();
    let text = |source: Source<'_>| {
        let rows = source(&FT_TRANSFERS, &select);
        format!("SELECT {columns} FROM {rows} AS s ORDER BY {}", list::of_rows(order))
    };
    let answer = data.query(text, params).await?;
    let item = |row: &logmill_io::Row| {
        let object = TRANSFER.read(row)?;
        let place = |name: &str| OrderValue::Int(object[name].as_i64().unwrap_or_default());
        let position =
            Position(["blockNumber", "transactionIndex", "logIndex"].map(place).to_vec());
        Ok(Item { object, position })
    };
    let items = answer.rows.iter().map(item).collect::<ApiResult<Vec<_>>>()?;
    // All of these transactions were read completely, unless there are more transfers than requested.
    let end = match items.len() < most {
        true => moving.end.map(behind),
        false => items.last().map(|item| item.position.clone()),
    };
    Ok(ScanPage { items, end })
}
