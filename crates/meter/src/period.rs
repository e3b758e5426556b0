//! Periods: buckets of fifteen minutes, and the calendar periods made of them.
//!
//! A [`Calendar`] knows one time zone and finds the [`Period`] of a kind that contains a moment, has a key, or is next
//! to another. The time zone database is compiled in, so two machines never disagree.
//!
//! Guarantees: the periods of one kind follow each other without gap or overlap, so each moment is in exactly one. Keys
//! are unique, sort by time and identify their period. Days of 23 and 25 hours, repeated hours and days that a zone
//! skipped are handled as the local clocks showed them. A period whose bounds are not on the grid of buckets is an
//! error that says so. Leaves to others: what is counted in a period.

mod hour;
mod kind;
mod steps;
#[cfg(test)]
mod tests;
mod time;

use std::ops::Range;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use logmill_io::Timestamp;

use crate::error::{Error, Result};
use steps::Steps;

pub use kind::{Cycle, CycleLength, PeriodKind};
pub use time::{PeriodFields, format_time, parse_time};

pub const BUCKET_MS: i64 = 15 * 60 * 1_000;

/// Upper bound of how many periods a moment can be from where its civil time suggests; zones have caused at most one.
const STEPS_OFF_MAX: usize = 8;

/// Fifteen minutes of UTC, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bucket(pub i64);

impl Bucket {
    /// The bucket that contains a moment.
    pub(crate) fn of(time: Timestamp) -> Self {
        Self(time.millis().div_euclid(BUCKET_MS))
    }

    pub(crate) fn start(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(BUCKET_MS))
    }

    /// Exclusive.
    #[cfg(test)]
    pub(crate) fn end(self) -> Timestamp {
        Timestamp(self.0.saturating_add(1).saturating_mul(BUCKET_MS))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    pub kind: PeriodKind,
    /// Identifies the period within its kind, such as `20260113`.
    pub key: String,
    /// On the grid of buckets.
    pub start: Timestamp,
    /// Exclusive, on the grid of buckets.
    pub end: Timestamp,
}

impl Period {
    pub(crate) fn buckets(&self) -> Range<i64> {
        Bucket::of(self.start).0..Bucket::of(self.end).0
    }

    /// The last millisecond, as shown to users: `…59.999Z`.
    pub fn end_inclusive(&self) -> Timestamp {
        Timestamp(self.end.millis().saturating_sub(1))
    }
}

/// The periods of one time zone.
#[derive(Clone, Debug)]
pub struct Calendar {
    name: String,
    zone: TimeZone,
}

impl Calendar {
    /// The calendar of the zone with this IANA name, such as `Europe/Berlin`.
    pub fn new(zone_name: &str) -> Result<Self> {
        let zone = TimeZoneDatabase::bundled().get(zone_name).map_err(|_| {
            let shown: String = zone_name.chars().take(64).collect();
            Error::invalid(format!(
                "{shown:?} is not a time zone: use an IANA name such as Europe/Berlin"
            ))
        })?;
        let name = zone.iana_name().unwrap_or("UTC").to_owned();
        Ok(Self { name, zone })
    }

    /// The IANA name.
    pub fn zone(&self) -> &str {
        &self.name
    }

    /// The period of a kind that contains a moment.
    pub fn period_at(&self, kind: &PeriodKind, time: Timestamp) -> Result<Period> {
        let moment = moment(time)?;
        let Some(steps) = Steps::of(kind) else { return self.hour_at(kind, moment) };
        if let Some(hours) = steps.hours {
            return self.elapsed_at(kind, &steps, hours, moment);
        }
        let mut index = steps.index(self.zone.to_datetime(moment))?;
        for _ in 0..STEPS_OFF_MAX {
            let (start, end) = self.bounds(&steps, index)?;
            if moment < start {
                index -= 1;
            } else if moment >= end {
                index += 1;
            } else {
                let key = kind.key_of(steps.start(index)?)?;
                return self.period(kind, key, start, end);
            }
        }
        Err(Error::invalid(format!("no period at {} in {}", format_time(time), self.name)))
    }

