//! Queries: any operation over any window, zone and group, from partials alone.
//!
//! Series are read page by page, and the partials of each page are merged into the lines of the answer before the next
//! page is read. So a total over any number of customers takes the memory of a page and of its lines.
//!
//! Guarantees: no event is read, so the cost depends on the queried time and not on how much happened in it. What is
//! read and returned is bounded; exceeding a bound is an error that says so. Usage that is not final is separated:
//! usage that chains may still take back, and windows that are still open. Leaves to others: authorization.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use logmill_io::Timestamp;

use crate::Meter;
use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::event::{Event, bounded};
use crate::partial::{OpResult, OptionalParts, Partial, Position, Sample};
use crate::period::{BUCKET_MS, Bucket, Calendar, PeriodKind};
use crate::settings::Op;
use crate::store::partials;
use lines::{LineData, QueryLines, SeriesWalk};
use pages::{PartialPages, QueryCost};
use series::{QuerySeries, SeriesPages};

mod lines;
mod pages;
mod series;

/// Maximum number of windows of one query.
const WINDOWS_MAX: usize = 10_000;
/// Maximum number of customers that one query names.
const CUSTOMERS_MAX: usize = 100;
/// Name in `group_by` that groups lines by customer.
pub const BY_CUSTOMER: &str = "customerId";

/// Upper bounds of the cost of one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows read: series and partials.
    pub rows: usize,
    /// Their total size.
    pub bytes: usize,
    /// Lines of the answer.
    pub lines: usize,
    /// Total size of unique items and distributions in all lines while they are computed.
    pub kept_bytes: usize,
    /// Windows, over all series, into which a time-weighted value is carried.
    pub held: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Pages are merged as they arrive, so this bounds time, not memory; the caller has its own time limit. 25
            // 000 customers that are active all day are 2.4 million rows.
            rows: 20_000_000,
            bytes: 2 << 30,
            lines: 50_000,
            kept_bytes: 256 << 20,
            held: 2_000_000,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub event_type: String,
    /// All customers together if empty.
    pub customers: Vec<String>,
    /// The operation; by default that of the event type.
    pub op: Option<Op>,
    /// The quantile; by default that of the event type.
    pub quantile_milli: Option<u16>,
    /// On a quarter of an hour.
    pub from: Timestamp,
    /// Exclusive; on a quarter of an hour.
    pub to: Timestamp,
    /// One line per period of this kind; one for all if `None`.
    pub window: Option<PeriodKind>,
    /// The time zone of windows; by default the meter's.
    pub zone: Option<String>,
    /// One line per value of these dimensions, or of [`BY_CUSTOMER`].
    pub group_by: Vec<String>,
    /// Only usage with one of these values of a dimension.
    pub filter: BTreeMap<String, BTreeSet<String>>,
}

/// The value of each requested dimension; `None` if the usage has none.
pub type Group = BTreeMap<String, Option<String>>;

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryLine {
    /// Start of the window.
    pub start: Timestamp,
    /// End of the window, exclusive.
    pub end: Timestamp,
    pub group: Group,
    /// `None` if there is only provisional usage.
    pub result: Option<OpResult>,
    /// Number of events behind it.
    pub count: u64,
    /// Whether its window and the grace have passed.
    pub is_final: bool,
    /// Value and number of events that are not final yet; not part of `result`.
    pub provisional: Option<(OpResult, u64)>,
}

impl QueryLine {
    pub fn value(&self) -> Option<Decimal> {
        self.result.map(|result| result.value)
    }
}

/// A window and its buckets.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: Timestamp,
    end: Timestamp,
}

/// A checked query, with its windows and parts.
struct Plan {
    op: Op,
    quantile_milli: u16,
    spans: Vec<Span>,
    /// The parts that partials must have, and those that are merged over series.
    keeps: OptionalParts,
    flat: OptionalParts,
}

impl Meter {
    /// Answers a query. `provisional` is usage of this event type that is not final yet.
    pub async fn query(
        &self,
        query: &Query,
        provisional: &[(Event, Timestamp)],
    ) -> Result<Vec<QueryLine>> {
        self.query_within(query, provisional, &Limits::default()).await
    }

