//! An account's holdings of fungible tokens, and their history by day.
//!
//! Guarantees: a sum of transfers is called a balance only if the covered blocks include the token's whole life. A
//! balance below zero is flagged: such a token changes balances without logging transfers. Leaves to others: checking
//! balances against the contract.

use std::collections::BTreeSet;

use logmill_io::{Amount, Row, params};
use logmill_pipeline::derive::{Kind, Select};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::daily_balance::DAILY_BALANCES;
use logmill_pipeline::processors::ft_holdings::FT_HOLDINGS;
use serde_json::{Value as Json, json};

use super::accounts::ACCOUNT_PARAM;
use super::data::{DECIMALS, SYMBOL, Source};
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{Direction, List, RowQuery};
use super::param::{ParamKind, required};
use super::position::{OrderValue, Position};
use super::record::{Form, Object, Record, address_in, column, computed};
use super::tokens::add_balance;

static HOLDING: Record = Record {
    name: "Holding",
    about: "An account's holding of a token.",
    base: None,
    fields: &[
        column("token", Form::Address, "contract_address", "the token"),
        computed("balance", Form::Amount, "the balance; null if `complete` is false").or_null(),
        column("delta", Form::Amount, "balance", "sum of all transfers in the covered blocks"),
        DECIMALS,
        SYMBOL,
        column("transferCount", Form::Number, "transfer_count", "number of transfers"),
        column("lastBlock", Form::Number, "last_height", "block of the last one"),
        computed("complete", Form::Flag, "whether the covered blocks include the token's whole life"),
        computed(
            "negative",
            Form::Flag,
            "whether the balance is below zero, which happens for tokens that change balances without transfers; \
             null if `complete` is false",
        )
        .or_null(),
    ],
};

static DAY: Record = Record {
    name: "BalanceDay",
    about: "How an account's holding of a token changed on one day (UTC).",
    base: None,
    fields: &[
        column("date", Form::Date, "date", "the day; null if it is outside the calendar's range")
            .or_null(),
        column("day", Form::Number, "date", "the day as a number of days since 1970-01-01"),
        column("delta", Form::Amount, "delta", "sum of the transfers of the day"),
        computed(
            "opening",
            Form::Amount,
            "the balance at the start of the day; null if `complete` is false",
        )
        .or_null(),
        computed(
            "closing",
            Form::Amount,
            "the balance at the end of the day; null if `complete` is false",
        )
        .or_null(),
        computed(
            "sum",
            Form::Amount,
            "sum of all transfers in the covered blocks up to the end of the day",
        ),
        DECIMALS,
        SYMBOL,
        column("transactionCount", Form::Number, "tx_count", "number of transactions"),
        column("lastBlock", Form::Number, "last_height", "block of the last one"),
        computed(
            "complete",
            Form::Flag,
            "whether the covered blocks include the token's whole life",
        ),
    ],
};

static HOLDINGS: List = List {
    table: &FT_HOLDINGS,
    record: &HOLDING,
    order: &["contract_address"],
    direction: Direction::Up,
};

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "account_holdings",
        path: "/accounts/{address}/holdings",
        summary: "The fungible tokens that an account holds, in a fixed order.",
        needs: &[ProcessorName::FtHoldings],
        uses: &[ProcessorName::Meta],
        params: &[ACCOUNT_PARAM],
        shape: Shape::Page(&HOLDING),
        run: |call| Box::pin(holdings(call)),
    },
    Endpoint {
        id: "account_balances",
        path: "/accounts/{address}/balances",
        summary: "Daily changes of an account's holding of a token, newest first.",
        needs: &[ProcessorName::DailyBalance],
        uses: &[ProcessorName::Meta],
        params: &[ACCOUNT_PARAM, required("token", ParamKind::Address, "the token's contract")],
        shape: Shape::Page(&DAY),
        run: |call| Box::pin(balances(call)),
    },
];

async fn holdings(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(id) = data.id(call.address("address")?).await? else {
        call.position(&HOLDINGS.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let query = RowQuery::key("address = $1", params![id]);
    let (mut items, next) = call.page_of(&HOLDINGS, &query, |_| true).await?;
    data.add_decimals(&mut items, "token").await?;
    let tokens: BTreeSet<_> = items.iter().filter_map(|item| address_in(item, "token")).collect();
    let complete = data.complete(ProcessorName::FtHoldings, tokens).await?;
    for item in &mut items {
        let is_complete = address_in(item, "token").is_some_and(|token| complete.contains(&token));
        add_balance(item, is_complete);
        let is_negative = item["delta"].as_str().is_some_and(|delta| delta.starts_with('-'));
        item.insert("negative".to_owned(), json!(is_complete.then_some(is_negative)));
    }
    Ok(call.reply(items, next))
}

async fn balances(call: &Call) -> ApiResult<Reply> {
    let (data, token) = (call.data()?, call.address("token")?);
    let before =
        call.position(&[Kind::Int])?.map_or(OrderValue::Int(i64::MAX), |from| from.0[0].clone());
    let ids = (data.id(call.address("address")?).await?, data.id(token).await?);
    let (Some(account), Some(token_id)) = ids else {
        return Ok(call.reply(Vec::new(), None));
    };
    let key = "address = $1 AND contract_address = $2 AND date < $3";
    let order = "date DESC";
    // Reads one row per day of this account and token, and sums over them.
    let earlier = Select { key, ..Select::default() };
    let shown = Select { order, limit: Some(call.limit() + 1), ..earlier };
    let columns = DAY.select();
    let text = |source: Source<'_>| {
        let (rows, all) = (source(&DAILY_BALANCES, &shown), source(&DAILY_BALANCES, &earlier));
        format!(
            "SELECT {columns}, (SELECT amount_sum(e.delta) FROM {all} AS e) FROM {rows} AS s
             ORDER BY s.{order}"
        )
    };
    let answer = data.query(text, vec![account.into(), token_id.into(), before.value()]).await?;
    let complete = data.complete(ProcessorName::DailyBalance, BTreeSet::from([token])).await?;
    let mut items = days(&answer.rows, complete.contains(&token))?;
    let next = (items.len() > call.limit()).then(|| {
        items.truncate(call.limit());
        let last = items.last().and_then(|item| item["day"].as_i64());
        Position(vec![OrderValue::Int(last.unwrap_or(i64::MIN))])
    });
    data.add_decimals_of(&mut items, token).await?;
    Ok(call.reply(items, next))
}

/// Converts rows to days. The last column is the sum at the end of the first row's day.
fn days(rows: &[Row], complete: bool) -> ApiResult<Vec<Object>> {
    let Some(first) = rows.first() else {
        return Ok(Vec::new());
    };
    let mut sum = first.opt_amount(DAY.width())?.unwrap_or(Amount::ZERO);
    let mut days = Vec::new();
    for row in rows {
        let mut day = DAY.read(row)?;
        let delta: Option<Amount> = day["delta"].as_str().and_then(|delta| delta.parse().ok());
        let delta = delta.ok_or_else(|| ApiError::internal("a stored change is not an amount"))?;
        let before = sum.saturating_add(-delta);
        let called = |amount: Amount| if complete { amount.to_string().into() } else { Json::Null };
        day.insert("opening".to_owned(), called(before));
        day.insert("closing".to_owned(), called(sum));
        day.insert("sum".to_owned(), sum.to_string().into());
        day.insert("complete".to_owned(), complete.into());
        sum = before;
        days.push(day);
    }
    Ok(days)
}
