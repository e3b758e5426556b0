//! Stake: deposits and withdrawals, and their sums by public key and by validator.
//!
//! Guarantees: none beyond those of lists. Leaves to others: which key has which number, as no block tells.

use logmill_io::params;
use logmill_pipeline::processors::staking::{STAKING_EVENTS, STAKING_NODES, STAKING_VALIDATORS};

use super::call::{Call, Reply};
use super::data::{BLOCK, HASH, TIME};
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Ask, Direction, List};
use super::param::{ParamKind, optional, required};
use super::record::{Form, Record, column, computed};
use super::transactions::add_native_decimals;

static EVENT: Record = Record {
    name: "StakingEvent",
    about: "Stake that went in, or came back.",
    base: None,
    fields: &[
        BLOCK,
        column("index", Form::Number, "event_index", "its log's position, or its own"),
        column("transactionIndex", Form::Number, "tx_index", "null for a withdrawal").or_null(),
        HASH,
        column("type", Form::Text, "event_type", "`DEPOSIT` or `WITHDRAWAL`"),
        column("publicKey", Form::Bytes, "node_id", "the validator's; null for a withdrawal")
            .or_null(),
        column("validator", Form::Number, "validator_index", "its number; null for a deposit")
            .or_null(),
        column("address", Form::Address, "address", "who deposited, or who got it").or_null(),
        column("amount", Form::Amount, "amount", "how much, in wei"),
        computed("decimals", Form::Number, "of `amount`"),
        column(
            "withdrawalCredentials",
            Form::Bytes,
            "withdrawal_credentials",
            "to whom it may be withdrawn; null for a withdrawal",
        )
        .or_null(),
        column("sequence", Form::Number, "sequence", "its number among all of its type").or_null(),
        TIME,
    ],
};

static NODE: Record = Record {
    name: "StakingNode",
    about: "What was deposited for a public key.",
    base: None,
    fields: &[
        column("publicKey", Form::Bytes, "node_id", "it"),
        column(
            "withdrawalCredentials",
            Form::Bytes,
            "withdrawal_credentials",
            "to whom it may be withdrawn, as of the first deposit",
        )
        .or_null(),
        column("deposited", Form::Amount, "deposited", "how much, in wei"),
        computed("decimals", Form::Number, "of `deposited`"),
        column("firstBlock", Form::Number, "first_seen_height", "of the first deposit"),
        column("depositCount", Form::Number, "deposit_count", "in how many deposits"),
    ],
};

static VALIDATOR: Record = Record {
    name: "Validator",
    about: "What was withdrawn of a validator.",
    base: None,
    fields: &[
        column("validator", Form::Number, "validator_index", "its number"),
        column("withdrawn", Form::Amount, "withdrawn", "how much, in wei"),
        computed("decimals", Form::Number, "of `withdrawn`"),
        column("address", Form::Address, "address", "who got the last of it").or_null(),
        column("lastBlock", Form::Number, "last_height", "when that was"),
        column("withdrawalCount", Form::Number, "withdrawal_count", "in how many withdrawals"),
    ],
};

static EVENTS: List = List {
    table: &STAKING_EVENTS,
    record: &EVENT,
    order: &["block_height", "source", "event_index"],
    direction: Direction::Down,
};

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "staking_events",
        path: "/staking/events",
        summary: "Deposits and withdrawals of stake, newest first.",
        needs: &["staking_worker"],
        uses: &["evm_worker"],
        params: &[optional("address", ParamKind::Address, "who deposited, or who got it")],
        shape: Shape::Page(&EVENT),
        run: |call| Box::pin(events(call)),
    },
    Endpoint {
        id: "staking_validator",
        path: "/staking/validators/{index}",
        summary: "What was withdrawn of a validator.",
        needs: &["staking_worker"],
        uses: &[],
        params: &[required("index", ParamKind::Number, "the validator's number")],
        shape: Shape::One(&VALIDATOR),
        run: |call| Box::pin(validator(call)),
    },
    Endpoint {
        id: "staking_node",
        path: "/staking/nodes/{pubkey}",
        summary: "What was deposited for a public key.",
        needs: &["staking_worker"],
        uses: &[],
        params: &[required("pubkey", ParamKind::PublicKey, "the validator's public key")],
        shape: Shape::One(&NODE),
        run: |call| Box::pin(node(call)),
    },
];

async fn events(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let mut ask = Ask::default();
    if let Some(address) = call.opt_address("address") {
        let Some(id) = data.id(address).await? else {
            call.position(&EVENTS.kinds())?;
            return Ok(call.reply(Vec::new(), None));
        };
        ask = Ask { filter: "address = $1".to_owned(), ..Ask::key("", params![id]) };
    }
    let (mut items, next) = call.stretch(&EVENTS, &ask, |_| true).await?;
    add_native_decimals(&mut items);
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}

async fn validator(call: &Call) -> ApiResult<Reply> {
    let index = i64::try_from(call.number("index")?).unwrap_or(i64::MAX);
    let ask = Ask::key("validator_index = $1", params![index]);
    let found = list::row(call.data()?, (&STAKING_VALIDATORS, &VALIDATOR), ask).await?;
    let unknown = || ApiError::not_found("no covered block has a withdrawal of such a validator");
    let mut found = [found.ok_or_else(unknown)?];
    add_native_decimals(&mut found);
    let [validator] = found;
    Ok(Reply::One(validator))
}

async fn node(call: &Call) -> ApiResult<Reply> {
    let ask = Ask::key("node_id = $1", params![call.bytes("pubkey")?]);
    let found = list::row(call.data()?, (&STAKING_NODES, &NODE), ask).await?;
    let unknown = || ApiError::not_found("no covered block has a deposit for such a key");
    let mut found = [found.ok_or_else(unknown)?];
    add_native_decimals(&mut found);
    let [node] = found;
    Ok(Reply::One(node))
}
