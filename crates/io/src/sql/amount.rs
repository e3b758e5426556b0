//! Exact amounts: signed integers of up to 320 bits, stored so that both engines sort and sum them exactly.
//!
//! A token amount has 256 bits; sums need more, and differences need a sign. PostgreSQL stores an amount as
//! `NUMERIC`. SQLite has no such type, so there it is a blob whose byte order is the numeric order:
//!
//! | byte 0 | then |
//! |---|---|
//! | `0x80 + n`, n = bytes of the magnitude (0 to 40) | zero or positive: the magnitude, big-endian, no leading zero |
//! | `0x7f - n` | negative: every byte of the magnitude inverted |
//!
//! `amount_add`, `amount_sum` and `amount_text` are functions that we register. Statements use them the same
//! way on both engines.
//!
//! Guarantees: a round trip returns the same number; comparing encodings compares numbers; arithmetic that
//! would exceed 320 bits is an error, never a wrong number. Leaves to others: decimals and units.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use ruint::Uint;

use crate::error::{Error, Result};

const MAGNITUDE_BYTES_MAX: usize = 40;
const ZERO_TAG: u8 = 0x80;

type Magnitude = Uint<320, 5>;

/// A signed integer of up to 320 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Amount {
    negative: bool,
    magnitude: Magnitude,
}

impl Amount {
    pub const ZERO: Self = Self { negative: false, magnitude: Magnitude::ZERO };
    pub const MAX: Self = Self { negative: false, magnitude: Magnitude::MAX };
    pub const MIN: Self = Self { negative: true, magnitude: Magnitude::MAX };

    fn new(negative: bool, magnitude: Magnitude) -> Self {
        Self { negative: negative && !magnitude.is_zero(), magnitude }
    }

    /// A positive amount from big-endian bytes, as chains encode them; `None` if it exceeds 320 bits.
    pub fn from_be_bytes(bytes: &[u8]) -> Option<Self> {
        Magnitude::try_from_be_slice(bytes).map(|magnitude| Self::new(false, magnitude))
    }

    pub fn is_negative(self) -> bool {
        self.negative
    }

    /// The sum; `None` if it does not fit.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        if self.negative == other.negative {
            let sum = self.magnitude.checked_add(other.magnitude)?;
            return Some(Self::new(self.negative, sum));
        }
        let (larger, smaller) =
            if self.magnitude >= other.magnitude { (self, other) } else { (other, self) };
        Some(Self::new(larger.negative, larger.magnitude - smaller.magnitude))
    }

    /// The sum; `MIN` or `MAX` if it does not fit.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        let end = if self.negative { Self::MIN } else { Self::MAX };
        self.checked_add(other).unwrap_or(end)
    }

    /// The bytes stored in SQLite; their order is the order of the numbers.
    pub fn encode(self) -> Vec<u8> {
        let bytes = self.magnitude.to_be_bytes_trimmed_vec();
        let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        let mut encoded = Vec::with_capacity(bytes.len() + 1);
        if self.negative {
            encoded.push(ZERO_TAG - 1 - length);
            encoded.extend(bytes.iter().map(|byte| !byte));
        } else {
            encoded.push(ZERO_TAG + length);
            encoded.extend_from_slice(&bytes);
        }
        encoded
    }

    /// Decodes the bytes stored in SQLite.
    pub fn decode(encoded: &[u8]) -> Result<Self> {
        let bad = || Error::corrupt(format!("an amount of {} bytes", encoded.len()));
        let (tag, rest) = encoded.split_first().ok_or_else(bad)?;
        let negative = *tag < ZERO_TAG;
        let length = usize::from(if negative { ZERO_TAG - 1 - tag } else { tag - ZERO_TAG });
        if rest.len() != length || length > MAGNITUDE_BYTES_MAX || (negative && length == 0) {
            return Err(bad());
        }
        let magnitude = if negative {
            let inverted: Vec<u8> = rest.iter().map(|byte| !byte).collect();
            Magnitude::try_from_be_slice(&inverted)
        } else {
            Magnitude::try_from_be_slice(rest)
        };
        let amount = Self::new(negative, magnitude.ok_or_else(bad)?);
        // A number must have only one encoding; otherwise equal amounts would not compare equal.
        if amount.encode() == encoded { Ok(amount) } else { Err(bad()) }
    }

    /// PostgreSQL's binary `NUMERIC`: digits of base 10 000.
    pub(super) fn to_numeric(self) -> Vec<u8> {
        let mut digits: Vec<u16> = self
            .magnitude
            .to_base_be(10_000)
            .map(|digit| u16::try_from(digit).unwrap_or_default())
            .collect();
        let weight = u16::try_from(digits.len().saturating_sub(1)).unwrap_or_default();
        while digits.last() == Some(&0) {
            digits.pop();
        }
        let count = u16::try_from(digits.len()).unwrap_or_default();
        let sign: u16 = if self.negative { NUMERIC_NEGATIVE } else { 0 };
        let header = [count, if count == 0 { 0 } else { weight }, sign, 0];
        header.iter().chain(&digits).flat_map(|word| word.to_be_bytes()).collect()
    }

    /// Reads PostgreSQL's binary `NUMERIC`; rejects fractions, infinities and numbers that are too large.
    pub(super) fn from_numeric(raw: &[u8]) -> Result<Self> {
        let bad = |what: &str| Error::corrupt(format!("a NUMERIC that is {what}"));
        let words: Vec<u16> =
            raw.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        let [count, weight, sign, _scale, digits @ ..] = words.as_slice() else {
            return Err(bad("cut short"));
        };
        if usize::from(*count) != digits.len() || (*sign != 0 && *sign != NUMERIC_NEGATIVE) {
            return Err(bad("not a plain number"));
        }
        let wanted = if digits.is_empty() { 0 } else { usize::from(*weight) + 1 };
        if *weight > 100 && !digits.is_empty() {
            return Err(bad("too large or a fraction"));
        }
        let whole = digits.get(..wanted.min(digits.len())).unwrap_or_default();
        if digits.get(wanted..).is_some_and(|fraction| fraction.iter().any(|digit| *digit != 0)) {
            return Err(bad("a fraction"));
        }
        let padding = std::iter::repeat_n(0, wanted - whole.len());
        let all = whole.iter().map(|digit| u64::from(*digit)).chain(padding);
        let magnitude =
            Magnitude::from_base_be(10_000, all).map_err(|_| bad("more than 320 bits"))?;
        Ok(Self::new(*sign == NUMERIC_NEGATIVE, magnitude))
    }
}

