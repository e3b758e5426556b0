//! Fees, read from the tables.
//!
//! Guarantees: amounts are exact, as text; a page is in chain order, newest first; a chain without collected fees has
//! an empty list, which is not an error but incomplete. Leaves to others: parsing the request
//! ([`crate::http::event_rows::query`]).

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256};
use finalized_log_index::ReplacementPosition;
use logmill_io::{Amount, Row};
use logmill_pipeline::derive::{Reader, Select, Tables};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::fees::FEE_EVENTS;
use logmill_work::IntervalSet;
use serde_json::{Value, json};

use super::rows::{FeeRow, FeeShares, FeeSum};
use super::tokens;
use crate::http::event_rows::RowsError;
use crate::http::event_rows::page::{Conditions, EventPage, EventTable};
use crate::http::event_rows::query::{Filter, PageQuery, Period, SummaryQuery};

/// The seed's chain, the default if the request names none and there is not exactly one.
const USUAL_CHAIN: u64 = 137;
/// The processor that fills the table.
const PROCESSOR: &str = ProcessorName::Fees.as_str();
/// Maximum number of sums read, and returned.
const READ_MAX: usize = 100_000;
const SUMS_MAX: usize = 10_000;

const DAY_S: i64 = 86_400;
/// SQL of what an event shows.
const EVENT: &str = "block_height, event_index, tx_hash,
    (SELECT address FROM address WHERE id = token),
    (SELECT address FROM address WHERE id = integrator),
    integrator_fee, lifi_fee, timestamp";

type RowsResult<T = Value> = Result<T, RowsError>;

pub(super) struct Fees {
    tables: Tables,
    /// The newest replacement of stored blocks, by chain.
    last_replacements: BTreeMap<u64, ReplacementPosition>,
    /// By chain, why a table without a single row may miss all fees ([`crate::rpc::ChainStatus::assumed_fees`]).
    assumed: BTreeMap<u64, String>,
}

impl Fees {
    pub(super) fn new(
        tables: Tables,
        last_replacements: BTreeMap<u64, ReplacementPosition>,
        assumed: BTreeMap<u64, String>,
    ) -> Self {
        Self { tables, last_replacements, assumed }
    }

    /// Marks an answer that may contain rows of replaced blocks or of changed settings, or miss all fees of a chain.
    async fn mark_incomplete(&self, mut answer: Value, reader: &Reader) -> RowsResult {
        let last = self.last_replacements.get(&reader.chain_id()).copied();
        let standings = reader.progress(&[PROCESSOR]).await?;
        let reason = standings.first().and_then(|standing| match last {
            Some(last) => standing.incomplete(last),
            // Without stored blocks nothing can be replaced.
            None => standing.kept.clone(),
        });
        let assumed = self.assumed.get(&reader.chain_id());
        let reason = match reason {
            None if assumed.is_some() && super::is_empty(reader).await? => assumed.cloned(),
            reason => reason,
        };
        if let Some(reason) = reason {
            answer["complete"] = false.into();
            answer["reason"] = reason.into();
        }
        Ok(answer)
    }

    /// Marks the answer about a chain whose fees are not collected, and names those whose fees are.
    async fn without_chain(&self, mut answer: Value, chain_id: u64) -> RowsResult {
        let known: Vec<String> =
            self.tables.chains(PROCESSOR).await?.iter().map(u64::to_string).collect();
        let others = match known.is_empty() {
            true => String::new(),
            false => format!("; the chains with fees are {}", known.join(", ")),
        };
        answer["complete"] = false.into();
        answer["reason"] = format!("no fees of chain {chain_id} are collected here{others}").into();
        Ok(answer)
    }

    /// One page of fees, newest first.
    pub(super) async fn page(&self, query: &PageQuery) -> RowsResult {
        let (chain_id, reader) = self.chain(&query.filter).await?;
        let Some(reader) = reader else {
            return self
                .without_chain(EventPage::default().to_json::<FeeRow>(query, &[]), chain_id)
                .await;
        };
        let Some(conditions) = self.conditions(&query.filter).await? else {
            let empty = EventPage::default().to_json::<FeeRow>(query, &[]);
            return self.mark_incomplete(empty, &reader).await;
        };
        let (table, consumer) = (&FEE_EVENTS, PROCESSOR);
        let table = EventTable { reader: &reader, table, consumer, selected: EVENT };
        let page = table.page(query, conditions).await?;
        let events = page.rows.iter().map(|row| event(chain_id, row, &page.done));
        let mut events = events.collect::<RowsResult<Vec<FeeRow>>>()?;
        let shares = events.iter_mut().map(|event| &mut event.shares);
        tokens::add(&self.tables, chain_id, shares).await?;
        self.mark_incomplete(page.to_json(query, &events), &reader).await
    }

