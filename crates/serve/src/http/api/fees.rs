//! Fees collected for integrators on one chain.
//!
//! Guarantees: a page reads a bounded number of rows, whatever the filters. Leaves to others: sums.

use logmill_io::params;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::fees::FEE_EVENTS;

use super::data::{BLOCK, DECIMALS, LOG_INDEX, SYMBOL, TIME, TX_INDEX};
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{Direction, List, RowQuery};
use super::param::{ParamKind, optional};
use super::position::{OrderValue, Position};
use super::record::{Form, Object, Record, address_in, column};

static FEE: Record = Record {
    name: "Fee",
    about: "A collected fee.",
    base: None,
    fields: &[
        BLOCK,
        LOG_INDEX,
        TX_INDEX,
        column("transactionHash", Form::Bytes, "tx_hash", "transaction hash"),
        TIME,
        column("contract", Form::Address, "contract", "the fee collector"),
        column("token", Form::Address, "token", "the token; the zero address for ether"),
        column("integrator", Form::Address, "integrator", "the integrator"),
        column("integratorFee", Form::Amount, "integrator_fee", "the integrator's share"),
        column("lifiFee", Form::Amount, "lifi_fee", "LI.FI's share"),
        DECIMALS,
        SYMBOL,
    ],
};

static FEES: List = List {
    table: &FEE_EVENTS,
    record: &FEE,
    order: &["block_height", "event_index"],
    direction: Direction::Down,
};

pub(super) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    id: "fees",
    path: "/fees",
    summary: "The collected fees, newest first.",
    needs: &[ProcessorName::Fees],
    uses: &[],
    params: &[
        optional(
            "integrator",
            ParamKind::Address,
            "the integrator's address; in `/fees`, outside `/api`, a parameter of this name is a chain id",
        ),
        optional("token", ParamKind::Address, "the token; the zero address for ether"),
        optional("fromBlock", ParamKind::Number, "the first block"),
        optional("toBlock", ParamKind::Number, "the last block"),
    ],
    shape: Shape::Page(&FEE),
    run: |call| Box::pin(fees(call)),
}];

async fn fees(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let height =
        |name: &str| call.opt_number(name).map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let (from, to) = (height("fromBlock").unwrap_or(0), height("toBlock").unwrap_or(i64::MAX));
    if from > to {
        return Err(ApiError::parameter("toBlock", "must not be below fromBlock"));
    }
    let mut query = RowQuery::key("block_height >= $1", params![from]);
    // The last block is the start position of the first page: with two upper bounds SQLite may search by the wrong one.
    let end = Position(vec![OrderValue::Int(to), OrderValue::Int(i64::MAX)]);
    let behind =
        call.position(&FEES.kinds())?.map_or_else(|| end.clone(), |at| at.min(end.clone()));
    if let Some(integrator) = call.opt_address("integrator") {
        let Some(id) = data.id(integrator).await? else {
            return Ok(call.reply(Vec::new(), None));
        };
        query.params.push(id.into());
        query.filter = "integrator = $2".to_owned();
    }
    // No index contains the token.
    let token = call.opt_address("token");
    let is_of_token =
        |fee: &Object| token.is_none_or(|token| address_in(fee, "token") == Some(token));
    let found = FEES.scan(data, &query, behind, call.limit() + 1, is_of_token).await?;
    let (mut items, next) = found.page(call.limit());
    data.add_decimals(&mut items, "token").await?;
    Ok(call.reply(items, next))
}
