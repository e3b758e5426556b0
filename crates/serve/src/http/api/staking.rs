//! Stake: deposits and withdrawals, and their sums by public key and by validator.
//!
//! Guarantees: none beyond those of lists. Leaves to others: which key has which validator number, which no block
//! contains.

use logmill_io::params;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::staking::{STAKING_EVENTS, STAKING_NODES, STAKING_VALIDATORS};

use super::data::{BLOCK, HASH, TIME};
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Direction, List, RowQuery};
use super::param::{ParamKind, optional, required};
use super::record::{Form, Record, column, computed};
use super::transactions::add_native_decimals;

static EVENT: Record = Record {
    name: "StakingEvent",
    about: "A deposit or a withdrawal of stake.",
    base: None,
    fields: &[
        BLOCK,
        column(
            "index",
            Form::Number,
            "event_index",
            "index of the log in the block, or of the withdrawal",
        ),
        column(
            "transactionIndex",
            Form::Number,
            "tx_index",
            "index of the transaction in the block; null for a withdrawal",
        )
        .or_null(),
        HASH,
        column("type", Form::Text, "event_type", "`DEPOSIT` or `WITHDRAWAL`"),
        column(
            "publicKey",
            Form::Bytes,
            "node_id",
            "public key of the validator; null for a withdrawal",
        )
        .or_null(),
        column(
            "validator",
            Form::Number,
            "validator_index",
            "index of the validator; null for a deposit",
        )
        .or_null(),
        column(
            "address",
            Form::Address,
            "address",
            "the depositor, or the recipient of the withdrawal",
        )
        .or_null(),
        column("amount", Form::Amount, "amount", "amount in wei"),
        computed("decimals", Form::Number, "decimals of `amount`"),
        column(
            "withdrawalCredentials",
            Form::Bytes,
            "withdrawal_credentials",
            "withdrawal credentials; null for a withdrawal",
        )
        .or_null(),
        column("sequence", Form::Number, "sequence", "number of the event among all of its type")
            .or_null(),
        TIME,
    ],
};

static NODE: Record = Record {
    name: "StakingNode",
    about: "The deposits for a public key.",
    base: None,
    fields: &[
        column("publicKey", Form::Bytes, "node_id", "the public key"),
        column(
            "withdrawalCredentials",
            Form::Bytes,
            "withdrawal_credentials",
            "withdrawal credentials of the first deposit",
        )
        .or_null(),
        column("deposited", Form::Amount, "deposited", "amount in wei"),
        computed("decimals", Form::Number, "decimals of `deposited`"),
        column("firstBlock", Form::Number, "first_seen_height", "block of the first deposit"),
        column("depositCount", Form::Number, "deposit_count", "number of deposits"),
    ],
};

static VALIDATOR: Record = Record {
    name: "Validator",
    about: "The withdrawals of a validator.",
    base: None,
    fields: &[
        column("validator", Form::Number, "validator_index", "index of the validator"),
        column("withdrawn", Form::Amount, "withdrawn", "amount in wei"),
        computed("decimals", Form::Number, "decimals of `withdrawn`"),
        column("address", Form::Address, "address", "recipient of the last withdrawal").or_null(),
        column("lastBlock", Form::Number, "last_height", "block of the last withdrawal"),
        column("withdrawalCount", Form::Number, "withdrawal_count", "number of withdrawals"),
    ],
};

static EVENTS: List = List {
    table: &STAKING_EVENTS,
    record: &EVENT,
    order: &["block_height", "source", "event_index"],
    direction: Direction::Down,
};

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "staking_events",
        path: "/staking/events",
        summary: "Deposits and withdrawals of stake, newest first.",
        needs: &[ProcessorName::Staking],
        uses: &[ProcessorName::Evm],
        params: &[optional(
            "address",
            ParamKind::Address,
            "the depositor, or the recipient of the withdrawal",
        )],
        shape: Shape::Page(&EVENT),
        run: |call| Box::pin(events(call)),
    },
    Endpoint {
        id: "staking_validator",
        path: "/staking/validators/{index}",
        summary: "The withdrawals of a validator.",
        needs: &[ProcessorName::Staking],
        uses: &[],
        params: &[required("index", ParamKind::Number, "index of the validator")],
        shape: Shape::One(&VALIDATOR),
        run: |call| Box::pin(validator(call)),
    },
    Endpoint {
        id: "staking_node",
        path: "/staking/nodes/{pubkey}",
        summary: "The deposits for a public key.",
        needs: &[ProcessorName::Staking],
        uses: &[],
        params: &[required("pubkey", ParamKind::PublicKey, "public key of the validator")],
        shape: Shape::One(&NODE),
        run: |call| Box::pin(node(call)),
    },
];

async fn events(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let mut query = RowQuery::default();
    if let Some(address) = call.opt_address("address") {
        let Some(id) = data.id(address).await? else {
            call.position(&EVENTS.kinds())?;
            return Ok(call.reply(Vec::new(), None));
        };
        query = RowQuery { filter: "address = $1".to_owned(), ..RowQuery::key("", params![id]) };
    }
    let (mut items, next) = call.page_of(&EVENTS, &query, |_| true).await?;
    add_native_decimals(&mut items);
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}

async fn validator(call: &Call) -> ApiResult<Reply> {
    let index = i64::try_from(call.number("index")?).unwrap_or(i64::MAX);
    let query = RowQuery::key("validator_index = $1", params![index]);
    let found = list::row(call.data()?, (&STAKING_VALIDATORS, &VALIDATOR), query).await?;
    let unknown = || ApiError::not_found("no covered block has a withdrawal of this validator");
    let mut found = [found.ok_or_else(unknown)?];
    add_native_decimals(&mut found);
    let [validator] = found;
    Ok(Reply::One(validator))
}

async fn node(call: &Call) -> ApiResult<Reply> {
    let query = RowQuery::key("node_id = $1", params![call.bytes("pubkey")?]);
    let found = list::row(call.data()?, (&STAKING_NODES, &NODE), query).await?;
    let unknown = || ApiError::not_found("no covered block has a deposit for this key");
    let mut found = [found.ok_or_else(unknown)?];
    add_native_decimals(&mut found);
    let [node] = found;
    Ok(Reply::One(node))
}
