//! Means, kept as the fraction sum over count.
//!
//! Guarantees: [`Mean::nearest_double`] is the double nearest to the fraction itself, ties to even, not to a decimal
//! that was already rounded. It uses no floating-point arithmetic: the digits come from a long division, and the
//! standard library rounds correctly when it parses them. Leaves to others: when a mean has to be rounded at all.

use std::fmt::Write as _;

use super::{Decimal, Wide};

/// Digits of the quotient that are computed after its integer part. The quotient of an integer and a count of 64 bits,
/// scaled by at most 10^[`SCALE_LIMIT`](super::SCALE_LIMIT), is either midway between two doubles or at least 10^-95
/// away from the midpoint, so these digits and whether any nonzero digit follows decide the rounding.
const DIGITS: usize = 120;

/// The exact mean of some values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mean {
    pub sum: Decimal,
    /// Not zero.
    pub count: u64,
}

impl Mean {
    pub fn to_json(self) -> serde_json::Value {
        serde_json::json!({ "sum": self.sum, "count": self.count })
    }

    /// The nearest double as a JSON number; `None` if it is out of range.
    pub(crate) fn nearest_double(&self) -> Option<serde_json::Number> {
        let divisor = Wide::from(self.count);
        if divisor.is_zero() {
            return None;
        }
        let (whole, rest) = self.sum.magnitude.div_rem(divisor);
        let sign = if self.sum.negative { "-" } else { "" };
        let mut text = format!("{sign}{whole}.");
        // Smaller than the count, which has 64 bits.
        let (mut rest, count) = (rest.as_limbs()[0], u128::from(self.count));
        for _ in 0..DIGITS {
            let next = u128::from(rest) * 10;
            let digit = u8::try_from(next / count).unwrap_or_default();
            text.push(char::from(b'0' + digit));
            rest = u64::try_from(next % count).unwrap_or_default();
        }
        if rest != 0 {
            text.push('1');
        }
        // Writing to text cannot fail.
        let _ = write!(text, "e-{}", self.sum.scale);
        serde_json::Number::from_f64(text.parse().ok()?)
    }
}

impl Decimal {
    /// The nearest double as a JSON number; `None` if it is out of range.
    pub(crate) fn nearest_double(&self) -> Option<serde_json::Number> {
        Mean { sum: *self, count: 1 }.nearest_double()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sum: &str, count: u64, expected: &str) {
        let mean = Mean { sum: sum.parse().expect("a number"), count };
        let found = mean.nearest_double().expect("a double").to_string();
        assert_eq!(found, expected, "{sum} / {count}");
    }

    #[test]
    fn a_mean_is_the_nearest_double() {
        check("10", 3, "3.3333333333333335");
        check("-10", 3, "-3.3333333333333335");
        check("1", 3, "0.3333333333333333");
        check("2", 3, "0.6666666666666666");
        check("1", 4, "0.25");
        check("100", 7, "14.285714285714286");
        // Few decimal places would leave nothing of it.
        check("0.000000000000000001", 3, "3.3333333333333334e-19");
        check("0.000000000000000001", u64::MAX, "5.421010862427523e-38");
        let largest =
            "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        check(largest, 3, "3.8597363079105396e+76");
    }

    /// Midway between two doubles the even one is nearest; a hair beyond it is the other one, however far behind the
    /// point the hair is.
    #[test]
    fn a_tie_rounds_to_the_even_double_and_anything_beyond_the_tie_does_not() {
        // 2^53 + 1 is midway between 2^53 and 2^53 + 2.
        check("9007199254740993", 1, "9007199254740992.0");
        check("18014398509481986", 2, "9007199254740992.0");
        check("9007199254740993.000000000000000001", 1, "9007199254740994.0");
        // (2^53 + 1) * 3 + 10^-18, over 3: the decimal places of the quotient do not end.
        check("27021597764222979.000000000000000001", 3, "9007199254740994.0");
        check("27021597764222978.999999999999999999", 3, "9007199254740992.0");
    }
}
