//! Moments as text, and the period fields of an event.
//!
//! Guarantees: moments are printed in UTC with milliseconds and parse back to the same moment; a parsed moment is never
//! after the one that was written. Leaves to others: which moments are accepted.

use jiff::tz::Offset;
use logmill_io::Timestamp;
use serde::Serialize;

use super::kind::check_year;
use super::moment;
use crate::error::{Error, Result};

const TIME_BYTES_MAX: usize = 40;
/// Bounds of the years 1 to 9999: the first millisecond, and the one after the last.
const MILLIS_MIN: i64 = -62_135_596_800_000;
const MILLIS_END: i64 = 253_402_300_800_000;

/// The periods of an event by name, in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeriodFields {
    /// `YYYYMMDDHHmm`.
    pub minute: String,
    /// `YYYYMMDDHH`.
    pub hour: String,
    /// `YYYYMMDD`.
    pub day: String,
    /// `YYYYWW`, the year and week of ISO 8601.
    pub week: String,
    /// `YYYYMM`.
    pub month: String,
    /// `YYYY`.
    pub year: String,
}

impl PeriodFields {
    /// An error outside the years 1 to 9999.
    pub fn of(time: Timestamp) -> Result<Self> {
        let civil = Offset::UTC.to_datetime(moment(time)?);
        check_year(civil.date())?;
        let minute = format!(
            "{:04}{:02}{:02}{:02}{:02}",
            civil.year(),
            civil.month(),
            civil.day(),
            civil.hour(),
            civil.minute()
        );
        let week = civil.date().iso_week_date();
        let first = |length: usize| minute.get(..length).unwrap_or_default().to_owned();
        Ok(Self {
            hour: first(10),
            day: first(8),
            week: format!("{:04}{:02}", week.year(), week.week()),
            month: first(6),
            year: first(4),
            minute,
        })
    }
}

/// The moment in UTC, such as `2026-01-13T08:00:00.000Z`; in milliseconds if it is outside the years 1 to 9999.
pub fn format_time(time: Timestamp) -> String {
    let inside = (MILLIS_MIN..MILLIS_END).contains(&time.millis());
    match moment(time) {
        Ok(moment) if inside => format!("{moment:.3}"),
        _ => time.millis().to_string(),
    }
}

/// Parses a moment of RFC 3339 with any offset, or milliseconds since 1970. Digits finer than milliseconds are
/// truncated, so that a moment stays in its period.
pub fn parse_time(text: &str) -> Result<Timestamp> {
    let wrong = || {
        Error::invalid(
            "a time must look like 2026-01-13T08:00:00.000Z or be milliseconds since 1970",
        )
    };
    if text.len() > TIME_BYTES_MAX {
        return Err(wrong());
    }
    let millis = if let Some(millis) = whole_number(text) {
        millis
    } else if is_rfc3339(text.as_bytes()) {
        let moment: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
        i64::try_from(moment.as_nanosecond().div_euclid(1_000_000)).map_err(|_| wrong())?
    } else {
        return Err(wrong());
    };
    if !(MILLIS_MIN..MILLIS_END).contains(&millis) {
        return Err(Error::invalid("the time is outside of the years 1 to 9999"));
    }
    Ok(Timestamp(millis))
}

fn whole_number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// Whether a text has the shape of RFC 3339; the date parser accepts more than that.
fn is_rfc3339(text: &[u8]) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00";
    let fits = |(&sign, &shape): (&u8, &u8)| match shape {
        b'0' => sign.is_ascii_digit(),
        b'T' => matches!(sign, b'T' | b't' | b' '),
        other => sign == other,
    };
    let Some((start, rest)) = text.split_at_checked(SHAPE.len()) else { return false };
    let offset = match rest {
        [b'.', fraction @ ..] => {
            let end = fraction.iter().position(|sign| !sign.is_ascii_digit());
            let Some(end) = end.filter(|&end| (1..=9).contains(&end)) else { return false };
            &fraction[end..]
        }
        _ => rest,
    };
    let zoned = match offset {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', a, b, b':', c, d] => [a, b, c, d].iter().all(|sign| sign.is_ascii_digit()),
        _ => false,
    };
    start.iter().zip(SHAPE).all(fits) && zoned
}
