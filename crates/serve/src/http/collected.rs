//! `/collected` and `/collected/{table}`: events that `logmill collect --event` stored in tables.
//!
//! A page accepts the range, paging and format parameters of `/fees` (`chainId`, `fromBlock`, `toBlock`, `fromTime`,
//! `toTime`, `page`, `limit`, `cursor`, `format`), and the name of any address column with an address as a filter.
//!
//! Guarantees: every table that was ever collected is served, even if its event is no longer collected; amounts are
//! exact, as text; any other parameter is a 400 that names it. Leaves to others: collecting
//! ([`logmill_pipeline::ingest::collect`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, hex};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State as FromState};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use logmill_io::Row;
use logmill_pipeline::derive::{Column, Kind, Reader, Tables};
use logmill_pipeline::ingest::collect::stored::StoredEvent;
use logmill_work::IntervalSet;
use serde_json::{Map, Value, json};

use super::event_rows::page::{Conditions, EventPage, EventTable};
use super::event_rows::query::PageQuery;
use super::event_rows::{
    QueryParams, RowsError, bad_request, limit_max, parse_query, run_within_limits,
};
use super::{ServerState, problem};

/// Parameters that are not columns.
const GENERAL: [&str; 9] =
    ["chainId", "fromBlock", "toBlock", "fromTime", "toTime", "page", "limit", "cursor", "format"];

type RowsResult<T = Value> = Result<T, RowsError>;

/// Lists all tables with their columns.
pub(super) async fn list(FromState(shared): FromState<Arc<ServerState>>) -> Response {
    let Some(tables) = &shared.tables else { return nothing_collected() };
    let answer = run_within_limits(&shared, async {
        let mut data = Vec::new();
        for event in StoredEvent::list(tables).await? {
            let reader = Reader::new(tables.clone(), event.chain_id);
            let done = reader.covered(&event.consumer).await?.done;
            let columns = event.table.columns.iter();
            let columns = columns.map(|column| json!({"name": column.name, "type": kind(column)}));
            data.push(json!({
                "chainId": event.chain_id,
                "table": event.table.name,
                "columns": columns.collect::<Vec<_>>(),
                "blocks": done.total(),
                "lastBlock": done.ranges().next_back().map(|range| range.end - 1),
            }));
        }
        Ok(json!({ "data": data }))
    });
    answer.await.map_or_else(|problem| problem, |answer| Json(answer).into_response())
}

/// One page of a table, newest first.
pub(super) async fn page(
    FromState(shared): FromState<Arc<ServerState>>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    params: QueryParams,
) -> Response {
    let Some(tables) = &shared.tables else { return nothing_collected() };
    let Ok(Path(name)) = name else {
        return problem(StatusCode::BAD_REQUEST, "the table name must be percent-encoded UTF-8");
    };
    let parsed = parse_query(params, &headers).and_then(|(mut params, format)| {
        let columns = params.split_off_by(|name| !GENERAL.contains(&name));
        Ok((PageQuery::parse(&params, limit_max(format))?, columns, format))
    });
    let (query, filters, format) = match parsed {
        Ok(parsed) => parsed,
        Err(invalid) => return bad_request(&invalid),
    };
    let mut names: Vec<&'static str> = Vec::new();
    let answer = run_within_limits(&shared, async {
        let event = find(tables, &name, query.filter.chain_id).await?;
        names = columns(&event);
        rows(tables, &event, &query, &filters).await
    });
    let answer = answer.await;
    answer.map_or_else(|problem| problem, |answer| format.response(&answer, &names))
}

fn nothing_collected() -> Response {
    problem(StatusCode::NOT_FOUND, "no events are collected here")
}

trait SplitOffBy {
    fn split_off_by(&mut self, is_taken: impl Fn(&str) -> bool) -> Self;
}

impl SplitOffBy for BTreeMap<String, String> {
    fn split_off_by(&mut self, is_taken: impl Fn(&str) -> bool) -> Self {
        self.extract_if(.., |name, _| is_taken(name)).collect()
    }
}

