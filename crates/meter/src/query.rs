//! Queries: any operation over any window, zone and group, from partials alone.
//!
//! Series are read page by page, and the partials of each page are merged into the lines of the answer before the next
//! page is read. So a total over any number of customers takes the memory of a page and of its lines.
//!
//! Guarantees: no event is read, so that the cost depends on the time asked for and not on how much happened in it;
//! what is read and given is bounded, and more than that is an error that says so. What is not yet final is given
//! apart from what is: usage that chains may still take back, and windows that are still open. Leaves to others: who
//! may ask.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use logmill_io::Timestamp;

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::event::{Event, bounded};
use crate::meter::Meter;
use crate::partial::{Answer, Keeps, Partial, Position, Sample};
use crate::partials;
use crate::period::{BUCKET_MS, Bucket, Calendar, PeriodKind};
use crate::settings::Op;
use lines::{Gathered, Lines, Walk};
use pages::{Pages, Spent};
use series::{QuerySeries, SeriesPages};

mod lines;
mod pages;
mod series;

/// The most windows of one query.
pub const WINDOWS_MAX: usize = 10_000;
/// The most customers that one query names.
pub const CUSTOMERS_MAX: usize = 100;
/// The name by which lines are told apart by customer.
pub const BY_CUSTOMER: &str = "customerId";

/// What one query may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most rows that are read: series and partials.
    pub rows: usize,
    /// The most bytes that they have together.
    pub bytes: usize,
    /// The most lines of the answer.
    pub lines: usize,
    /// The most bytes of different things and distributions that all lines have together while they are made.
    pub kept_bytes: usize,
    /// The most windows of all series together into which a value that is weighted by time holds on.
    pub held: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rows: 2_000_000,
            bytes: 1 << 30,
            lines: 50_000,
            kept_bytes: 256 << 20,
            held: 2_000_000,
        }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Of which usage.
    pub event_type: String,
    /// Of whom; of all customers together if none is named.
    pub customers: Vec<String>,
    /// How it is computed; as the event type says if not given.
    pub op: Option<Op>,
    /// Which quantile; as the event type says if not given.
    pub quantile_milli: Option<u16>,
    /// From when on, on a quarter of an hour.
    pub from: Timestamp,
    /// Until when, and not at that moment; on a quarter of an hour.
    pub to: Timestamp,
    /// One line for each such period; one for all if not given.
    pub window: Option<PeriodKind>,
    /// The time zone of windows; the meter's if not given.
    pub zone: Option<String>,
    /// One line for each value of these dimensions, or of [`BY_CUSTOMER`].
    pub group_by: Vec<String>,
    /// Only usage with one of these values of a dimension.
    pub filter: BTreeMap<String, BTreeSet<String>>,
}

/// What a group is called: the value of each dimension that was asked for, if it has one.
pub type Group = BTreeMap<String, Option<String>>;

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The start of its window.
    pub start: Timestamp,
    /// The end of its window, which is no longer in it.
    pub end: Timestamp,
    /// Whose and which usage.
    pub group: Group,
    /// The value; none if there is only what is provisional.
    pub answer: Option<Answer>,
    /// How many events it is made of.
    pub count: u64,
    /// Whether its window and the grace have passed.
    pub is_final: bool,
    /// The value and the number of events that are not final yet, and are not part of the value.
    pub provisional: Option<(Answer, u64)>,
}

impl Line {
    /// The value, if there is one.
    pub fn value(&self) -> Option<Decimal> {
        self.answer.map(|answer| answer.value)
    }
}

/// A window, and which buckets it has.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: Timestamp,
    end: Timestamp,
}

/// What a query is answered with.
struct Plan {
    op: Op,
    quantile_milli: u16,
    spans: Vec<Span>,
    /// What partials must keep, and what of it is merged over series.
    keeps: Keeps,
    flat: Keeps,
}

impl Meter {
    /// Answers a query. `provisional` is usage that is not final yet, of this event type.
    pub async fn query(
        &self,
        query: &Query,
        provisional: &[(Event, Timestamp)],
    ) -> Result<Vec<Line>> {
        self.query_within(query, provisional, &Limits::default()).await
    }

    /// The same with other limits.
    pub async fn query_within(
        &self,
        query: &Query,
        provisional: &[(Event, Timestamp)],
        limits: &Limits,
    ) -> Result<Vec<Line>> {
        let plan = self.plan(query)?;
        let query = &query.as_stored();
        let mut lines = Lines::new(limits);
        let mut spent = Spent::default();
        let mut all = SeriesPages::new(self, query).await?;
        while let Some(page) = all.next(&mut spent, limits).await? {
            self.gather(&plan, &page, &mut spent, &mut lines).await?;
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
            return Err(Error::invalid("from is before to, and both are on a quarter of an hour"));
        }
        let quantile_milli = query.quantile_milli.unwrap_or(event_type.quantile_milli);
        let keeps = Keeps::for_op(op);
        let flat = Keeps { weighted: false, ..keeps };
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
        spent: &mut Spent,
        lines: &mut Lines<'_>,
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
            spent.add(1, opening.blob(2)?.len(), lines.limits())?;
        }
        let now = self.clock().now();
        let walk = |series: &QuerySeries| -> Result<Walk<'_>> {
            let opening = openings.get(&series.id).map(|row| Partial::decode(&row.blob(2)?));
            let held = opening.transpose()?.and_then(|partial| partial.last());
            let held = held.map(|(_, value)| value);
            Ok(Walk::new(plan, series.id, series.group.clone(), now, held))
        };
        let mut pages = Pages::new(&self.sql, lines.limits(), spent, &ids, buckets);
        let mut waiting = page.iter();
        let mut current: Option<Walk<'_>> = None;
        while let Some(rows) = pages.next().await? {
            for row in &rows {
                let series = row.int(0)?;
                let walk = loop {
                    match &mut current {
                        Some(walk) if walk.series == series => break walk,
                        before => {
                            let next = waiting.next();
                            let next =
                                next.ok_or_else(|| Error::corrupt("partials in disorder"))?;
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
    /// The same with the values of dimensions as they are stored.
    fn as_stored(&self) -> Self {
        let stored = self.filter.iter().map(|(name, values)| {
            (name.clone(), values.iter().cloned().map(bounded).collect::<BTreeSet<String>>())
        });
        Self { filter: stored.collect(), ..self.clone() }
    }

    /// The group that usage counts for; none if the filter leaves it out.
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
    /// The window of a moment. Each starts where the one before ends.
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
        lines: &mut Lines<'_>,
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
        gathered: &Gathered,
        final_before: Timestamp,
    ) -> Result<Line> {
        let answer = match self.op {
            Op::TimeWeighted => gathered.area.map(Answer::exact),
            op => gathered.partial.value(op, self.quantile_milli, None)?,
        };
        let provisional = match (&gathered.provisional, self.op) {
            (None, _) => None,
            // How long a value will have held is not known yet.
            (Some(partial), Op::TimeWeighted) => {
                Some((Answer::exact(Decimal::ZERO), partial.count()))
            }
            (Some(partial), op) => {
                let answer = partial.value(op, self.quantile_milli, None)?;
                answer.map(|answer| (answer, partial.count()))
            }
        };
        Ok(Line {
            start: span.start,
            end: span.end,
            group,
            answer,
            count: gathered.partial.count(),
            is_final: span.end <= final_before,
            provisional,
        })
    }
}

fn too_much(what: &str, most: usize) -> Error {
    Error::invalid(format!(
        "this asks for more than {most} {what}: ask for less time, fewer customers or longer windows"
    ))
}