    /// Sums per period, integrator and token.
    pub(super) async fn summary(&self, query: &SummaryQuery) -> RowsResult {
        let (chain_id, reader) = self.chain(&query.filter).await?;
        let Some(reader) = reader else {
            return self.without_chain(json!({ "data": [] }), chain_id).await;
        };
        let Some(conditions) = self.conditions(&query.filter).await? else {
            return self.mark_incomplete(json!({ "data": [] }), &reader).await;
        };
        let day = match query.period {
            Period::All => "0".to_owned(),
            Period::Day | Period::Month => format!("timestamp / {DAY_S}"),
        };
        let text = |source: &dyn Fn(&'static _, &Select<'_>) -> String| {
            let events = source(&FEE_EVENTS, &conditions.select("", None));
            format!(
                "SELECT day, (SELECT address FROM address WHERE id = integrator),
                    (SELECT address FROM address WHERE id = token), events, theirs, ours
                 FROM (SELECT {day} AS day, integrator, token, count(*) AS events,
                    amount_sum(integrator_fee) AS theirs, amount_sum(lifi_fee) AS ours
                    FROM {events} AS e GROUP BY 1, 2, 3 LIMIT {}) AS s",
                READ_MAX + 1
            )
        };
        let found = reader.query(text, conditions.params.clone()).await?;
        if found.rows.len() > READ_MAX {
            return Err(too_many());
        }
        let mut sums = Sums::new();
        for row in &found.rows {
            let period = period(query.period, row.int(0)?);
            let (integrator, token) = (address(row, 1)?, address(row, 2)?);
            // Sums are in the order of their texts.
            let key = (period, integrator.to_string(), token.to_string());
            let sum = sums.entry(key).or_insert(Sum { integrator, token, ..Sum::default() });
            sum.events += row.count(3)?;
            sum.integrator_fee = sum.integrator_fee.saturating_add(row.amount(4)?);
            sum.lifi_fee = sum.lifi_fee.saturating_add(row.amount(5)?);
        }
        if sums.len() > SUMS_MAX {
            return Err(too_many());
        }
        let sums = sums.into_iter().rev();
        let mut data: Vec<FeeSum> =
            sums.map(|((period, ..), sum)| sum.row(chain_id, period)).collect();
        let shares = data.iter_mut().map(|sum| &mut sum.shares);
        tokens::add(&self.tables, chain_id, shares).await?;
        self.mark_incomplete(json!({ "data": data }), &reader).await
    }

    /// The requested or default chain, and its tables if it has any.
    async fn chain(&self, filter: &Filter) -> RowsResult<(u64, Option<Reader>)> {
        let known = self.tables.chains(PROCESSOR).await?;
        let chain_id = match (filter.chain_id, &known[..]) {
            (Some(chain_id), _) => chain_id,
            (None, [only]) => *only,
            (None, _) => USUAL_CHAIN,
        };
        let reader = known.contains(&chain_id);
        Ok((chain_id, reader.then(|| Reader::new(self.tables.clone(), chain_id))))
    }

    /// The conditions of a request; `None` if it names an address that occurs in no row.
    async fn conditions(&self, filter: &Filter) -> RowsResult<Option<Conditions>> {
        let mut conditions = Conditions::new(filter);
        for (column, address) in [("integrator", filter.integrator), ("token", filter.token)] {
            if let Some(address) = address {
                let Some(id) = self.tables.address_id(address).await? else {
                    return Ok(None);
                };
                conditions.equals(column, id);
            }
        }
        Ok(Some(conditions))
    }
}

fn event(chain_id: u64, row: &Row, done: &IntervalSet) -> RowsResult<FeeRow> {
    let hash = row.blob(2)?;
    Ok(FeeRow {
        chain_id,
        transaction_hash: B256::try_from(&hash[..]).unwrap_or_default(),
        log_index: row.int(1)?,
        block_number: row.int(0)?,
        created_at: moment(row.int(7)?),
        is_final: done.contains(row.count(0)?),
        shares: shares(address(row, 4)?, address(row, 3)?, row.amount(5)?, row.amount(6)?),
    })
}

/// Shares whose token is not described yet.
fn shares(integrator: Address, token: Address, theirs: Amount, ours: Amount) -> FeeShares {
    FeeShares {
        event_integrator: integrator,
        token,
        symbol: None,
        decimals: None,
        integrator_fee: theirs.to_string(),
        lifi_fee: ours.to_string(),
    }
}

fn address(row: &Row, column: usize) -> RowsResult<Address> {
    let bytes = row.blob(column)?;
    Ok(Address::try_from(&bytes[..]).unwrap_or_default())
}

fn moment(seconds: i64) -> String {
    let moment = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    moment.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}

/// By period, integrator and token.
type Sums = BTreeMap<(String, String, String), Sum>;

#[derive(Default)]
struct Sum {
    integrator: Address,
    token: Address,
    events: u64,
    integrator_fee: Amount,
    lifi_fee: Amount,
}

impl Sum {
    fn row(&self, chain_id: u64, period: String) -> FeeSum {
        let shares = shares(self.integrator, self.token, self.integrator_fee, self.lifi_fee);
        FeeSum { chain_id, period, events: self.events, shares }
    }
}

/// The name of the period that contains a day.
fn period(period: Period, day: i64) -> String {
    let moment = jiff::Timestamp::from_second(day.saturating_mul(DAY_S)).unwrap_or_default();
    match period {
        Period::All => "all".to_owned(),
        Period::Day => moment.strftime("%Y-%m-%d").to_string(),
        Period::Month => moment.strftime("%Y-%m").to_string(),
    }
}

fn too_many() -> RowsError {
    RowsError::Invalid(format!(
        "more than {SUMS_MAX} sums: filter by integrator or token, narrow the time range or use a longer period"
    ))
}