    /// Like [`Meter::query`], with other limits.
    pub async fn query_within(
        &self,
        query: &Query,
        provisional: &[(Event, Timestamp)],
        limits: &Limits,
    ) -> Result<Vec<QueryLine>> {
        let plan = self.plan(query)?;
        let query = &query.as_stored();
        let mut lines = QueryLines::new(limits);
        let mut cost = QueryCost::default();
        let mut all = SeriesPages::new(self, query).await?;
        while let Some(page) = all.next(&mut cost, limits).await? {
            self.gather(&plan, &page, &mut cost, &mut lines).await?;
        }
        for (event, at) in provisional {
            plan.add_provisional(query, event, *at, &mut lines)?;
        }
        let final_before = self.final_before(std::slice::from_ref(&query.event_type)).await?;
        let lines = lines.into_lines().map(|((span, group), gathered)| {
            plan.line(plan.spans[span], group, &gathered, final_before)
        });
        lines.collect()
    }

    fn plan(&self, query: &Query) -> Result<Plan> {
        let event_type = self.settings.events.get(&query.event_type).ok_or_else(|| {
            Error::invalid(crate::event::unknown_type(&self.settings, &query.event_type))
        })?;
        let op = query.op.unwrap_or(event_type.op);
        if !event_type.keeps(op) {
            return Err(Error::invalid(format!(
                "{} does not keep what this operation needs: add it to `also`, then run \
                 `logmill meter recount --repair`",
                query.event_type
            )));
        }
        let dimensions = query.filter.keys().chain(&query.group_by);
        for name in dimensions.filter(|name| *name != BY_CUSTOMER) {
            if !event_type.dimensions.contains(name) {
                return Err(Error::invalid(format!(
                    "{name} is not a dimension of {}: it has {}",
                    query.event_type,
                    event_type.dimensions.join(", ")
                )));
            }
        }
        let on_grid = |time: Timestamp| time.millis().rem_euclid(BUCKET_MS) == 0;
        if query.from >= query.to || !on_grid(query.from) || !on_grid(query.to) {
            return Err(Error::invalid(
                "from must be earlier than to; both must fall on :00, :15, :30 or :45",
            ));
        }
        let quantile_milli = query.quantile_milli.unwrap_or(event_type.quantile_milli);
        let keeps = OptionalParts::for_op(op);
        let flat = OptionalParts { weighted: false, ..keeps };
        Ok(Plan { op, quantile_milli, spans: self.spans(query)?, keeps, flat })
    }

    fn spans(&self, query: &Query) -> Result<Vec<Span>> {
        let Some(kind) = &query.window else {
            return Ok(vec![Span { start: query.from, end: query.to }]);
        };
        kind.check()?;
        let own;
        let calendar = match &query.zone {
            Some(zone) => {
                own = Calendar::new(zone)?;
                &own
            }
            None => &*self.calendar,
        };
        let mut spans = Vec::new();
        let mut period = calendar.period_at(kind, query.from)?;
        while period.start < query.to {
            if spans.len() >= WINDOWS_MAX {
                return Err(too_much("windows", WINDOWS_MAX));
            }
            let (start, end) = (period.start.max(query.from), period.end.min(query.to));
            spans.push(Span { start, end });
            period = calendar.next(&period)?;
        }
        Ok(spans)
    }

    /// Merges the partials of one page of series into the lines of the answer.
    async fn gather(
        &self,
        plan: &Plan,
        page: &[QuerySeries],
        cost: &mut QueryCost,
        lines: &mut QueryLines<'_>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (plan.spans.first(), plan.spans.last()) else {
            return Ok(());
        };
        let ids: Vec<i64> = page.iter().map(|series| series.id).collect();
        let buckets = Bucket::of(first.start).0..Bucket::of(last.end).0;
        let openings = match plan.op {
            Op::TimeWeighted => {
                partials::newest_before(&self.sql.reading(), &ids, buckets.start).await?
            }
            _ => HashMap::new(),
        };
        for opening in openings.values() {
            cost.add(1, opening.blob(2)?.len(), lines.limits())?;
        }
        let now = self.clock().now();
        let walk = |series: &QuerySeries| -> Result<SeriesWalk<'_>> {
            let opening = openings.get(&series.id).map(|row| Partial::decode(&row.blob(2)?));
            let held = opening.transpose()?.and_then(|partial| partial.last());
            let held = held.map(|(_, value)| value);
            Ok(SeriesWalk::new(plan, series.id, series.group.clone(), now, held))
        };
        let mut pages = PartialPages::new(&self.sql, lines.limits(), cost, &ids, buckets);
        let mut waiting = page.iter();
        let mut current: Option<SeriesWalk<'_>> = None;
        while let Some(rows) = pages.next().await? {
            for row in &rows {
                let series = row.int(0)?;
                let walk = loop {
                    match &mut current {
                        Some(walk) if walk.series == series => break walk,
                        before => {
                            let next = waiting.next();
                            let next =
                                next.ok_or_else(|| Error::corrupt("partials are out of order"))?;
                            if let Some(done) = before.replace(walk(next)?) {
                                done.finish(lines)?;
                            }
                        }
                    }
                };
                let partial = Partial::decode(&row.blob(3)?)?.reduced(plan.keeps)?;
                walk.add(Bucket(row.int(1)?).start(), &partial, lines)?;
            }
        }
        if let Some(done) = current {
            done.finish(lines)?;
        }
        waiting.try_for_each(|series| walk(series)?.finish(lines))
    }
}

