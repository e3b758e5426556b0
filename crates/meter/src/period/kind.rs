//! The kinds of periods, their notation in settings, and the keys of calendar periods.
//!
//! Guarantees: names are valid in ids; a kind that passes [`PeriodKind::check`] begins on the grid of buckets in every
//! zone whose offset is on it. Leaves to others: the keys of hours, which depend on the clocks of a zone.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, ISOWeekDate, Time, Weekday};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

const CYCLE_NAME_BYTES_MAX: usize = 32;
/// Their names are reserved: cycles cannot use them.
const KINDS: [PeriodKind; 5] = [
    PeriodKind::Hourly,
    PeriodKind::Daily,
    PeriodKind::Weekly,
    PeriodKind::Monthly,
    PeriodKind::Yearly,
];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeriodKind {
    /// An hour, as clocks show it.
    Hourly,
    Daily,
    /// A week of ISO 8601, starting on Monday.
    Weekly,
    Monthly,
    Yearly,
    /// A configured billing cycle.
    Custom(Cycle),
}

/// A billing cycle: periods of one length, before and after an anchor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cycle {
    /// Lowercase letters, digits and hyphens.
    pub name: String,
    /// Local time at which one of its periods begins, such as `2026-01-15T00:00`; on a quarter of an hour.
    #[serde(with = "anchor")]
    pub anchor: DateTime,
    /// Length of each period, such as `1 month`.
    pub length: CycleLength,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CycleLength {
    /// Elapsed hours, regardless of clock changes.
    Hours(u16),
    /// Calendar days.
    Days(u16),
    /// Calendar weeks.
    Weeks(u16),
    /// Calendar months; a day that a month lacks becomes its last day.
    Months(u16),
}

impl PeriodKind {
    /// The name in settings, ids and responses.
    pub fn name(&self) -> &str {
        match self {
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
            Self::Custom(cycle) => &cycle.name,
        }
    }

    /// Refuses a kind that does not fit the grid of buckets, or has an invalid name or length.
    pub(crate) fn check(&self) -> Result<()> {
        let Self::Custom(cycle) = self else { return Ok(()) };
        cycle.check()
    }

    /// The key of the period that begins at a civil time: of UTC for a cycle of hours, of the zone for others.
    pub(super) fn key_of(&self, start: DateTime) -> Result<String> {
        check_year(start.date())?;
        let (year, month, day) = (start.year(), start.month(), start.day());
        let time = (start.hour(), start.minute());
        Ok(match self {
            Self::Hourly => format!("{year:04}{month:02}{day:02}{:02}", time.0),
            Self::Daily => format!("{year:04}{month:02}{day:02}"),
            Self::Weekly => {
                let week = start.date().iso_week_date();
                format!("{:04}{:02}", week.year(), week.week())
            }
            Self::Monthly => format!("{year:04}{month:02}"),
            Self::Yearly => format!("{year:04}"),
            Self::Custom(cycle) => {
                let suffix = if matches!(cycle.length, CycleLength::Hours(_)) { "Z" } else { "" };
                format!("{year:04}{month:02}{day:02}T{:02}{:02}{suffix}", time.0, time.1)
            }
        })
    }

    /// The civil time at which the period with this key would begin; `None` if the key is invalid. Not for hours.
    pub(super) fn civil_of(&self, key: &str) -> Option<DateTime> {
        let year = year_digits(key.get(..4)?)?;
        let pair = |at: usize| two_digits(key.get(at..at + 2)?);
        let (length, date) = match self {
            Self::Hourly => return None,
            Self::Daily => (8, Date::new(year, pair(4)?, pair(6)?).ok()?),
            Self::Weekly => (6, ISOWeekDate::new(year, pair(4)?, Weekday::Monday).ok()?.date()),
            Self::Monthly => (6, Date::new(year, pair(4)?, 1).ok()?),
            Self::Yearly => (4, Date::new(year, 1, 1).ok()?),
            Self::Custom(cycle) => {
                let zulu = matches!(cycle.length, CycleLength::Hours(_));
                let time = Time::new(pair(9)?, pair(11)?, 0, 0).ok()?;
                let expected = if zulu { "Z" } else { "" };
                let fits = key.get(8..9)? == "T" && key.get(13..)? == expected;
                let date = Date::new(year, pair(4)?, pair(6)?).ok()?;
                return fits.then(|| date.to_datetime(time));
            }
        };
        (key.len() == length).then(|| date.at(0, 0, 0, 0))
    }
}

