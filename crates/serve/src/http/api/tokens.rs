//! Fungible tokens, their holders and their transfers.
//!
//! Guarantees: a holding is called a balance only if the covered blocks include the token's whole life. Leaves to
//! others: the holdings of an account ([`super::holdings`]).

use std::collections::BTreeSet;

use alloy_primitives::Address;
use logmill_io::{Amount, params};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::ft_holdings::FT_HOLDINGS;
use logmill_pipeline::processors::token::{FT_TOKENS, FT_TRANSFERS};
use serde_json::{Value as Json, json};

use super::data::{BLOCK, DECIMALS, Data, HASH, LOG_INDEX, SYMBOL, TIME, TX_INDEX};
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Direction, List, RowQuery};
use super::param::{Param, ParamKind, required};
use super::record::{Form, Object, Record, address_in, column, computed};

pub(super) const TRANSFER_KINDS: Form = Form::Word(&[(0, "transfer"), (1, "mint"), (2, "burn")]);

pub(super) static TRANSFER: Record = Record {
    name: "TokenTransfer",
    about: "A transfer of a fungible token.",
    base: None,
    fields: &[
        BLOCK,
        LOG_INDEX,
        TX_INDEX,
        HASH,
        column("token", Form::Address, "token_contract_address", "the token"),
        column("from", Form::Address, "from_address", "the sender; the zero address for a mint"),
        column("to", Form::Address, "to_address", "the recipient; the zero address for a burn"),
        column("amount", Form::Amount, "amount", "amount in the token's smallest unit"),
        DECIMALS,
        SYMBOL,
        column("kind", TRANSFER_KINDS, "kind", "kind of transfer"),
        TIME,
    ],
};

static TOKEN: Record = Record {
    name: "Token",
    about: "A fungible token with at least one transfer.",
    base: None,
    fields: &[
        column("address", Form::Address, "contract_address", "its contract"),
        computed("name", Form::Text, "name that the contract reports").or_null(),
        SYMBOL,
        DECIMALS,
        column("firstBlock", Form::Number, "first_seen_height", "block of the first transfer"),
        column("lastBlock", Form::Number, "last_seen_height", "block of the last transfer"),
        column("transferCount", Form::Number, "transfer_count", "number of transfers"),
        column("minted", Form::Amount, "minted", "amount minted"),
        column("burned", Form::Amount, "burned", "amount burned"),
    ],
};

static TOKEN_DETAIL: Record = Record {
    name: "TokenDetail",
    about: "A fungible token with at least one transfer.",
    base: Some(&TOKEN),
    fields: &[
        computed("createdBlock", Form::Number, "block in which the contract was created, if known")
            .or_null(),
        computed(
            "complete",
            Form::Flag,
            "whether the covered blocks include the token's whole life",
        ),
    ],
};

static HOLDER: Record = Record {
    name: "Holder",
    about: "A holder of a token.",
    base: None,
    fields: &[
        column("address", Form::Address, "address", "the holder"),
        computed("balance", Form::Amount, "the balance; null if `complete` is false").or_null(),
        column("delta", Form::Amount, "balance", "sum of all transfers in the covered blocks"),
        DECIMALS,
        SYMBOL,
        column("transferCount", Form::Number, "transfer_count", "number of transfers"),
        column("lastBlock", Form::Number, "last_height", "block of the last one"),
        computed(
            "complete",
            Form::Flag,
            "whether the covered blocks include the token's whole life",
        ),
    ],
};

static TOKENS: List = List {
    table: &FT_TOKENS,
    record: &TOKEN,
    order: &["contract_address"],
    direction: Direction::Down,
};

static HOLDERS: List = List {
    table: &FT_HOLDINGS,
    record: &HOLDER,
    order: &["balance", "address"],
    direction: Direction::Down,
};

static TRANSFERS: List = List {
    table: &FT_TRANSFERS,
    record: &TRANSFER,
    order: &["block_height", "event_index"],
    direction: Direction::Down,
};

