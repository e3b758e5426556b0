//! Fees, read from the tables.
//!
//! Guarantees: amounts are exact, as text; a page is in chain order, newest first; a chain without collected fees has
//! an empty list, which is not an error. Leaves to others: parsing the request ([`super::query`]).

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256};
use finalized_log_index::ReplacementPosition;
use logmill_io::{Amount, Row};
use logmill_pipeline::derive::{Reader, Select, Tables};
use logmill_pipeline::processors::fees::FEE_EVENTS;
use logmill_work::IntervalSet;
use serde_json::{Value, json};

use super::query::{Filter, PageQuery, Period, SummaryQuery};
use super::{RowsError, tokens};
use crate::http::event_page::{Conditions, EventPage, EventTable};

/// The seed's chain, the default if the request names none and there is not exactly one.
const USUAL_CHAIN: u64 = 137;
/// The processor that fills the table.
const PROCESSOR: &str = "fees_worker";
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

    /// One page of fees, newest first.
    pub(super) async fn page(&self, query: &PageQuery) -> RowsResult {
        let (chain_id, reader) = self.chain(&query.filter).await?;
        let Some(reader) = reader else {
            return Ok(EventPage::default().to_json(query, &[]));
        };
        let Some(conditions) = self.conditions(&query.filter).await? else {
            return self.mark_incomplete(EventPage::default().to_json(query, &[]), &reader).await;
        };
        let (table, consumer) = (&FEE_EVENTS, PROCESSOR);
        let table = EventTable { reader: &reader, table, consumer, selected: EVENT };
        let page = table.page(query, conditions).await?;
        let events = page.rows.iter().map(|row| event(chain_id, row, &page.done));
        let mut events = events.collect::<RowsResult<Vec<Value>>>()?;
        tokens::add(&self.tables, chain_id, &mut events).await?;
        self.mark_incomplete(page.to_json(query, &events), &reader).await
    }

    /// Sums per period, integrator and token.
    pub(super) async fn summary(&self, query: &SummaryQuery) -> RowsResult {
        let (chain_id, reader) = self.chain(&query.filter).await?;
        let Some(reader) = reader else {
            return Ok(json!({ "data": [] }));
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
            let sum = sums.entry((period, address(row, 1)?, address(row, 2)?)).or_default();
            sum.0 += row.count(3)?;
            sum.1 = sum.1.saturating_add(row.amount(4)?);
            sum.2 = sum.2.saturating_add(row.amount(5)?);
        }
        if sums.len() > SUMS_MAX {
            return Err(too_many());
        }
        let mut data: Vec<Value> = sums.iter().rev().map(|sum| sum_json(chain_id, sum)).collect();
        tokens::add(&self.tables, chain_id, &mut data).await?;
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

/// An event in the seed's format, plus whether its block is final. The only time that a derived table contains is the
/// block's.
fn event(chain_id: u64, row: &Row, done: &IntervalSet) -> RowsResult {
    let hash = row.blob(2)?;
    let hash = B256::try_from(&hash[..]).unwrap_or_default();
    Ok(json!({
        "chainId": chain_id,
        "transactionHash": hash,
        "logIndex": row.int(1)?,
        "blockNumber": row.int(0)?,
        "token": address(row, 3)?,
        "eventIntegrator": address(row, 4)?,
        "integratorFee": row.amount(5)?.to_string(),
        "lifiFee": row.amount(6)?.to_string(),
        "createdAt": moment(row.int(7)?),
        "final": done.contains(row.count(0)?),
    }))
}

/// Address with its checksum (EIP-55).
fn address(row: &Row, column: usize) -> RowsResult<String> {
    let bytes = row.blob(column)?;
    Ok(Address::try_from(&bytes[..]).unwrap_or_default().to_string())
}

fn moment(seconds: i64) -> String {
    let moment = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    moment.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}

/// By period, integrator and token: number of events, integrator fee, LI.FI fee.
type Sums = BTreeMap<(String, String, String), (u64, Amount, Amount)>;

fn sum_json(
    chain_id: u64,
    ((period, integrator, token), (events, theirs, ours)): (
        &(String, String, String),
        &(u64, Amount, Amount),
    ),
) -> Value {
    json!({
        "chainId": chain_id,
        "period": period,
        "eventIntegrator": integrator,
        "token": token,
        "events": events,
        "integratorFee": theirs.to_string(),
        "lifiFee": ours.to_string(),
    })
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