/// The table with this name, on the named chain or on the only one that has it.
async fn find(tables: &Tables, name: &str, chain_id: Option<u64>) -> RowsResult<StoredEvent> {
    let mut found = StoredEvent::list(tables).await?;
    found.retain(|event| event.table.name == name);
    found.retain(|event| chain_id.is_none_or(|chain_id| chain_id == event.chain_id));
    match (found.pop(), found.is_empty()) {
        (Some(event), true) => Ok(event),
        (Some(_), false) => Err(RowsError::Invalid(format!(
            "chainId: required, because {name} is collected from several chains"
        ))),
        (None, _) => Err(RowsError::NotFound(format!(
            "no event is collected into {name:?}; /collected lists the tables"
        ))),
    }
}

/// Column names of a row.
fn columns(event: &StoredEvent) -> Vec<&'static str> {
    let mut names = vec!["chain_id"];
    names.extend(event.table.columns.iter().map(|column| column.name));
    names.push("final");
    names
}

async fn rows(
    tables: &Tables,
    event: &StoredEvent,
    query: &PageQuery,
    filters: &BTreeMap<String, String>,
) -> RowsResult {
    let reader = Reader::new(tables.clone(), event.chain_id);
    let Some(conditions) = conditions(tables, event, query, filters).await? else {
        return Ok(EventPage::default().to_json::<Value>(query, &[]));
    };
    let selected: Vec<String> = event.table.columns.iter().map(selected).collect();
    let table = EventTable {
        reader: &reader,
        table: event.table,
        consumer: &event.consumer,
        selected: &selected.join(", "),
    };
    let page = table.page(query, conditions).await?;
    let data = page.rows.iter().map(|row| row_json(event, row, &page.done));
    Ok(page.to_json(query, &data.collect::<RowsResult<Vec<Value>>>()?))
}

/// The conditions of a query; `None` if no row can match.
async fn conditions(
    tables: &Tables,
    event: &StoredEvent,
    query: &PageQuery,
    filters: &BTreeMap<String, String>,
) -> RowsResult<Option<Conditions>> {
    let mut conditions = Conditions::new(&query.filter);
    for (name, text) in filters {
        let mut columns = event.table.columns.iter();
        let is_it = |column: &&Column| column.name == name && column.kind == Kind::Address;
        let Some(column) = columns.find(is_it) else {
            let why = "neither a parameter of this path nor an address column";
            return Err(RowsError::Invalid(format!("{name}: {why}")));
        };
        let wrong = || {
            RowsError::Invalid(format!("{name}: must be an address (0x and 40 hexadecimal digits)"))
        };
        let address: Address = text.trim().parse().map_err(|_| wrong())?;
        match tables.address_id(address).await? {
            Some(id) => conditions.equals(column.name, id),
            None => return Ok(None),
        }
    }
    Ok(Some(conditions))
}

fn selected(column: &Column) -> String {
    match column.kind {
        Kind::Address => format!("(SELECT address FROM address WHERE id = e.{})", column.name),
        _ => format!("e.{}", column.name),
    }
}

fn row_json(event: &StoredEvent, row: &Row, done: &IntervalSet) -> RowsResult {
    let mut object = Map::new();
    object.insert("chain_id".to_owned(), event.chain_id.into());
    for (number, column) in event.table.columns.iter().enumerate() {
        let value = match column.kind {
            _ if row.is_null(number) => Value::Null,
            Kind::Int => row.int(number)?.into(),
            Kind::Text => row.text(number)?.into(),
            Kind::Amount => row.amount(number)?.to_string().into(),
            Kind::Bytes | Kind::Address => hex::encode_prefixed(row.blob(number)?).into(),
        };
        object.insert(column.name.to_owned(), value);
    }
    object.insert("final".to_owned(), done.contains(row.count(0)?).into());
    Ok(object.into())
}

fn kind(column: &Column) -> &'static str {
    match column.kind {
        Kind::Int => "integer",
        Kind::Text => "text",
        Kind::Bytes => "bytes",
        Kind::Amount => "amount",
        Kind::Address => "address",
    }
}
