//! Hours as the clocks of a zone show them.
//!
//! When clocks go back, an hour is shown twice (or one and a half times): these are two periods, whose keys end in `a`
//! and `b`, as in energy trading. All other keys are plain.
//!
//! Guarantees: an hour never spans a clock change; keys of one zone are unique and sort by time. Leaves to others:
//! hours that are counted from an anchor ([`super::CycleLength::Hours`]).

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::kind::{check_year, two_digits, year_digits};
use super::{Calendar, PeriodKind, outside};
use crate::error::{Error, Result};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// Upper bound of any zone's offset from UTC.
const OFFSET_MAX: SignedDuration = SignedDuration::from_hours(26);
/// Distinguish hours with the same name, in order.
const SUFFIXES: [&str; 4] = ["a", "b", "c", "d"];

/// An uninterrupted range of time in which the clocks show one hour.
struct HourSpan {
    start: Timestamp,
    end: Timestamp,
}

impl Calendar {
    pub(super) fn hour_at(&self, kind: &PeriodKind, moment: Timestamp) -> Result<super::Period> {
        let civil = self.zone.to_datetime(moment);
        let hour = civil.date().at(civil.hour(), 0, 0, 0);
        let hour_spans = self.hour_spans(hour)?;
        let found = hour_spans.iter().position(|one| one.start <= moment && moment < one.end);
        let suffix = match (found, hour_spans.len()) {
            (Some(0), 1) => Some(""),
            (Some(at), _) => SUFFIXES.get(at).copied(),
            (None, _) => None,
        };
        let (Some(at), Some(suffix)) = (found, suffix) else {
            return Err(Error::invalid(format!("no hour at {moment} in {}", self.name)));
        };
        let key = hour_key(hour)? + suffix;
        self.period(kind, key, hour_spans[at].start, hour_spans[at].end)
    }

    pub(super) fn hour_of_key(&self, kind: &PeriodKind, key: &str) -> Result<super::Period> {
        let refuse = |why: &str| {
            let shown: String = key.chars().take(32).collect();
            Err(Error::invalid(format!(
                "{shown:?} is not a key of an hourly period in {}: {why}",
                self.name
            )))
        };
        let Some((hour, suffix)) = split_key(key) else {
            return refuse("hours are written like 2026011308");
        };
        let hour_spans = self.hour_spans(hour)?;
        let at = match (hour_spans.len(), suffix) {
            (0, _) => return refuse("the clocks skip this hour"),
            (1, "") => 0,
            (1, _) => return refuse("the clocks show this hour once, so it has no letter"),
            (_, "") => return refuse("the clocks show this hour twice: append a or b"),
            _ => SUFFIXES.iter().position(|one| *one == suffix).unwrap_or(SUFFIXES.len()),
        };
        let Some(span) = hour_spans.get(at) else { return refuse("there is no such letter") };
        self.period(kind, key.to_owned(), span.start, span.end)
    }

    /// All ranges of time in which the clocks show the hour that begins at `hour`, in order.
    fn hour_spans(&self, hour: DateTime) -> Result<Vec<HourSpan>> {
        let near = TimeZone::UTC.to_timestamp(hour).map_err(outside)?;
        let (from, to) = match (near.checked_sub(OFFSET_MAX), near.checked_add(OFFSET_MAX + HOUR)) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(error), _) | (_, Err(error)) => return Err(outside(error)),
        };
        // The offset is constant from each of these moments to the next.
        let mut changes = vec![(from, self.zone.to_offset(from))];
        for change in self.zone.following(from).take_while(|change| change.timestamp() < to) {
            if changes.last().is_none_or(|&(_, offset)| offset != change.offset()) {
                changes.push((change.timestamp(), change.offset()));
            }
        }
        let ends = changes.iter().skip(1).map(|&(at, _)| at).chain([to]);
        let mut hour_spans = Vec::new();
        for (&(since, offset), until) in changes.iter().zip(ends) {
            let start = offset.to_timestamp(hour).map_err(outside)?;
            let end = start.checked_add(HOUR).map_err(outside)?;
            let (start, end) = (start.max(since), end.min(until));
            if start < end {
                hour_spans.push(HourSpan { start, end });
            }
        }
        Ok(hour_spans)
    }
}

fn hour_key(hour: DateTime) -> Result<String> {
    check_year(hour.date())?;
    Ok(format!("{:04}{:02}{:02}{:02}", hour.year(), hour.month(), hour.day(), hour.hour()))
}

/// The hour in a key, and its letter.
fn split_key(key: &str) -> Option<(DateTime, &str)> {
    let (digits, suffix) = key.split_at_checked(10)?;
    let date = Date::new(
        year_digits(digits.get(..4)?)?,
        two_digits(digits.get(4..6)?)?,
        two_digits(digits.get(6..8)?)?,
    );
    let time = jiff::civil::Time::new(two_digits(digits.get(8..)?)?, 0, 0, 0);
    Some((date.ok()?.to_datetime(time.ok()?), suffix))
}
