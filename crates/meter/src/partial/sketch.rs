//! The distribution of values: how many there are in each of many narrow bins.
//!
//! A bin holds the values of one sign whose magnitude, in units of 10^-36, has the same length in bits and the same
//! seven bits after the first. It is at most 1/128 of its values wide, so a quantile is off by less than that of
//! itself. Bins are numbered in the order of their values.
//!
//! Guarantees: the state depends on the values only; there are at most [`BINS_MAX`] bins, however many values.
//! Leaves to others: the smallest and the largest value, which are known exactly.

use std::collections::BTreeMap;

use ruint::Uint;

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::settings::SCALE_MAX;

/// The bits after the first one that tell bins apart.
const DETAIL_BITS: u32 = 7;
/// The most bins of one sign: one for each length of up to 512 bits and each detail.
const BIN_MAX: u32 = (512 << DETAIL_BITS) | ((1 << DETAIL_BITS) - 1);
/// The most bins that there can be.
pub(super) const BINS_MAX: usize = 2 * BIN_MAX as usize + 1;

type Wide = Uint<512, 8>;

/// How many values are in each bin that has some. The numbers of negative bins are negative, that of zero is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sketch {
    pub(super) bins: BTreeMap<i32, u64>,
}

impl Sketch {
    pub(super) fn add(&mut self, value: &Decimal) -> Result<()> {
        let units = value.magnitude_at(SCALE_MAX);
        let units = units.ok_or_else(|| Error::invalid("a value is too large for quantiles"))?;
        let bin = bin_of(&units);
        let number = self.bins.entry(if value.is_negative() { -bin } else { bin }).or_default();
        // It is at most the count of events, which is checked.
        *number = number.saturating_add(1);
        Ok(())
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (&bin, &more) in &other.bins {
            let number = self.bins.entry(bin).or_default();
            *number = number.saturating_add(more);
        }
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bins.len() * 2 * size_of::<(i32, u64)>()
    }

    /// A value of the bin that holds the value of this rank, counted from one.
    pub(super) fn at_rank(&self, rank: u64) -> Option<Decimal> {
        let mut passed = 0_u64;
        let reaches = |(_, number): &(&i32, &u64)| {
            passed = passed.saturating_add(**number);
            passed >= rank
        };
        let (&bin, _) = self.bins.iter().find(reaches)?;
        let (low, high) = bounds(bin.unsigned_abs())?;
        Some(Decimal::normal(bin < 0, shortest(low, high), SCALE_MAX))
    }
}

/// The number of the bin of a magnitude.
fn bin_of(units: &Wide) -> i32 {
    let bits = units.bit_len();
    let shift = bits.saturating_sub(8);
    let top = units.wrapping_shr(shift).wrapping_shl(8_usize.saturating_sub(bits));
    let detail = top.as_limbs()[0] & ((1 << DETAIL_BITS) - 1);
    let bin = (u64::try_from(bits).unwrap_or(0) << DETAIL_BITS) | detail;
    i32::try_from(bin).unwrap_or(0)
}

/// Whether there is a bin with this number.
pub(super) fn is_bin(bin: i32) -> bool {
    bin == 0 || bounds(bin.unsigned_abs()).is_some()
}

/// The lowest magnitude in a bin, and the highest.
fn bounds(bin: u32) -> Option<(Wide, Wide)> {
    if bin == 0 {
        return Some((Wide::ZERO, Wide::ZERO));
    }
    let bits =
        usize::try_from(bin >> DETAIL_BITS).ok().filter(|&bits| (1..=512).contains(&bits))?;
    let top = Wide::from((1 << DETAIL_BITS) | (bin & ((1 << DETAIL_BITS) - 1)));
    match bits.checked_sub(8) {
        Some(shift) => {
            let low = top.wrapping_shl(shift);
            Some((low, low | (Wide::ONE.wrapping_shl(shift) - Wide::ONE)))
        }
        // Short magnitudes have a bin each.
        None => {
            let exact = top.wrapping_shr(8 - bits);
            (exact.wrapping_shl(8 - bits) == top).then_some((exact, exact))
        }
    }
}

/// The number from `low` to `high` with the fewest digits: a bin of 7 says 7, and not something close.
fn shortest(low: Wide, high: Wide) -> Wide {
    let ten = Wide::from(10_u64);
    let mut step = Wide::ONE;
    let mut found = low;
    while step <= high {
        let multiple = (high / step) * step;
        if multiple < low {
            break;
        }
        found = multiple;
        match step.checked_mul(ten) {
            Some(next) => step = next,
            None => break,
        }
    }
    found
}

#[cfg(test)]
mod tests;
