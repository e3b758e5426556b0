//! Figures: the partials of a customer, merged into the numbers of a period.
//!
//! Guarantees: memory is bounded by one series at a time. A hash of revisions identifies the input. A value that holds
//! since before a period counts in it, even without events since. Leaves to others: storing the figures.

use std::collections::BTreeMap;
use std::ops::Range;

use logmill_io::{Sql, Timestamp};

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::partial::{OpResult, OptionalParts, Partial, Window};
use crate::period::Period;
use crate::settings::{EventType, Op, Settings};
use crate::store::{partials, series};

/// The figure of one event type in one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    /// The result of the operation.
    pub(crate) result: OpResult,
    /// Number of events behind it.
    pub count: u64,
    /// The value at the end, which carries over into the next period; only for time-weighted meters.
    pub(crate) closing: Option<Decimal>,
}

impl Figure {
    /// One figure over all groups of an event type.
    pub(crate) async fn compute(
        sql: &Sql,
        series: &[i64],
        event_type: &EventType,
        op: Op,
        of: PartOf<'_>,
        revisions: &mut blake3::Hasher,
    ) -> Result<Option<Self>> {
        if !event_type.keeps(op) {
            return Err(Error::invalid(format!(
                "{op:?} is not kept for this event type: add it to `also`"
            )));
        }
        let keeps = OptionalParts::for_op(op);
        // Areas of groups are added up, not merged, because each group has its own timeline.
        let flat = OptionalParts { weighted: false, ..keeps };
        let mut merged = Partial::new(flat);
        let mut area: Option<Decimal> = None;
        let mut closing: Option<Decimal> = None;
        for series in series {
            let buckets = of.period.buckets();
            let part = read_series(sql, *series, &buckets, keeps, revisions).await?;
            if op == Op::TimeWeighted {
                let (own, last) = area_of(sql, *series, part.as_ref(), event_type, of).await?;
                // The area depends on what preceded the period, and on how much of the period has passed.
                for value in [own, last] {
                    revisions.update(
                        value.map(|value| value.to_string()).unwrap_or_default().as_bytes(),
                    );
                    revisions.update(b";");
                }
                add(&mut area, own)?;
                add(&mut closing, last)?;
            }
            if let Some(part) = part {
                merged.merge(&part.reduced(flat)?)?;
            }
        }
        let count = merged.count();
        let result = match op {
            Op::TimeWeighted => area.map(OpResult::exact),
            op => merged.value(op, event_type.quantile_milli, None)?,
        };
        Ok(result.map(|result| Self { result, count, closing }))
    }
}

/// The numbers of an aggregate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) types: BTreeMap<String, Figure>,
    /// A hash of the revisions of all partials that were used.
    pub(crate) inputs: Vec<u8>,
}

impl Figures {
    /// The figures of all event types of a customer in a period up to a moment.
    pub(crate) async fn of_customer(
        sql: &Sql,
        settings: &Settings,
        customer: i64,
        period: &Period,
        until: Timestamp,
    ) -> Result<Self> {
        let mut revisions = blake3::Hasher::new();
        let mut by_type: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (series, name) in series::of_customer(sql, customer).await? {
            by_type.entry(name).or_default().push(series);
        }
        let mut types = BTreeMap::new();
        for (name, series) in by_type {
            let figure = match settings.events.get(&name) {
                Some(known) => {
                    let part = PartOf { period, until };
                    Figure::compute(sql, &series, known, known.op, part, &mut revisions).await?
                }
                None => {
                    expect_no_usage(sql, &name, &series, period).await?;
                    None
                }
            };
            types.extend(figure.map(|figure| (name, figure)));
        }
        Ok(Self { types, inputs: revisions.finalize().as_bytes().to_vec() })
    }

    /// Whether the next period has usage even without events.
    pub(crate) fn carries_over(&self) -> bool {
        let mut closings = self.types.values().filter_map(|figure| figure.closing);
        closings.any(|closing| closing != Decimal::ZERO)
    }
}

/// A period up to a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartOf<'a> {
    pub(crate) period: &'a Period,
    pub(crate) until: Timestamp,
}

impl PartOf<'_> {
    /// Until when a value is known to hold: an event may be slightly ahead of our clock.
    fn end(&self, part: &Partial) -> Timestamp {
        let last = part.last().map_or(self.period.start, |(at, _)| at.time);
        self.period.end.min(self.until.max(last))
    }
}

/// Fails if a type that is no longer configured has usage: it must not be left out silently.
async fn expect_no_usage(sql: &Sql, name: &str, series: &[i64], period: &Period) -> Result<()> {
    for series in series {
        let mut unused = blake3::Hasher::new();
        let buckets = period.buckets();
        let keeps = OptionalParts::for_op(Op::Count);
        let part = read_series(sql, *series, &buckets, keeps, &mut unused).await?;
        if part.is_some() {
            return Err(Error::invalid(format!(
                "event type {name} has usage but is not configured"
            )));
        }
    }
    Ok(())
}

/// The area under one series over a period that may still be in progress, and the value at its end.
async fn area_of(
    sql: &Sql,
    series: i64,
    part: Option<&Partial>,
    event_type: &EventType,
    of: PartOf<'_>,
) -> Result<(Option<Decimal>, Option<Decimal>)> {
    let opening = opening(sql, series, of.period.buckets().start).await?;
    let empty = Partial::new(OptionalParts::for_op(Op::TimeWeighted));
    let part = part.unwrap_or(&empty);
    let window = Window { start: of.period.start, end: of.end(part), opening };
    let area = part.value(Op::TimeWeighted, event_type.quantile_milli, Some(window))?;
    Ok((area.map(|area| area.value), part.last().map_or(opening, |(_, last)| Some(last))))
}

fn add(sum: &mut Option<Decimal>, more: Option<Decimal>) -> Result<()> {
    if let Some(more) = more {
        let added = sum.unwrap_or(Decimal::ZERO).checked_add(more);
        *sum = Some(added.ok_or_else(|| {
            Error::invalid("the sum exceeds the largest number that can be stored")
        })?);
    }
    Ok(())
}

/// Reads and merges the partials of one series, in order; `None` if there are none.
pub(crate) async fn read_series(
    on: &Sql,
    series: i64,
    buckets: &Range<i64>,
    keeps: OptionalParts,
    revisions: &mut blake3::Hasher,
) -> Result<Option<Partial>> {
    let mut merged: Option<Partial> = None;
    for row in &partials::of_series(&on.reading(), &[series], buckets, i64::MAX).await? {
        let partial = Partial::decode(&row.blob(3)?)?.reduced(keeps)?;
        for number in [series, row.int(1)?, row.int(2)?] {
            revisions.update(&number.to_be_bytes());
        }
        match &mut merged {
            None => merged = Some(partial),
            Some(merged) => merged.merge(&partial)?,
        }
    }
    Ok(merged)
}

/// The value of a series at the start of a bucket: the last one before it.
pub(crate) async fn opening(on: &Sql, series: i64, bucket: i64) -> Result<Option<Decimal>> {
    let before = partials::last_before(&on.reading(), series, bucket).await?;
    Ok(before.and_then(|partial| partial.last().map(|(_, value)| value)))
}
