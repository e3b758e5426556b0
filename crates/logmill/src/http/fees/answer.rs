//! Fees, read from the tables.
//!
//! Guarantees: amounts are exact, as text; a page is in the order of the chain, newest first; a chain of which
//! nothing is collected has no fees, which is no error. Leaves to others: what was asked ([`super::question`]).

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256};
use logmill_io::{Amount, Row, Value as Param};
use logmill_pipeline::derive::{Reader, Select, Tables};
use logmill_pipeline::processors::fees::FEE_EVENTS;
use serde_json::{Value, json};

use super::NoAnswer;
use super::question::{Filter, PageQuestion, Part, Period, SummaryQuestion};

/// The chain of the seed, which is meant when several are there and none is said.
const USUAL_CHAIN: u64 = 137;
/// Who fills the table.
const PROCESSOR: &str = "fees_worker";
/// The most sums that are read, and that are given.
const READ_MAX: usize = 100_000;
const SUMS_MAX: usize = 10_000;

const DAY_S: i64 = 86_400;
const NEWEST_FIRST: &str = "block_height DESC, event_index DESC";

type Answer<T = Value> = Result<T, NoAnswer>;

/// Reads fees.
pub(super) struct Fees {
    tables: Tables,
    /// The last replacement of stored blocks, by chain.
    last_replacements: BTreeMap<u64, u64>,
}

/// Conditions as the database takes them.
#[derive(Default)]
struct Conditions {
    key: Vec<String>,
    other: Vec<String>,
    params: Vec<Param>,
    /// Whether an address is asked for that no row names.
    of_nobody: bool,
}

impl Conditions {
    /// The name of a parameter with this value.
    fn param(&mut self, value: i64) -> String {
        self.params.push(value.into());
        format!("${}", self.params.len())
    }
}

impl Fees {
    pub(super) fn new(tables: Tables, last_replacements: BTreeMap<u64, u64>) -> Self {
        Self { tables, last_replacements }
    }

    /// Marks an answer if rows of blocks that no longer exist may be in it.
    async fn marked(&self, mut answer: Value, reader: &Reader) -> Answer {
        let last = self.last_replacements.get(&reader.chain_id()).copied().unwrap_or(0);
        if last == 0 {
            return Ok(answer);
        }
        let standings = reader.standings(&[PROCESSOR]).await?;
        if let Some(reason) = standings.first().and_then(|standing| standing.stale(last)) {
            answer["complete"] = false.into();
            answer["reason"] = reason.into();
        }
        Ok(answer)
    }

    /// One page of fees, the newest first.
    pub(super) async fn page(&self, question: &PageQuestion) -> Answer {
        let limit = question.limit;
        let (chain_id, reader) = self.chain(&question.filter).await?;
        let mut conditions = self.conditions(&question.filter).await?;
        let offset = match question.part {
            Part::Page(page) => (page - 1).saturating_mul(limit),
            Part::After(after) => {
                if let Some((block, log)) = after {
                    let (block, log) = (conditions.param(block), conditions.param(log));
                    let before = format!(
                        "(block_height < {block} OR (block_height = {block} AND event_index < {log}))"
                    );
                    conditions.key.push(before);
                }
                0
            }
        };
        let Some((reader, conditions)) = reader.zip(conditions.possible()) else {
            return Ok(shown_page(question, &[], 0, None));
        };
        let total = match question.part {
            Part::Page(_) => total(&reader, &conditions).await?,
            Part::After(_) => u64::MAX,
        };
        if offset >= total {
            return self.marked(shown_page(question, &[], total, None), &reader).await;
        }
        let rows = rows(&reader, &conditions, offset, limit).await?;
        let events = rows.iter().map(|row| event(chain_id, row)).collect::<Answer<Vec<Value>>>()?;
        let last = rows.last().map(|row| Ok::<_, NoAnswer>((row.int(0)?, row.int(1)?)));
        let last = last.transpose()?.filter(|_| rows.len() as u64 == limit);
        self.marked(shown_page(question, &events, total, last), &reader).await
    }

    /// Sums for every integrator and token, by time.
    pub(super) async fn summary(&self, question: &SummaryQuestion) -> Answer {
        let (chain_id, reader) = self.chain(&question.filter).await?;
        let conditions = self.conditions(&question.filter).await?;
        let Some((reader, conditions)) = reader.zip(conditions.possible()) else {
            return Ok(json!({ "data": [] }));
        };
        let day = match question.period {
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
            let period = period(question.period, row.int(0)?);
            let sum = sums.entry((period, address(row, 1)?, address(row, 2)?)).or_default();
            sum.0 += row.count(3)?;
            sum.1 = sum.1.saturating_add(row.amount(4)?);
            sum.2 = sum.2.saturating_add(row.amount(5)?);
        }
        if sums.len() > SUMS_MAX {
            return Err(too_many());
        }
        let data: Vec<Value> = sums.iter().rev().map(|sum| shown_sum(chain_id, sum)).collect();
        self.marked(json!({ "data": data }), &reader).await
    }