impl Query {
    /// The query with the values of dimensions in their stored form.
    fn as_stored(&self) -> Self {
        let stored = self.filter.iter().map(|(name, values)| {
            (name.clone(), values.iter().cloned().map(bounded).collect::<BTreeSet<String>>())
        });
        Self { filter: stored.collect(), ..self.clone() }
    }

    /// The group that usage counts for; `None` if the filter excludes it.
    fn group_of(&self, customer: &str, dims: &BTreeMap<String, String>) -> Option<Group> {
        let passes = self
            .filter
            .iter()
            .all(|(name, values)| dims.get(name).is_some_and(|value| values.contains(value)));
        let named = |name: &String| {
            let value = match name.as_str() {
                BY_CUSTOMER => Some(customer.to_owned()),
                _ => dims.get(name).cloned(),
            };
            (name.clone(), value)
        };
        passes.then(|| self.group_by.iter().map(named).collect())
    }
}

impl Plan {
    /// The window that contains a moment. Each starts where the previous one ends.
    fn span_at(&self, at: Timestamp) -> Option<usize> {
        let index = self.spans.partition_point(|span| span.end <= at);
        let inside = self.spans.first().is_some_and(|first| first.start <= at);
        (inside && index < self.spans.len()).then_some(index)
    }

    fn add_provisional(
        &self,
        query: &Query,
        event: &Event,
        at: Timestamp,
        lines: &mut QueryLines<'_>,
    ) -> Result<()> {
        let wanted = query.customers.is_empty() || query.customers.contains(&event.customer);
        let (Some(span), true) = (self.span_at(at), wanted && event.event_type == query.event_type)
        else {
            return Ok(());
        };
        let dims = serde_json::from_str(&event.dims).unwrap_or_default();
        let Some(group) = query.group_of(&event.customer, &dims) else { return Ok(()) };
        let sample = Sample {
            at: Position { time: at, received: at, seq: 0 },
            value: event.value,
            unique: event.unique.as_deref(),
        };
        lines.add_provisional(span, &group, self.flat, sample)
    }

    fn line(
        &self,
        span: Span,
        group: Group,
        gathered: &LineData,
        final_before: Timestamp,
    ) -> Result<QueryLine> {
        let result = match self.op {
            Op::TimeWeighted => gathered.area.map(OpResult::exact),
            op => gathered.partial.value(op, self.quantile_milli, None)?,
        };
        let provisional = match (&gathered.provisional, self.op) {
            (None, _) => None,
            // How long the value will have held is not known yet.
            (Some(partial), Op::TimeWeighted) => {
                Some((OpResult::exact(Decimal::ZERO), partial.count()))
            }
            (Some(partial), op) => {
                let result = partial.value(op, self.quantile_milli, None)?;
                result.map(|result| (result, partial.count()))
            }
        };
        Ok(QueryLine {
            start: span.start,
            end: span.end,
            group,
            result,
            count: gathered.partial.count(),
            is_final: span.end <= final_before,
            provisional,
        })
    }
}

fn too_much(what: &str, most: usize) -> Error {
    Error::invalid(format!(
        "the query covers more than {most} {what}: narrow the time range, or use fewer customers or longer windows"
    ))
}