const TOKEN_PARAM: Param = required("address", ParamKind::Address, "the token's contract");

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "tokens",
        path: "/tokens",
        summary: "The fungible tokens, most recently seen first.",
        needs: &[ProcessorName::Token],
        uses: &[],
        params: &[],
        shape: Shape::Page(&TOKEN),
        run: |call| Box::pin(tokens(call)),
    },
    Endpoint {
        id: "token",
        path: "/tokens/{address}",
        summary: "A fungible token.",
        needs: &[ProcessorName::Token],
        uses: &[ProcessorName::Meta],
        params: &[TOKEN_PARAM],
        shape: Shape::One(&TOKEN_DETAIL),
        run: |call| Box::pin(token(call)),
    },
    Endpoint {
        id: "token_holders",
        path: "/tokens/{address}/holders",
        summary: "The holders of a token, largest balance first.",
        needs: &[ProcessorName::FtHoldings],
        uses: &[ProcessorName::Meta],
        params: &[TOKEN_PARAM],
        shape: Shape::Page(&HOLDER),
        run: |call| Box::pin(holders(call)),
    },
    Endpoint {
        id: "token_transfers",
        path: "/tokens/{address}/transfers",
        summary: "The transfers of a token, newest first.",
        needs: &[ProcessorName::Token],
        uses: &[ProcessorName::Evm],
        params: &[TOKEN_PARAM],
        shape: Shape::Page(&TRANSFER),
        run: |call| Box::pin(transfers(call)),
    },
];

async fn tokens(call: &Call) -> ApiResult<Reply> {
    let (mut items, next) = call.page_of(&TOKENS, &RowQuery::default(), |_| true).await?;
    add_metadata(call.data()?, &mut items).await?;
    Ok(call.reply(items, next))
}

/// Adds the metadata of the contract in `address` to each object.
pub(super) async fn add_metadata(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    let contracts = items.iter().filter_map(|item| address_in(item, "address")).collect();
    let metadata = data.metadata(&contracts).await?;
    for item in items {
        let known = address_in(item, "address").and_then(|address| metadata.get(&address));
        let known = known.cloned().unwrap_or_default();
        item.insert("name".to_owned(), json!(known.name));
        item.insert("symbol".to_owned(), json!(known.symbol));
        item.insert("decimals".to_owned(), json!(known.decimals));
    }
    Ok(())
}

async fn token(call: &Call) -> ApiResult<Reply> {
    let (data, address) = (call.data()?, call.address("address")?);
    let unknown = || ApiError::not_found("no covered block has a transfer of this token");
    let id = data.id(address).await?.ok_or_else(unknown)?;
    let query = RowQuery::key("contract_address = $1", params![id]);
    let mut found = [list::row(data, (&FT_TOKENS, &TOKEN), query).await?.ok_or_else(unknown)?];
    add_metadata(data, &mut found).await?;
    let [mut token] = found;
    add_creation(data, ProcessorName::Token, address, &mut token).await?;
    Ok(Reply::One(token))
}

/// Adds the creation block of a contract, and whether its whole life is covered.
pub(super) async fn add_creation(
    data: &Data,
    processor: ProcessorName,
    contract: Address,
    object: &mut Object,
) -> ApiResult<()> {
    let created = data.created(&BTreeSet::from([contract])).await?.remove(&contract);
    let complete = data.is_complete(processor, created)?;
    object.insert("createdBlock".to_owned(), json!(created));
    object.insert("complete".to_owned(), complete.into());
    Ok(())
}

async fn holders(call: &Call) -> ApiResult<Reply> {
    let (data, token) = (call.data()?, call.address("address")?);
    let Some(id) = data.id(token).await? else {
        call.position(&HOLDERS.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let query = RowQuery {
        key: "contract_address = $1".to_owned(),
        filter: "balance > $2".to_owned(),
        params: params![id, Amount::ZERO],
    };
    let (mut items, next) = call.page_of(&HOLDERS, &query, |_| true).await?;
    let complete = data.complete(ProcessorName::FtHoldings, BTreeSet::from([token])).await?;
    data.add_decimals_of(&mut items, token).await?;
    items.iter_mut().for_each(|item| add_balance(item, complete.contains(&token)));
    Ok(call.reply(items, next))
}

/// Adds `balance`: the `delta` if the token is complete, else null.
pub(super) fn add_balance(object: &mut Object, complete: bool) {
    let delta = object.get("delta").cloned().unwrap_or_default();
    let balance = if complete { delta } else { Json::Null };
    object.insert("balance".to_owned(), balance);
    object.insert("complete".to_owned(), complete.into());
}

async fn transfers(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(id) = data.id(call.address("address")?).await? else {
        call.position(&TRANSFERS.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let query = RowQuery {
        filter: "token_contract_address = $1".to_owned(),
        ..RowQuery::key("", params![id])
    };
    let (mut items, next) = call.page_of(&TRANSFERS, &query, |_| true).await?;
    complete_transfers(data, &mut items).await?;
    Ok(call.reply(items, next))
}

/// Adds hashes, decimals and symbols.
pub(super) async fn complete_transfers(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    data.add_hashes(items).await?;
    data.add_decimals(items, "token").await
}
