//! Partials: what is known of one meter in one bucket, and, merged, in one period.
//!
//! Count, sum, smallest, largest, first and last are always kept. Only for event types that ask for them there are the
//! set of unique things (exact up to [`UNIQUE_EXACT_MAX`], beyond with a standard error of 0.81 %), a sketch of the
//! distribution (quantiles within 1/128 of themselves) and the area of time-weighted values (exact).
//!
//! Guarantees: a partial depends on its events only, not on their order or on how they were split, and so does
//! every answer; for time-weighted values events come in order and partials are merged in order, or it says so.
//! What overflows is an error and leaves the partial as it was. Leaves to others: reading events again when one
//! came out of order.

mod answer;
mod codec;
mod sketch;
#[cfg(test)]
mod tests;
mod unique;

use logmill_io::Timestamp;

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::settings::{EventType, Op, SCALE_MAX};
use sketch::Sketch;
use unique::Unique;

pub use answer::{Answer, Window};
pub(crate) use codec::HEAD_BYTES;
pub use unique::UNIQUE_EXACT_MAX;

/// Where an event stands in the order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// When it happened.
    pub time: Timestamp,
    /// When it was received.
    pub received: Timestamp,
    /// Its place among those received together.
    pub seq: i64,
}

/// One event, as partials see it.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Where it stands in the order of events.
    pub at: Position,
    /// Its value.
    pub value: Decimal,
    /// What `unique` counts; an event that has no such field adds nothing to that count.
    pub unique: Option<&'a [u8]>,
}

/// What a partial keeps besides what all do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keeps {
    /// The different things.
    pub unique: bool,
    /// The distribution of values.
    pub sketch: bool,
    /// Values by the time that they held.
    pub weighted: bool,
}

impl From<&EventType> for Keeps {
    fn from(event_type: &EventType) -> Self {
        Self {
            unique: event_type.keeps(Op::Unique),
            sketch: event_type.keeps(Op::Percentile),
            weighted: event_type.keeps(Op::TimeWeighted),
        }
    }
}

impl Keeps {
    /// What one operation needs.
    pub fn for_op(op: Op) -> Self {
        Self {
            unique: op == Op::Unique,
            sketch: op == Op::Percentile,
            weighted: op == Op::TimeWeighted,
        }
    }
}

/// What became of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Added {
    /// It counts.
    Done,
    /// It is before the last one, and time-weighted values need their order: nothing changed, and the bucket is to be
    /// computed from its events.
    OutOfOrder,
}

/// What is known of the events of one meter in a stretch of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    keeps: Keeps,
    /// `None` while there are no events.
    facts: Option<Facts>,
}

/// What is known when there are events.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    count: u64,
    sum: Decimal,
    min: Decimal,
    max: Decimal,
    /// Events at one position are told apart by their values, so that no order of arrival is seen.
    first: (Position, Decimal),
    last: (Position, Decimal),
    /// Each of these is kept when [`Keeps`] says so.
    unique: Option<Unique>,
    sketch: Option<Sketch>,
    /// The values times the milliseconds that they held, from the first event to the last.
    area: Option<Decimal>,
}

impl Partial {
    /// One without events.
    pub fn new(keeps: Keeps) -> Self {
        Self { keeps, facts: None }
    }

    /// What it keeps.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// How many events there are.
    pub fn count(&self) -> u64 {
        self.facts.as_ref().map_or(0, |facts| facts.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.facts.is_none()
    }

    /// The first event and its value.
    pub fn first(&self) -> Option<(Position, Decimal)> {
        self.facts.as_ref().map(|facts| facts.first)
    }

    /// The last event and its value.
    pub fn last(&self) -> Option<(Position, Decimal)> {
        self.facts.as_ref().map(|facts| facts.last)
    }

    /// About how much memory it takes besides what all do.
    pub(crate) fn extra_bytes(&self) -> usize {
        let Some(facts) = &self.facts else { return 0 };
        facts.unique.as_ref().map_or(0, Unique::bytes)
            + facts.sketch.as_ref().map_or(0, Sketch::bytes)
    }

    /// Counts one event.
    pub fn add(&mut self, sample: &Sample<'_>) -> Result<Added> {
        if sample.value.scale() > SCALE_MAX {
            return Err(Error::invalid(format!("a value has at most {SCALE_MAX} decimal places")));
        }
        let Some(facts) = &mut self.facts else {
            self.facts = Some(Facts::of(self.keeps, sample)?);
            return Ok(Added::Done);
        };
        facts.add(sample)
    }

    /// The same with less kept, for what needs no more. What is wanted and is not there is an error: it was not yet
    /// wanted when the events came.
    pub fn reduced(self, keeps: Keeps) -> Result<Self> {
        let has = self.keeps;
        if (keeps.unique && !has.unique)
            || (keeps.sketch && !has.sketch)
            || (keeps.weighted && !has.weighted)
        {
            return Err(Error::invalid(
                "some usage was recorded before this was asked to be kept: run `logmill meter recount --repair`",
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

    /// Counts the events of another partial, which keeps the same. When time-weighted values are kept, all of them come
    /// after those of this one.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        if self.keeps != other.keeps {
            return Err(Error::invalid("these partials do not keep the same"));
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
    fn of(keeps: Keeps, sample: &Sample<'_>) -> Result<Self> {
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

    fn add(&mut self, sample: &Sample<'_>) -> Result<Added> {
        let value = sample.value;
        let at = (sample.at, value);
        if self.area.is_some() && at < self.last {
            return Ok(Added::OutOfOrder);
        }
        // All that can fail comes before the first change.
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
        Ok(Added::Done)
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

/// The area of a value that held from its event until a moment.
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
