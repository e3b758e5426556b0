//! Fees that were collected for integrators, on one chain.
//!
//! Guarantees: a page looks at a bounded number of rows, whatever the filters. Leaves to others: sums.

use logmill_io::params;
use logmill_pipeline::processors::fees::FEE_EVENTS;

use super::call::{Call, Reply};
use super::data::{BLOCK, DECIMALS, LOG_INDEX, SYMBOL, TIME, TX_INDEX};
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{Ask, Direction, List};
use super::param::{ParamKind, optional};
use super::position::{Place, Position};
use super::record::{Form, Object, Record, address_in, column};

static FEE: Record = Record {
    name: "Fee",
    about: "A fee that was collected.",
    base: None,
    fields: &[
        BLOCK,
        LOG_INDEX,
        TX_INDEX,
        column("transactionHash", Form::Bytes, "tx_hash", "the hash of its transaction"),
        TIME,
        column("contract", Form::Address, "contract", "the fee collector"),
        column("token", Form::Address, "token", "of which token; the zero address for ether"),
        column("integrator", Form::Address, "integrator", "for whom"),
        column("integratorFee", Form::Amount, "integrator_fee", "what the integrator gets"),
        column("lifiFee", Form::Amount, "lifi_fee", "what LI.FI gets"),
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

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    id: "fees",
    path: "/fees",
    summary: "The fees that were collected, newest first.",
    needs: &["fees_worker"],
    uses: &[],
    params: &[
        optional("integrator", ParamKind::Address, "for whom"),
        optional("token", ParamKind::Address, "of which token; the zero address for ether"),
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
        return Err(ApiError::parameter("toBlock", "it is below fromBlock"));
    }
    let mut ask = Ask::key("block_height >= $1", params![from]);
    // The last block is where the first page begins: with two bounds from above, SQLite may search by the wrong one.
    let end = Position(vec![Place::Int(to), Place::Int(i64::MAX)]);
    let behind =
        call.position(&FEES.kinds())?.map_or_else(|| end.clone(), |at| at.min(end.clone()));
    if let Some(integrator) = call.opt_address("integrator") {
        let Some(id) = data.id(integrator).await? else {
            return Ok(call.reply(Vec::new(), None));
        };
        ask.params.push(id.into());
        ask.filter = "integrator = $2".to_owned();
    }
    // No index knows the token.
    let token = call.opt_address("token");
    let is_of_token =
        |fee: &Object| token.is_none_or(|token| address_in(fee, "token") == Some(token));
    let found = FEES.stretch(data, &ask, behind, call.limit() + 1, is_of_token).await?;
    let (mut items, next) = found.page(call.limit());
    data.add_decimals(&mut items, "token").await?;
    Ok(call.reply(items, next))
}
