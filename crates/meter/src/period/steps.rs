//! Steps: where the periods of a kind begin in the calendar, as multiples of one length from an anchor.
//!
//! Guarantees: steps are strictly ordered; months are counted from the anchor, so that a cycle that begins on the 31st
//! returns to it after February. Leaves to others: which moment a civil time is in a zone.

use jiff::Span;
use jiff::civil::{Date, DateTime, date};

use super::kind::{CycleLength, PeriodKind};
use crate::error::{Error, Result};

/// A length in calendar units.
#[derive(Clone, Copy, Debug)]
enum Length {
    Days(i64),
    Months(i64),
}

/// The beginnings of the periods of one kind.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) anchor: DateTime,
    length: Length,
    /// The length in elapsed hours, if it is not in calendar units.
    pub(super) hours: Option<i64>,
}

impl Steps {
    /// The steps of a kind; `None` for hours as clocks show them.
    pub(super) fn of(kind: &PeriodKind) -> Option<Self> {
        let first = date(1970, 1, 1);
        let monday = date(1970, 1, 5);
        let (anchor, length) = match kind {
            PeriodKind::Hourly => return None,
            PeriodKind::Daily => (first.at(0, 0, 0, 0), Length::Days(1)),
            PeriodKind::Weekly => (monday.at(0, 0, 0, 0), Length::Days(7)),
            PeriodKind::Monthly => (first.at(0, 0, 0, 0), Length::Months(1)),
            PeriodKind::Yearly => (first.at(0, 0, 0, 0), Length::Months(12)),
            PeriodKind::Custom(cycle) => match cycle.length {
                // The calendar length is not used.
                CycleLength::Hours(hours) => {
                    let hours = Some(i64::from(hours).max(1));
                    return Some(Self { anchor: cycle.anchor, length: Length::Days(1), hours });
                }
                CycleLength::Days(days) => (cycle.anchor, Length::Days(i64::from(days).max(1))),
                CycleLength::Weeks(weeks) => {
                    (cycle.anchor, Length::Days(i64::from(weeks).max(1) * 7))
                }
                CycleLength::Months(months) => {
                    (cycle.anchor, Length::Months(i64::from(months).max(1)))
                }
            },
        };
        Some(Self { anchor, length, hours: None })
    }

    /// The beginning of the step with this index.
    pub(super) fn start(&self, index: i64) -> Result<DateTime> {
        let date = match self.length {
            Length::Days(days) => index
                .checked_mul(days)
                .and_then(|days| Span::new().try_days(days).ok())
                .and_then(|days| self.anchor.date().checked_add(days).ok()),
            Length::Months(months) => index
                .checked_mul(months)
                .and_then(|months| month_number(self.anchor.date()).checked_add(months))
                .and_then(|month| day_of_month(month, self.anchor.day())),
        };
        let date = date.ok_or_else(|| Error::invalid("the time is outside of the calendar"))?;
        Ok(date.to_datetime(self.anchor.time()))
    }

    /// The index of the step that contains a civil time.
    pub(super) fn index(&self, civil: DateTime) -> Result<i64> {
        let index = match self.length {
            Length::Days(days) => days_between(self.anchor.date(), civil.date()).div_euclid(days),
            Length::Months(months) => {
                let between = month_number(civil.date()) - month_number(self.anchor.date());
                between.div_euclid(months)
            }
        };
        // The step begins within the day or month of `civil` or earlier, but within it perhaps after `civil`.
        Ok(if self.start(index)? > civil { index - 1 } else { index })
    }
}

fn days_between(from: Date, to: Date) -> i64 {
    from.duration_until(to).as_hours() / 24
}

/// Months since year zero.
fn month_number(date: Date) -> i64 {
    i64::from(date.year()) * 12 + i64::from(date.month()) - 1
}

/// This day of a month, or the month's last one.
fn day_of_month(month_number: i64, day: i8) -> Option<Date> {
    let year = i16::try_from(month_number.div_euclid(12)).ok()?;
    let month = i8::try_from(month_number.rem_euclid(12) + 1).ok()?;
    let first = Date::new(year, month, 1).ok()?;
    Date::new(year, month, day.min(first.days_in_month())).ok()
}
