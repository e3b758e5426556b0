//! Decimals as text: JSON numbers in, plain notation out.
//!
//! Guarantees: a number is parsed exactly or refused. Printed numbers have no exponent, no redundant zero and no
//! redundant sign, and parse back to the same number. Leaves to others: finding the text in a request.

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Decimal, SCALE_LIMIT, SCALE_MAX, WHOLE_DIGITS_MAX, Wide, as_u64, power_of_ten};
use crate::error::{Error, Result};

/// Maximum length of a number's text.
const TEXT_BYTES_MAX: usize = 256;
/// Larger exponents are clamped: no number except zero would fit.
const EXPONENT_MAX: i32 = 1_000_000;
/// Nineteen digits always fit into 64 bits.
const CHUNK_POWER: u64 = 10_u64.pow(19);

impl Decimal {
    /// Parses an external value: a number of the JSON grammar, exponent included, with at most `WHOLE_DIGITS_MAX`
    /// digits before the point and `SCALE_MAX` after it.
    pub fn parse(text: &str) -> Result<Self> {
        let value = read(text)?;
        if value.scale > SCALE_MAX {
            return Err(too_fine(SCALE_MAX));
        }
        if as_u64(&value.magnitude).is_none() && !value.fits_whole_digits() {
            return Err(Error::invalid(format!(
                "a number has at most {WHOLE_DIGITS_MAX} digits before the point"
            )));
        }
        Ok(value)
    }

    fn fits_whole_digits(&self) -> bool {
        let digits = WHOLE_DIGITS_MAX.saturating_add(usize::from(self.scale));
        let limit = u8::try_from(digits).ok().and_then(power_of_ten);
        limit.is_none_or(|limit| self.magnitude < limit)
    }

    /// The number as a JSON number, if every reader gets it exactly: an integer of 64 bits, or a double whose shortest
    /// text is this number.
    pub fn json_number(&self) -> Option<serde_json::Number> {
        let text = self.to_string();
        if let Ok(integer) = text.parse::<i64>() {
            return Some(integer.into());
        }
        let number = serde_json::Number::from_f64(text.parse().ok()?)?;
        let shortest = number.to_string().parse::<Self>().ok()?;
        (shortest == *self).then_some(number)
    }
}

struct Parts<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i32,
}

/// Parses any representable decimal.
fn read(text: &str) -> Result<Decimal> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(too_large());
    }
    let Some(mut parts) = split(text.as_bytes()) else {
        return Err(Error::invalid("a number is written like 12, -0.5 or 1e18"));
    };
    while let [before @ .., b'0'] = parts.fraction {
        parts.fraction = before;
    }
    let digits = parts.whole.iter().chain(parts.fraction);
    let magnitude = accumulate(digits).ok_or_else(too_large)?;
    if magnitude.is_zero() {
        return Ok(Decimal::ZERO);
    }
    // The text is short, so the count of its digits fits any integer type.
    let places = i32::try_from(parts.fraction.len()).unwrap_or(i32::MAX);
    let places = places.saturating_sub(parts.exponent);
    if places <= 0 {
        let power = u8::try_from(places.unsigned_abs()).ok().and_then(power_of_ten);
        let magnitude = power.and_then(|power| magnitude.checked_mul(power));
        return Ok(Decimal::normal(parts.negative, magnitude.ok_or_else(too_large)?, 0));
    }
    let scale = u8::try_from(places).map_err(|_| too_fine(SCALE_LIMIT))?;
    let value = Decimal::normal(parts.negative, magnitude, scale);
    if value.scale > SCALE_LIMIT {
        return Err(too_fine(SCALE_LIMIT));
    }
    Ok(value)
}

fn too_large() -> Error {
    Error::invalid("a number has too many digits")
}

fn too_fine(most: u8) -> Error {
    Error::invalid(format!("a number has at most {most} decimal places"))
}

/// Splits the text of a number by the grammar of JSON.
fn split(text: &[u8]) -> Option<Parts<'_>> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let (whole, text) = digits(text);
    if whole.is_empty() || matches!(whole, [b'0', _, ..]) {
        return None;
    }
    let (fraction, text) = match text {
        [b'.', rest @ ..] => Some(digits(rest)).filter(|(fraction, _)| !fraction.is_empty())?,
        _ => (&[][..], text),
    };
    let exponent = match text {
        [] => 0,
        [b'e' | b'E', rest @ ..] => exponent(rest)?,
        _ => return None,
    };
    Some(Parts { negative, whole, fraction, exponent })
}

/// The leading digits of `text`, and the rest.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|sign| !sign.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn exponent(text: &[u8]) -> Option<i32> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (digits, rest) = digits(text);
    if digits.is_empty() || !rest.is_empty() {
        return None;
    }
    let size = digits.iter().fold(0, |size: i32, digit| {
        size.saturating_mul(10).saturating_add(i32::from(digit - b'0')).min(EXPONENT_MAX)
    });
    Some(if negative { -size } else { size })
}

/// The number that the digits form. Most fit one machine word, so wide arithmetic starts only when they do not.
fn accumulate<'a>(digits: impl Iterator<Item = &'a u8>) -> Option<Wide> {
    let mut wide = Wide::ZERO;
    let (mut chunk, mut power) = (0_u64, 1_u64);
    for digit in digits {
        if power == CHUNK_POWER {
            wide = append(wide, chunk, power)?;
            (chunk, power) = (0, 1);
        }
        chunk = chunk * 10 + u64::from(digit - b'0');
        power *= 10;
    }
    append(wide, chunk, power)
}

fn append(wide: Wide, chunk: u64, power: u64) -> Option<Wide> {
    let chunk = Wide::from(chunk);
    if wide.is_zero() {
        return Some(chunk);
    }
    wide.checked_mul(Wide::from(power))?.checked_add(chunk)
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.negative {
            f.write_str("-")?;
        }
        if self.scale == 0 {
            return match as_u64(&self.magnitude) {
                Some(small) => write!(f, "{small}"),
                None => write!(f, "{}", self.magnitude),
            };
        }
        let digits = self.magnitude.to_string();
        let scale = usize::from(self.scale);
        match digits.len().checked_sub(scale) {
            None | Some(0) => write!(f, "0.{digits:0>scale$}"),
            Some(point) => write!(f, "{}.{}", &digits[..point], &digits[point..]),
        }
    }
}

impl fmt::Debug for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Parses the output of [`Decimal`]'s `Display`, including results of arithmetic. For external values use
/// [`Decimal::parse`].
impl FromStr for Decimal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        read(text)
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Decimal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a decimal number in a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Decimal, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}
