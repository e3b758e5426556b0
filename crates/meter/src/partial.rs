//! Partials: mergeable summaries of one meter in one bucket and, merged, in one period.
//!
//! Count, sum, minimum, maximum, first and last are always kept. Event types may also request the set of unique items
//! (exact up to `UNIQUE_EXACT_MAX`, beyond with a standard error of 0.81 %), a sketch of the distribution (quantiles
//! with a relative error below 1/128) and the area of time-weighted values (exact).
//!
//! Guarantees: a partial, and every answer from it, depends only on its events, not on their order or on how they were
//! split. Time-weighted values need events and partials in order; a violation is reported. An overflow is an error and
//! leaves the partial unchanged. Leaves to others: reading events again when one came out of order.

mod codec;
mod op_result;
mod sketch;
#[cfg(test)]
mod tests;
mod unique;

use logmill_io::Timestamp;

use crate::decimal::{Decimal, SCALE_MAX};
use crate::error::{Error, Result};
use crate::settings::{EventType, Op};
use sketch::Sketch;
use unique::Unique;

pub(crate) use codec::HEAD_BYTES;
pub use op_result::OpResult;
pub(crate) use op_result::Window;

/// Position of an event in the order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    /// When it happened.
    pub time: Timestamp,
    pub received: Timestamp,
    /// Order among events received together.
    pub seq: i64,
}

/// One event, as partials see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    pub at: Position,
    pub value: Decimal,
    /// The item that `unique` counts; an event without it adds nothing to that count.
    pub unique: Option<&'a [u8]>,
}

/// The optional parts of a partial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct OptionalParts {
    /// The set of unique items.
    pub unique: bool,
    /// The distribution of values.
    pub sketch: bool,
    /// Values weighted by the time that they held.
    pub weighted: bool,
}

impl From<&EventType> for OptionalParts {
    fn from(event_type: &EventType) -> Self {
        Self {
            unique: event_type.keeps(Op::Unique),
            sketch: event_type.keeps(Op::Percentile),
            weighted: event_type.keeps(Op::TimeWeighted),
        }
    }
}

impl OptionalParts {
    /// The parts that one operation needs.
    pub(crate) fn for_op(op: Op) -> Self {
        Self {
            unique: op == Op::Unique,
            sketch: op == Op::Percentile,
            weighted: op == Op::TimeWeighted,
        }
    }
}

/// Result of adding a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum AddOutcome {
    Done,
    /// It precedes the last one, and time-weighted values need their order: nothing changed, and the bucket must be
    /// recomputed from its events.
    OutOfOrder,
}

/// Summary of the events of one meter over a range of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partial {
    keeps: OptionalParts,
    /// `None` while there are no events.
    facts: Option<Facts>,
}

/// Facts that exist only with at least one event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    count: u64,
    sum: Decimal,
    min: Decimal,
    max: Decimal,
    /// Ties of positions are broken by the values, so that the order of arrival does not show.
    first: (Position, Decimal),
    last: (Position, Decimal),
    /// Each of these is present if [`OptionalParts`] requests it.
    unique: Option<Unique>,
    sketch: Option<Sketch>,
    /// The sum of values times the milliseconds that they held, from the first event to the last.
    area: Option<Decimal>,
}

impl Partial {
    pub(crate) fn new(keeps: OptionalParts) -> Self {
        Self { keeps, facts: None }
    }

    pub(crate) fn keeps(&self) -> OptionalParts {
        self.keeps
    }

