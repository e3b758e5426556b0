//! The distribution of values: counts in many narrow bins.
//!
//! A bin holds the values of one sign whose magnitude, in units of 10^-36, has the same length in bits and the same
//! seven bits after the first. It is at most 1/128 of its values wide, so the relative error of a quantile is below
//! that. Bins are numbered in the order of their values.
//!
//! Guarantees: the state depends only on the values; there are at most [`BINS_MAX`] bins, however many values. Leaves
//! to others: minimum and maximum, which are known exactly.

use std::collections::BTreeMap;

use ruint::Uint;

use crate::decimal::{Decimal, SCALE_MAX};
use crate::error::{Error, Result};

/// Bits after the first one that distinguish bins.
const DETAIL_BITS: u32 = 7;
/// Highest bin number of one sign: each length of up to 512 bits, with each detail.
const BIN_MAX: u32 = (512 << DETAIL_BITS) | ((1 << DETAIL_BITS) - 1);
/// Maximum number of bins.
pub(super) const BINS_MAX: usize = 2 * BIN_MAX as usize + 1;

type Wide = Uint<512, 8>;

/// Number of values per nonempty bin. Bins of negative values have negative numbers, that of zero is zero.
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
        // At most the count of events, which is checked.
        *number = number.saturating_add(1);
        Ok(())
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (&bin, &more) in &other.bins {
            let number = self.bins.entry(bin).or_default();
            *number = number.saturating_add(more);
        }
    }

    /// Approximate memory.
    pub(super) fn bytes(&self) -> usize {
        self.bins.len() * 2 * size_of::<(i32, u64)>()
    }

    /// A value from the bin that contains this rank, counted from one.
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

/// The bin number of a magnitude.
fn bin_of(units: &Wide) -> i32 {
    let bits = units.bit_len();
    let shift = bits.saturating_sub(8);
    let top = units.wrapping_shr(shift).wrapping_shl(8_usize.saturating_sub(bits));
    let detail = top.as_limbs()[0] & ((1 << DETAIL_BITS) - 1);
    let bin = (u64::try_from(bits).unwrap_or(0) << DETAIL_BITS) | detail;
    i32::try_from(bin).unwrap_or(0)
}

/// Whether a bin with this number exists.
pub(super) fn is_bin(bin: i32) -> bool {
    bin == 0 || bounds(bin.unsigned_abs()).is_some()
}

/// The lowest and the highest magnitude in a bin.
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

/// The number from `low` to `high` with the fewest digits: the bin that contains 7 returns 7, not a number close to it.
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
