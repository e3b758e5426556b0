//! Hours as the clocks of a zone show them.
//!
//! Where clocks go back, an hour is shown twice (or once and a half): these are two periods, and their keys end in `a`
//! and `b`, as in the trade with energy. All other keys are plain.
//!
//! Guarantees: an hour never spans a change of the clocks; keys of one zone are unique and sort by time. Leaves to
//! others: hours that are counted from an anchor ([`super::CycleLength::Hours`]).

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::kind::{check_year, two_digits, year_digits};
use super::{Calendar, PeriodKind, outside};
use crate::error::{Error, Result};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// No zone is further from UTC, and so is no clock from one that shows the same hour.
const OFFSET_MAX: SignedDuration = SignedDuration::from_hours(26);
/// What tells hours with the same name apart, in order.
const SUFFIXES: [&str; 4] = ["a", "b", "c", "d"];

/// Moments at which the clocks show one hour, without interruption.
struct Stretch {
    start: Timestamp,
    end: Timestamp,
}

impl Calendar {
    pub(super) fn hour_at(&self, kind: &PeriodKind, moment: Timestamp) -> Result<super::Period> {
        let civil = self.zone.to_datetime(moment);
        let hour = civil.date().at(civil.hour(), 0, 0, 0);
        let stretches = self.stretches(hour)?;
        let found = stretches.iter().position(|one| one.start <= moment && moment < one.end);
        let suffix = match (found, stretches.len()) {
            (Some(0), 1) => Some(""),
            (Some(at), _) => SUFFIXES.get(at).copied(),
            (None, _) => None,
        };
        let (Some(at), Some(suffix)) = (found, suffix) else {
            return Err(Error::invalid(format!("no hour at {moment} in {}", self.name)));
        };
        let key = hour_key(hour)? + suffix;
        self.period(kind, key, stretches[at].start, stretches[at].end)
    }

    pub(super) fn hour_of_key(&self, kind: &PeriodKind, key: &str) -> Result<super::Period> {
        let refuse = |why: &str| {
            let shown: String = key.chars().take(32).collect();
            Err(Error::invalid(format!("{shown:?} is no hourly period in {}: {why}", self.name)))
        };
        let Some((hour, suffix)) = split_key(key) else {
            return refuse("hours are named like 2026011308");
        };
        let stretches = self.stretches(hour)?;
        let at = match (stretches.len(), suffix) {
            (0, _) => return refuse("the clocks skip this hour"),
            (1, "") => 0,
            (1, _) => return refuse("the clocks show this hour once, so it has no letter"),
            (_, "") => return refuse("the clocks show this hour twice, name it with a or b"),
            _ => SUFFIXES.iter().position(|one| *one == suffix).unwrap_or(SUFFIXES.len()),
        };
        let Some(stretch) = stretches.get(at) else { return refuse("there is no such letter") };
        self.period(kind, key.to_owned(), stretch.start, stretch.end)
    }

    /// All the times that the clocks show the hour that begins at `hour`, in order.
    fn stretches(&self, hour: DateTime) -> Result<Vec<Stretch>> {
        let near = TimeZone::UTC.to_timestamp(hour).map_err(outside)?;
        let (from, to) = match (near.checked_sub(OFFSET_MAX), near.checked_add(OFFSET_MAX + HOUR)) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(error), _) | (_, Err(error)) => return Err(outside(error)),
        };
        // The clocks keep one offset from each of these moments to the next.
        let mut changes = vec![(from, self.zone.to_offset(from))];
        for change in self.zone.following(from).take_while(|change| change.timestamp() < to) {
            if changes.last().is_none_or(|&(_, offset)| offset != change.offset()) {
                changes.push((change.timestamp(), change.offset()));
            }
        }
        let ends = changes.iter().skip(1).map(|&(at, _)| at).chain([to]);
        let mut stretches = Vec::new();
        for (&(since, offset), until) in changes.iter().zip(ends) {
            let start = offset.to_timestamp(hour).map_err(outside)?;
            let end = start.checked_add(HOUR).map_err(outside)?;
            let (start, end) = (start.max(since), end.min(until));
            if start < end {
                stretches.push(Stretch { start, end });
            }
        }
        Ok(stretches)
    }
}

fn hour_key(hour: DateTime) -> Result<String> {
    check_year(hour.date())?;
    Ok(format!("{:04}{:02}{:02}{:02}", hour.year(), hour.month(), hour.day(), hour.hour()))
}

/// The hour that a key names, and its letter.
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