    /// Number of events.
    pub(crate) fn count(&self) -> u64 {
        self.facts.as_ref().map_or(0, |facts| facts.count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.facts.is_none()
    }

    /// The first event and its value.
    #[cfg(test)]
    pub(crate) fn first(&self) -> Option<(Position, Decimal)> {
        self.facts.as_ref().map(|facts| facts.first)
    }

    /// The last event and its value.
    pub(crate) fn last(&self) -> Option<(Position, Decimal)> {
        self.facts.as_ref().map(|facts| facts.last)
    }

    /// Approximate memory of the optional parts.
    pub(crate) fn extra_bytes(&self) -> usize {
        let Some(facts) = &self.facts else { return 0 };
        facts.unique.as_ref().map_or(0, Unique::bytes)
            + facts.sketch.as_ref().map_or(0, Sketch::bytes)
    }

    pub(crate) fn add(&mut self, sample: &Sample<'_>) -> Result<AddOutcome> {
        if sample.value.scale() > SCALE_MAX {
            return Err(Error::invalid(format!("a value has at most {SCALE_MAX} decimal places")));
        }
        let Some(facts) = &mut self.facts else {
            self.facts = Some(Facts::of(self.keeps, sample)?);
            return Ok(AddOutcome::Done);
        };
        facts.add(sample)
    }

    /// Drops optional parts that are not in `keeps`. A requested part that is missing is an error: it was not yet
    /// configured when the events were recorded.
    pub(crate) fn reduced(self, keeps: OptionalParts) -> Result<Self> {
        let has = self.keeps;
        if (keeps.unique && !has.unique)
            || (keeps.sketch && !has.sketch)
            || (keeps.weighted && !has.weighted)
        {
            return Err(Error::invalid(
                "some usage was recorded before this operation was configured: run `logmill meter recount --repair`",
            ));
        }
        let facts = self.facts.map(|facts| Facts {
            unique: facts.unique.filter(|_| keeps.unique),
            sketch: facts.sketch.filter(|_| keeps.sketch),
            area: facts.area.filter(|_| keeps.weighted),
            ..facts
        });
        Ok(Self { keeps, facts })
    }

    /// Adds the events of another partial with the same optional parts. With time-weighted values, all of its events
    /// must come after those of this one.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<()> {
        if self.keeps != other.keeps {
            return Err(Error::invalid("partials with different optional parts cannot be merged"));
        }
        match (&mut self.facts, &other.facts) {
            (_, None) => Ok(()),
            (None, Some(_)) => {
                self.facts.clone_from(&other.facts);
                Ok(())
            }
            (Some(facts), Some(others)) => facts.merge(others),
        }
    }
}

impl Facts {
    fn of(keeps: OptionalParts, sample: &Sample<'_>) -> Result<Self> {
        let value = sample.value;
        let at = (sample.at, value);
        let mut unique = keeps.unique.then(Unique::default);
        let mut sketch = keeps.sketch.then(Sketch::default);
        if let Some(sketch) = &mut sketch {
            sketch.add(&value)?;
        }
        if let (Some(unique), Some(thing)) = (&mut unique, sample.unique) {
            unique.add(thing);
        }
        let area = keeps.weighted.then_some(Decimal::ZERO);
        Ok(Self {
            count: 1,
            sum: value,
            min: value,
            max: value,
            first: at,
            last: at,
            unique,
            sketch,
            area,
        })
    }

    fn add(&mut self, sample: &Sample<'_>) -> Result<AddOutcome> {
        let value = sample.value;
        let at = (sample.at, value);
        if self.area.is_some() && at < self.last {
            return Ok(AddOutcome::OutOfOrder);
        }
        // Everything that can fail precedes the first change.
        let area = match self.area {
            Some(area) => Some(plus(area, held(&self.last, sample.at.time)?)?),
            None => None,
        };
        let count = self.count.checked_add(1).ok_or_else(too_many)?;
        let sum = plus(self.sum, value)?;
        if let Some(sketch) = &mut self.sketch {
            sketch.add(&value)?;
        }
        if let (Some(unique), Some(thing)) = (&mut self.unique, sample.unique) {
            unique.add(thing);
        }
        (self.area, self.count, self.sum) = (area, count, sum);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.first = self.first.min(at);
        self.last = self.last.max(at);
        Ok(AddOutcome::Done)
    }

    fn merge(&mut self, other: &Self) -> Result<()> {
        let area = match (self.area, other.area) {
            (Some(area), Some(more)) => {
                if other.first < self.last {
                    return Err(Error::conflict("partials of time-weighted values overlap"));
                }
                let between = held(&self.last, other.first.0.time)?;
                Some(plus(plus(area, between)?, more)?)
            }
            _ => None,
        };
        let count = self.count.checked_add(other.count).ok_or_else(too_many)?;
        let sum = plus(self.sum, other.sum)?;
        if let (Some(sketch), Some(others)) = (&mut self.sketch, &other.sketch) {
            sketch.merge(others);
        }
        if let (Some(unique), Some(others)) = (&mut self.unique, &other.unique) {
            unique.merge(others);
        }
        (self.area, self.count, self.sum) = (area, count, sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        Ok(())
    }
}

/// The area of a value from its event until a moment.
fn held(since: &(Position, Decimal), until: Timestamp) -> Result<Decimal> {
    area(since.1, since.0.time, until)
}

/// A value times the milliseconds between two moments.
fn area(value: Decimal, from: Timestamp, to: Timestamp) -> Result<Decimal> {
    let passed = to.millis().checked_sub(from.millis()).and_then(|ms| u64::try_from(ms).ok());
    let passed = passed.ok_or_else(|| Error::conflict("time-weighted values are out of order"))?;
    value.checked_mul_u64(passed).ok_or_else(too_large)
}

fn plus(one: Decimal, other: Decimal) -> Result<Decimal> {
    one.checked_add(other).ok_or_else(too_large)
}

fn too_large() -> Error {
    Error::invalid("the sum of these values is too large")
}

fn too_many() -> Error {
    Error::invalid("there are too many events")
}