impl Cycle {
    fn check(&self) -> Result<()> {
        let named = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == '-';
        if self.name.is_empty()
            || self.name.len() > CYCLE_NAME_BYTES_MAX
            || !self.name.chars().all(named)
            || KINDS.iter().any(|kind| kind.name() == self.name)
        {
            return Err(Error::invalid(format!(
                "the name of a billing cycle must have 1 to {CYCLE_NAME_BYTES_MAX} lowercase letters, digits and \
                 hyphens, and must not be that of another kind of period"
            )));
        }
        let wrong =
            |what: String| Err(Error::invalid(format!("billing cycle {}: {what}", self.name)));
        if check_year(self.anchor.date()).is_err() {
            return wrong("its anchor is outside the years 1 to 9999".to_owned());
        }
        if self.anchor.minute() % 15 != 0
            || self.anchor.second() != 0
            || self.anchor.subsec_nanosecond() != 0
        {
            return wrong("its anchor must fall on :00, :15, :30 or :45".to_owned());
        }
        let (length, most) = self.length.with_limit();
        if length == 0 || length > most {
            return wrong(format!("its length is {}: it must be 1 to {most}", self.length));
        }
        Ok(())
    }
}

impl CycleLength {
    /// The number, and its maximum.
    fn with_limit(self) -> (u16, u16) {
        match self {
            Self::Hours(hours) => (hours, 8_784),
            Self::Days(days) => (days, 3_660),
            Self::Weeks(weeks) => (weeks, 520),
            Self::Months(months) => (months, 120),
        }
    }
}

impl fmt::Display for CycleLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self {
            Self::Hours(hours) => (hours, "hour"),
            Self::Days(days) => (days, "day"),
            Self::Weeks(weeks) => (weeks, "week"),
            Self::Months(months) => (months, "month"),
        };
        write!(f, "{number} {unit}{}", if *number == 1 { "" } else { "s" })
    }
}

impl FromStr for CycleLength {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            || Error::invalid("a length must look like 6 hours, 30 days, 2 weeks or 1 month");
        let (number, unit) = text.split_once(' ').ok_or_else(wrong)?;
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let number = number.parse().map_err(|_| wrong())?;
        Ok(match unit {
            "hour" | "hours" => Self::Hours(number),
            "day" | "days" => Self::Days(number),
            "week" | "weeks" => Self::Weeks(number),
            "month" | "months" => Self::Months(number),
            _ => return Err(wrong()),
        })
    }
}

impl Serialize for CycleLength {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CycleLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The anchor of a cycle as text.
mod anchor {
    use super::{DateTime, Deserialize, Deserializer, Serializer};

    /// All anchors have the length of this one, which excludes seconds and offsets.
    const EXAMPLE: &str = "2026-01-15T00:00";

    pub(super) fn serialize<S: Serializer>(anchor: &DateTime, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&anchor.strftime("%Y-%m-%dT%H:%M"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DateTime, D::Error> {
        let text = String::deserialize(from)?;
        let anchor = Some(text).filter(|text| text.len() == EXAMPLE.len());
        anchor
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| serde::de::Error::custom(format!("an anchor must look like {EXAMPLE}")))
    }
}

impl Serialize for PeriodKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Custom(cycle) => cycle.serialize(serializer),
            kind => serializer.serialize_str(kind.name()),
        }
    }
}

impl<'de> Deserialize<'de> for PeriodKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrCycle;

        impl<'de> Visitor<'de> for NameOrCycle {
            type Value = PeriodKind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("hourly, daily, weekly, monthly, yearly, or a cycle with name, anchor and length")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<PeriodKind, E> {
                let found = KINDS.into_iter().find(|kind| kind.name() == name);
                found.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(name), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PeriodKind, A::Error> {
                Cycle::deserialize(MapAccessDeserializer::new(map)).map(PeriodKind::Custom)
            }
        }

        deserializer.deserialize_any(NameOrCycle)
    }
}

/// Refuses years that a key cannot represent.
pub(super) fn check_year(date: Date) -> Result<()> {
    if date.year() < 1 {
        return Err(Error::invalid("the time is outside of the years 1 to 9999"));
    }
    Ok(())
}

pub(super) fn year_digits(text: &str) -> Option<i16> {
    let digits = text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&year| digits && year > 0)
}

pub(super) fn two_digits(text: &str) -> Option<i8> {
    let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}