    /// The chain that is meant, and its tables if it has any.
    async fn chain(&self, filter: &Filter) -> Answer<(u64, Option<Reader>)> {
        let known = self.tables.chains(PROCESSOR).await?;
        let chain_id = match (filter.chain_id, &known[..]) {
            (Some(chain_id), _) => chain_id,
            (None, [only]) => *only,
            (None, _) => USUAL_CHAIN,
        };
        let reader = known.contains(&chain_id);
        Ok((chain_id, reader.then(|| Reader::new(self.tables.clone(), chain_id))))
    }

    async fn conditions(&self, filter: &Filter) -> Answer<Conditions> {
        let mut conditions = Conditions::default();
        let key = [("block_height >=", filter.from_block), ("block_height <=", filter.to_block)];
        for (compared, value) in key {
            if let Some(value) = value {
                let value = conditions.param(value);
                conditions.key.push(format!("{compared} {value}"));
            }
        }
        let times = [("timestamp >=", filter.from_time), ("timestamp <", filter.to_time)];
        for (compared, value) in times {
            if let Some(value) = value {
                let value = conditions.param(value);
                conditions.other.push(format!("{compared} {value}"));
            }
        }
        for (column, address) in [("integrator", filter.integrator), ("token", filter.token)] {
            if let Some(address) = address {
                let Some(id) = self.tables.address_id(address).await? else {
                    conditions.of_nobody = true;
                    continue;
                };
                let id = conditions.param(id);
                conditions.other.push(format!("{column} = {id}"));
            }
        }
        Ok(conditions)
    }
}

impl Conditions {
    /// The conditions, unless nothing can meet them.
    fn possible(self) -> Option<Texts> {
        let (key, other) = (self.key.join(" AND "), self.other.join(" AND "));
        (!self.of_nobody).then_some(Texts { key, other, params: self.params })
    }
}

/// Conditions, put together.
struct Texts {
    key: String,
    other: String,
    params: Vec<Param>,
}

impl Texts {
    fn select<'a>(&'a self, order: &'a str, limit: Option<usize>) -> Select<'a> {
        Select { key: &self.key, filter: &self.other, order, limit }
    }
}

async fn total(reader: &Reader, conditions: &Texts) -> Answer<u64> {
    let text = |source: &dyn Fn(&'static _, &Select<'_>) -> String| {
        let events = source(&FEE_EVENTS, &conditions.select("", None));
        format!("SELECT count(*) FROM {events} AS e")
    };
    let found = reader.query(text, conditions.params.clone()).await?;
    Ok(found.row()?.count(0)?)
}

async fn rows(reader: &Reader, conditions: &Texts, offset: u64, limit: u64) -> Answer<Vec<Row>> {
    let most = usize::try_from(offset.saturating_add(limit)).ok();
    let text = |source: &dyn Fn(&'static _, &Select<'_>) -> String| {
        let events = source(&FEE_EVENTS, &conditions.select(NEWEST_FIRST, most));
        format!(
            "SELECT block_height, event_index, tx_hash,
                (SELECT address FROM address WHERE id = token),
                (SELECT address FROM address WHERE id = integrator),
                integrator_fee, lifi_fee, timestamp
             FROM {events} AS e ORDER BY {NEWEST_FIRST} LIMIT {limit} OFFSET {offset}"
        )
    };
    Ok(reader.query(text, conditions.params.clone()).await?.rows)
}

/// An event as the seed shows it. A derived table knows of no time but the block's.
fn event(chain_id: u64, row: &Row) -> Answer {
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
    }))
}

/// An address as people know it, with its checksum.
fn address(row: &Row, column: usize) -> Answer<String> {
    let bytes = row.blob(column)?;
    Ok(Address::try_from(&bytes[..]).unwrap_or_default().to_string())
}

fn moment(seconds: i64) -> String {
    let moment = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    moment.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}

fn shown_page(
    question: &PageQuestion,
    data: &[Value],
    total: u64,
    last: Option<(i64, i64)>,
) -> Value {
    let limit = question.limit;
    let pagination = match question.part {
        Part::Page(page) => {
            let pages = total.div_ceil(limit);
            json!({ "page": page, "limit": limit, "total": total, "totalPages": pages })
        }
        Part::After(_) => {
            let next = last.map(|(block, log)| format!("{block}-{log}"));
            json!({ "limit": limit, "nextCursor": next })
        }
    };
    json!({ "data": data, "pagination": pagination })
}

/// Sums by period, integrator and token: how many events, whose share is what.
type Sums = BTreeMap<(String, String, String), (u64, Amount, Amount)>;

fn shown_sum(
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

/// The period that a day is in.
fn period(period: Period, day: i64) -> String {
    let moment = jiff::Timestamp::from_second(day.saturating_mul(DAY_S)).unwrap_or_default();
    match period {
        Period::All => "all".to_owned(),
        Period::Day => moment.strftime("%Y-%m-%d").to_string(),
        Period::Month => moment.strftime("%Y-%m").to_string(),
    }
}

fn too_many() -> NoAnswer {
    NoAnswer::TooMuch(format!(
        "these are more than {SUMS_MAX} sums: ask for an integrator, a token, less time or a longer period"
    ))
}
