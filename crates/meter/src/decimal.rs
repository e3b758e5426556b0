//! Exact decimals, and the arithmetic that aggregates need.
//!
//! A decimal is a sign, a magnitude of up to 512 bits and a number of decimal places. Any integer of 256 bits with any
//! number of decimals up to `SCALE_MAX` fits, and so does the sum of 2^64 of them, times milliseconds.
//!
//! Guarantees: each number has one representation, so that `==` and hashes compare numbers. Only [`Decimal::div`]
//! rounds, and it reports that. A result that does not fit is `None`. Leaves to others: what the numbers mean.

mod bytes;
mod mean;
#[cfg(test)]
mod tests;
mod text;

use std::cmp::Ordering;

use ruint::Uint;

pub use mean::Mean;

/// Maximum number of decimal places of a value.
pub(crate) const SCALE_MAX: u8 = 36;
/// Maximum number of decimal places: a value has at most `SCALE_MAX`, a value times milliseconds, in seconds, three
/// more.
const SCALE_LIMIT: u8 = SCALE_MAX + 3;
/// Maximum number of digits of a value before the point; all integers of 256 bits fit.
const WHOLE_DIGITS_MAX: usize = 78;

type Wide = Uint<512, 8>;

/// The powers of ten that fit.
static POWERS: [Wide; POWERS_LEN] = powers();
const POWERS_LEN: usize = 155;

const fn powers() -> [Wide; POWERS_LEN] {
    let mut powers = [Wide::ONE; POWERS_LEN];
    let mut exponent = 1;
    while exponent < POWERS_LEN {
        powers[exponent] =
            powers[exponent - 1].wrapping_mul(Wide::from_limbs([10, 0, 0, 0, 0, 0, 0, 0]));
        exponent += 1;
    }
    powers
}

fn power_of_ten(exponent: u8) -> Option<Wide> {
    POWERS.get(usize::from(exponent)).copied()
}

/// An exact signed decimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    /// Without trailing zeros while there are decimal places.
    magnitude: Wide,
    scale: u8,
    /// Always false for zero.
    negative: bool,
}

#[expect(
    clippy::should_implement_trait,
    reason = "`neg` and `div` stand beside checked operations, and `div` says what it rounded"
)]
impl Decimal {
    pub const ZERO: Self = Self { magnitude: Wide::ZERO, scale: 0, negative: false };

    pub fn from_integer(integer: i64) -> Self {
        Self { negative: integer < 0, ..Self::from(integer.unsigned_abs()) }
    }

    /// An integer of at most 256 bits, big-endian, in units of `10^-scale`; `None` if it is longer, or has more than
    /// `SCALE_MAX` decimal places.
    #[cfg(test)]
    pub(crate) fn from_units(magnitude_be: &[u8], negative: bool, scale: u8) -> Option<Self> {
        // Bytes of the widest integers on chains.
        const UNITS_BYTES_MAX: usize = 32;
        if magnitude_be.len() > UNITS_BYTES_MAX {
            return None;
        }
        let value = Self::normal(negative, Wide::try_from_be_slice(magnitude_be)?, scale);
        (value.scale <= SCALE_MAX).then_some(value)
    }

    /// Number of decimal places.
    pub fn scale(&self) -> u8 {
        self.scale
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.negative
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.magnitude.is_zero()
    }

    /// The negated number.
    #[must_use]
    pub(crate) fn neg(self) -> Self {
        Self { negative: !self.negative && !self.is_zero(), ..self }
    }

    /// `None` if the sum does not fit.
    #[must_use]
    pub(crate) fn checked_add(self, other: Self) -> Option<Self> {
        let scale = self.scale.max(other.scale);
        let (mine, others) = (self.magnitude_at(scale)?, other.magnitude_at(scale)?);
        let (negative, magnitude) = if self.negative == other.negative {
            (self.negative, mine.checked_add(others)?)
        } else if mine >= others {
            (self.negative, mine.wrapping_sub(others))
        } else {
            (other.negative, others.wrapping_sub(mine))
        };
        Some(Self::normal(negative, magnitude, scale))
    }

    /// `None` if the difference does not fit.
    #[must_use]
    pub(crate) fn checked_sub(self, other: Self) -> Option<Self> {
        self.checked_add(other.neg())
    }