const NUMERIC_NEGATIVE: u16 = 0x4000;

impl From<u64> for Amount {
    fn from(value: u64) -> Self {
        Self::new(false, Magnitude::from(value))
    }
}

impl From<i64> for Amount {
    fn from(value: i64) -> Self {
        Self::new(value < 0, Magnitude::from(value.unsigned_abs()))
    }
}

impl std::ops::Neg for Amount {
    type Output = Self;

    fn neg(self) -> Self {
        Self::new(!self.negative, self.magnitude)
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.magnitude.cmp(&other.magnitude),
            (true, true) => other.magnitude.cmp(&self.magnitude),
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
        }
    }
}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.magnitude)
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Amount {
    type Err = Error;

    /// Accepts decimal digits with an optional minus sign, nothing else.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid(format!("{text:?} is not a whole number of at most 320 bits"));
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let magnitude = Magnitude::from_str_radix(digits, 10).map_err(|_| bad())?;
        Ok(Self::new(negative, magnitude))
    }
}

/// Registers the SQL functions on amounts.
pub(super) fn register(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    use rusqlite::functions::FunctionFlags;
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("amount_add", 2, flags, |context| {
        match (stored(context, 0)?, stored(context, 1)?) {
            (Some(left), Some(right)) => {
                let sum = left.checked_add(right).ok_or_else(overflow)?;
                Ok(Some(sum.encode()))
            }
            _ => Ok(None),
        }
    })?;
    connection.create_scalar_function("amount_text", 1, flags, |context| {
        Ok(stored(context, 0)?.map(|amount| amount.to_string()))
    })?;
    connection.create_aggregate_function("amount_sum", 1, flags, AmountSum)
}

fn stored(
    context: &rusqlite::functions::Context<'_>,
    index: usize,
) -> rusqlite::Result<Option<Amount>> {
    let bytes: Option<Vec<u8>> = context.get(index)?;
    bytes.map(|bytes| Amount::decode(&bytes)).transpose().map_err(refused)
}

fn refused(error: Error) -> rusqlite::Error {
    rusqlite::Error::UserFunctionError(Box::new(error))
}

fn overflow() -> rusqlite::Error {
    refused(Error::invalid("a sum of amounts has more than 320 bits"))
}

struct AmountSum;

impl rusqlite::functions::Aggregate<Option<Amount>, Option<Vec<u8>>> for AmountSum {
    fn init(&self, _: &mut rusqlite::functions::Context<'_>) -> rusqlite::Result<Option<Amount>> {
        Ok(None)
    }

    fn step(
        &self,
        context: &mut rusqlite::functions::Context<'_>,
        sum: &mut Option<Amount>,
    ) -> rusqlite::Result<()> {
        if let Some(amount) = stored(context, 0)? {
            let so_far = sum.unwrap_or_default();
            *sum = Some(so_far.checked_add(amount).ok_or_else(overflow)?);
        }
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut rusqlite::functions::Context<'_>,
        sum: Option<Option<Amount>>,
    ) -> rusqlite::Result<Option<Vec<u8>>> {
        // Like SQL's own sum: the sum of no rows is NULL, not zero.
        Ok(sum.flatten().map(Amount::encode))
    }
}

#[cfg(test)]
mod tests;
