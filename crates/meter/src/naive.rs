//! Naive decimals: schoolbook arithmetic, digit by digit, to check the real implementation against.
//!
//! Guarantees: shares no code with [`crate::decimal`]; simple enough to be obviously right. Leaves to others: speed.

use std::cmp::Ordering;
use std::fmt;

use proptest::prelude::*;

/// Decimal places of all numbers here.
const PLACES: usize = 40;

/// A sign and digits, lowest first, in units of 10^-40.
#[derive(Clone, Debug)]
pub(crate) struct Naive {
    negative: bool,
    digits: Vec<u8>,
}

impl Naive {
    pub(crate) fn zero() -> Self {
        Self { negative: false, digits: Vec::new() }
    }

    /// Parses plain notation.
    pub(crate) fn read(text: &str) -> Self {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let written = format!("{whole}{fraction:0<PLACES$}");
        Self { negative, digits: written.bytes().rev().map(|digit| digit - b'0').collect() }
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        let length = self.digits.len().max(other.digits.len()) + 1;
        let mut digits = vec![0; length];
        if self.negative == other.negative {
            let mut carry = 0;
            for (at, digit) in digits.iter_mut().enumerate() {
                let sum = self.digit(at) + other.digit(at) + carry;
                (*digit, carry) = (sum % 10, sum / 10);
            }
            return Self { negative: self.negative, digits };
        }
        let self_is_larger = self.size_cmp(other) != Ordering::Less;
        let (large, small) = if self_is_larger { (self, other) } else { (other, self) };
        let mut borrow = 0;
        for (at, digit) in digits.iter_mut().enumerate() {
            let (above, below) = (large.digit(at), small.digit(at) + borrow);
            borrow = u8::from(above < below);
            *digit = above + 10 * borrow - below;
        }
        Self { negative: large.negative, digits }
    }

    /// The product, by adding shifted multiples.
    pub(crate) fn times(&self, by: u64) -> Self {
        let mut product = Self::zero();
        for digit in by.to_string().bytes() {
            product.digits.insert(0, 0);
            for _ in 0..digit - b'0' {
                product = product.plus(&Self { negative: false, digits: self.digits.clone() });
            }
        }
        product.negative = self.negative;
        product
    }

    /// The quotient truncated to `places` decimals, and the remainder in units of the last one.
    pub(crate) fn divided(&self, by: u64, places: usize) -> (Self, u128) {
        let mut rest = 0_u128;
        let mut digits = vec![0; self.digits.len()];
        for at in (PLACES - places..self.digits.len()).rev() {
            rest = rest * 10 + u128::from(self.digits[at]);
            digits[at] = u8::try_from(rest / u128::from(by)).expect("a digit");
            rest %= u128::from(by);
        }
        (Self { negative: self.negative, digits }, rest)
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let minus = Self { negative: !other.negative, digits: other.digits.clone() };
        let difference = self.plus(&minus);
        match (difference.is_zero(), difference.negative) {
            (true, _) => Ordering::Equal,
            (false, true) => Ordering::Less,
            (false, false) => Ordering::Greater,
        }
    }

    fn is_zero(&self) -> bool {
        self.digits.iter().all(|&digit| digit == 0)
    }

    fn digit(&self, at: usize) -> u8 {
        self.digits.get(at).copied().unwrap_or(0)
    }

    fn size_cmp(&self, other: &Self) -> Ordering {
        let length = self.digits.len().max(other.digits.len());
        let places = (0..length).rev().map(|at| self.digit(at).cmp(&other.digit(at)));
        places.fold(Ordering::Equal, Ordering::then)
    }
}

/// Plain notation without redundant zeros.
impl fmt::Display for Naive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        let length = self.digits.len().max(PLACES + 1);
        let shown: String = (0..length).rev().map(|at| char::from(b'0' + self.digit(at))).collect();
        let (whole, fraction) = shown.split_at(length - PLACES);
        let whole = whole.trim_start_matches('0');
        let fraction = fraction.trim_end_matches('0');
        let sign = if self.negative { "-" } else { "" };
        let point = if fraction.is_empty() { "" } else { "." };
        write!(f, "{sign}{}{point}{fraction}", if whole.is_empty() { "0" } else { whole })
    }
}

/// External values: mostly short, sometimes as long as possible.
pub(crate) fn value_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (-1_000_i64..1_000).prop_map(|integer| integer.to_string()),
        2 => "-?(0|[1-9][0-9]{0,5})\\.[0-9]{1,6}",
        1 => "-?[1-9][0-9]{60,77}",
        1 => "-?(0|[1-9][0-9]{0,77})\\.[0-9]{30,36}",
        1 => "-?[1-9]0{0,30}(\\.0{0,30}[0-9])?",
    ]
}