    /// `None` if the product does not fit.
    #[must_use]
    pub(crate) fn checked_mul_u64(self, by: u64) -> Option<Self> {
        let magnitude = self.magnitude.checked_mul(Wide::from(by))?;
        Some(Self::normal(self.negative, magnitude, self.scale))
    }

    /// The quotient, and whether it is exact. It has at most `SCALE_MAX` decimal places (or as many as this number if
    /// that is more); if these are too few, it is rounded half to even. `None` if `by` is zero or the digits do not
    /// fit.
    #[must_use]
    pub fn div(self, by: u64) -> Option<(Self, bool)> {
        let scale = self.scale.max(SCALE_MAX);
        let divisor = Wide::from(by);
        if divisor.is_zero() {
            return None;
        }
        let (mut quotient, rest) = self.magnitude_at(scale)?.div_rem(divisor);
        // The remainder is below 2^64, so its double fits.
        let round_up = match rest.wrapping_shl(1).cmp(&divisor) {
            Ordering::Less => false,
            Ordering::Equal => quotient.bit(0),
            Ordering::Greater => true,
        };
        if round_up {
            quotient = quotient.checked_add(Wide::ONE)?;
        }
        Some((Self::normal(self.negative, quotient, scale), rest.is_zero()))
    }

    /// The number divided by `10^places`, exactly; `None` if it then has more than [`SCALE_LIMIT`] decimal places.
    #[must_use]
    pub(crate) fn point_left(self, places: u8) -> Option<Self> {
        let value = Self::normal(self.negative, self.magnitude, self.scale.checked_add(places)?);
        (value.scale <= SCALE_LIMIT).then_some(value)
    }

    /// The magnitude in units of `10^-scale`; `None` if it does not fit. `scale` is at least that of this number.
    pub(crate) fn magnitude_at(&self, scale: u8) -> Option<Wide> {
        match scale.checked_sub(self.scale)? {
            0 => Some(self.magnitude),
            more => self.magnitude.checked_mul(power_of_ten(more)?),
        }
    }

    /// Normalizes a number to its only representation.
    pub(crate) fn normal(negative: bool, magnitude: Wide, scale: u8) -> Self {
        if magnitude.is_zero() {
            return Self::ZERO;
        }
        let (magnitude, scale) = without_trailing_zeros(magnitude, scale);
        Self { magnitude, scale, negative }
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
        if self.scale == other.scale {
            return self.magnitude.cmp(&other.magnitude);
        }
        let scale = self.scale.max(other.scale);
        // Only the number with fewer decimal places is multiplied; if the product does not fit, that number is the
        // larger.
        match (self.magnitude_at(scale), other.magnitude_at(scale)) {
            (Some(mine), Some(others)) => mine.cmp(&others),
            (None, _) => Ordering::Greater,
            (_, None) => Ordering::Less,
        }
    }
}

/// Removes decimal places that are zero.
fn without_trailing_zeros(mut magnitude: Wide, mut scale: u8) -> (Wide, u8) {
    if scale == 0 {
        return (magnitude, scale);
    }
    if let Some(mut small) = as_u64(&magnitude) {
        while scale > 0 && small.is_multiple_of(10) {
            small /= 10;
            scale -= 1;
        }
        return (Wide::from(small), scale);
    }
    for places in [32_u8, 16, 8, 4, 2, 1] {
        // A multiple of 10^n is also one of 2^n, which is a quick check.
        while scale >= places && magnitude.trailing_zeros() >= usize::from(places) {
            let (quotient, rest) = magnitude.div_rem(POWERS[usize::from(places)]);
            if !rest.is_zero() {
                break;
            }
            magnitude = quotient;
            scale -= places;
        }
    }
    (magnitude, scale)
}

/// `None` if it does not fit into one limb.
fn as_u64(wide: &Wide) -> Option<u64> {
    let [low, high @ ..] = wide.as_limbs();
    high.iter().all(|&limb| limb == 0).then_some(*low)
}

impl From<u64> for Decimal {
    fn from(integer: u64) -> Self {
        Self { magnitude: Wide::from(integer), scale: 0, negative: false }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
        }
    }
}