    pub(crate) fn period_of_key(&self, kind: &PeriodKind, key: &str) -> Result<Period> {
        let Some(steps) = Steps::of(kind) else { return self.hour_of_key(kind, key) };
        let unknown = || {
            let shown: String = key.chars().take(32).collect();
            Error::invalid(format!(
                "{shown:?} is not a key of a {} period in {}",
                kind.name(),
                self.name
            ))
        };
        let civil = kind.civil_of(key).ok_or_else(unknown)?;
        if let Some(hours) = steps.hours {
            let start = TimeZone::UTC.to_timestamp(civil).map_err(|_| unknown())?;
            let period = self.elapsed_at(kind, &steps, hours, start)?;
            return if period.key == key { Ok(period) } else { Err(unknown()) };
        }
        let index = steps.index(civil)?;
        let (start, end) = self.bounds(&steps, index)?;
        // A day that a zone skipped contains no moment.
        if steps.start(index)? != civil || start == end {
            return Err(unknown());
        }
        self.period(kind, key.to_owned(), start, end)
    }

    pub(crate) fn next(&self, period: &Period) -> Result<Period> {
        self.period_at(&period.kind, period.end)
    }

    pub(crate) fn previous(&self, period: &Period) -> Result<Period> {
        self.period_at(&period.kind, Timestamp(period.start.millis().saturating_sub(1)))
    }

    /// The periods of a kind that overlap `[from, to)`, in order, up to the first error. There can be many: the caller
    /// must bound them.
    #[cfg(test)]
    pub(crate) fn periods(
        &self,
        kind: &PeriodKind,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = Result<Period>> {
        let mut at = Some(from);
        std::iter::from_fn(move || {
            let time = at.take().filter(|&time| time < to)?;
            let found = self.period_at(kind, time);
            at = found.as_ref().ok().map(|period| period.end);
            Some(found)
        })
    }

    /// The moments at which a step and the next one begin.
    fn bounds(&self, steps: &Steps, index: i64) -> Result<(jiff::Timestamp, jiff::Timestamp)> {
        Ok((self.instant(steps.start(index)?)?, self.instant(steps.start(index + 1)?)?))
    }

    /// The first moment at which the clocks of the zone show `civil` or later. If they show it twice, it is the first
    /// time; if they skip it, the moment of the skip.
    fn instant(&self, civil: DateTime) -> Result<jiff::Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(civil);
        match ambiguous.offset() {
            AmbiguousOffset::Gap { before, .. } => {
                let inside = before.to_timestamp(civil).map_err(outside)?;
                let after = inside.checked_add(jiff::SignedDuration::from_secs(1));
                let jump = self.zone.preceding(after.map_err(outside)?).next();
                Ok(jump.map_or(inside, |jump| jump.timestamp()))
            }
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                ambiguous.earlier().map_err(outside)
            }
        }
    }

    /// A period whose steps are elapsed hours, regardless of clock changes.
    fn elapsed_at(
        &self,
        kind: &PeriodKind,
        steps: &Steps,
        hours: i64,
        moment: jiff::Timestamp,
    ) -> Result<Period> {
        let anchor = self.instant(steps.anchor)?;
        let step_s = hours * 3_600;
        let passed = (moment.as_second() - anchor.as_second()).div_euclid(step_s);
        let start_s = anchor.as_second() + passed * step_s;
        let start = jiff::Timestamp::from_second(start_s).map_err(outside)?;
        let end = jiff::Timestamp::from_second(start_s + step_s).map_err(outside)?;
        let key = kind.key_of(TimeZone::UTC.to_datetime(start))?;
        self.period(kind, key, start, end)
    }

    /// The period with these bounds; an error if they are not on the grid.
    fn period(
        &self,
        kind: &PeriodKind,
        key: String,
        start: jiff::Timestamp,
        end: jiff::Timestamp,
    ) -> Result<Period> {
        for bound in [start, end] {
            if bound.as_millisecond() % BUCKET_MS != 0 {
                return Err(Error::invalid(format!(
                    "the {} period {key} cannot be metered in {}: it has a bound at {bound}, and bounds must fall \
                     on a quarter hour of UTC",
                    kind.name(),
                    self.name,
                )));
            }
        }
        let (start, end) = (Timestamp(start.as_millisecond()), Timestamp(end.as_millisecond()));
        Ok(Period { kind: kind.clone(), key, start, end })
    }
}

fn moment(time: Timestamp) -> Result<jiff::Timestamp> {
    jiff::Timestamp::from_millisecond(time.millis()).map_err(outside)
}

fn outside(_: jiff::Error) -> Error {
    Error::invalid("the time is outside of the years 1 to 9999")
}
