//! `Param`: the declaration of a request parameter: its meaning and the texts it accepts.
//!
//! Guarantees: a text becomes a value of its kind or an error that describes the expected form; handlers see no other
//! client input. Leaves to others: whether the named object exists.

use alloy_primitives::{Address, B256, U256, hex};
use bytes::Bytes;
use logmill_io::Amount;
use logmill_pipeline::async_workers::reconcile::Verdict;

use super::error::{ApiError, ApiResult};

#[derive(Clone, Copy, Debug)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) kind: ParamKind,
    /// Whether a request must contain it. Path parameters are always present.
    pub(super) is_required: bool,
    pub(super) about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParamKind {
    Address,
    Hash,
    /// A block number or hash.
    Block,
    Number,
    /// Id of an item of a collection: a 256-bit number.
    Item,
    /// The address or the id of a pool.
    Pair,
    /// Public key of a validator.
    PublicKey,
    Verdict,
}

/// A parsed parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParamValue {
    Address(Address),
    Hash(B256),
    Number(u64),
    Amount(Amount),
    Bytes(Bytes),
    Word(&'static str),
}

pub(super) const fn optional(name: &'static str, kind: ParamKind, about: &'static str) -> Param {
    Param { name, kind, is_required: false, about }
}

pub(super) const fn required(name: &'static str, kind: ParamKind, about: &'static str) -> Param {
    Param { name, kind, is_required: true, about }
}

impl ParamKind {
    /// The accepted form: a description and a regular expression.
    pub(super) fn form(self) -> (&'static str, &'static str) {
        match self {
            Self::Address => ("0x and 40 hexadecimal digits", "^0x[0-9a-fA-F]{40}$"),
            Self::Hash => ("0x and 64 hexadecimal digits", "^0x[0-9a-fA-F]{64}$"),
            Self::Block => (
                "decimal digits, or 0x and 64 hexadecimal digits",
                "^([0-9]{1,19}|0x[0-9a-fA-F]{64})$",
            ),
            Self::Number => ("decimal digits, below 2^63", "^[0-9]{1,19}$"),
            Self::Item => (
                "a number below 2^256, in decimal digits or as 0x and hexadecimal digits",
                "^([0-9]{1,78}|0x[0-9a-fA-F]{1,64})$",
            ),
            Self::Pair => {
                ("0x and 40 or 64 hexadecimal digits", "^0x([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$")
            }
            Self::PublicKey => ("0x and 96 hexadecimal digits", "^0x[0-9a-fA-F]{96}$"),
            Self::Verdict => (
                "agrees, differs, reverts, unclear or no_state",
                "^(agrees|differs|reverts|unclear|no_state)$",
            ),
        }
    }

    fn read(self, text: &str) -> Option<ParamValue> {
        match self {
            Self::Address => Some(ParamValue::Address(Address::from_slice(&bytes(text, 20)?))),
            Self::Hash => Some(ParamValue::Hash(B256::from_slice(&bytes(text, 32)?))),
            Self::Block => match text.starts_with("0x") {
                true => Self::Hash.read(text),
                false => Self::Number.read(text),
            },
            Self::Number => {
                let number: u64 = digits(text, 19)?.parse().ok()?;
                i64::try_from(number).ok()?;
                Some(ParamValue::Number(number))
            }
            Self::Item => {
                let number = match text.strip_prefix("0x") {
                    Some(hex) if (1..=64).contains(&hex.len()) && is_hex(hex) => {
                        U256::from_str_radix(hex, 16).ok()?
                    }
                    Some(_) => return None,
                    None => U256::from_str_radix(digits(text, 78)?, 10).ok()?,
                };
                Amount::from_be_bytes(&number.to_be_bytes::<32>()).map(ParamValue::Amount)
            }
            Self::Pair => bytes(text, 20).or_else(|| bytes(text, 32)).map(ParamValue::Bytes),
            Self::PublicKey => bytes(text, 48).map(ParamValue::Bytes),
            Self::Verdict => {
                let names = Verdict::ALL.into_iter().map(Verdict::name);
                names.into_iter().find(|name| *name == text).map(ParamValue::Word)
            }
        }
    }
}

impl Param {
    pub(super) fn read(&self, text: &str) -> ApiResult<ParamValue> {
        let (form, _) = self.kind.form();
        self.kind
            .read(text)
            .ok_or_else(|| ApiError::parameter(self.name, &format!("must be {form}")))
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn digits(text: &str, most: usize) -> Option<&str> {
    let fits = (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then_some(text)
}

fn bytes(text: &str, count: usize) -> Option<Bytes> {
    let digits = text.strip_prefix("0x")?;
    if digits.len() != 2 * count || !is_hex(digits) {
        return None;
    }
    hex::decode(digits).ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_must_match_its_form_exactly() {
        let check = |kind: ParamKind, text: &str, is_good: bool| {
            let param = optional("it", kind, "");
            assert_eq!(param.read(text).is_ok(), is_good, "{kind:?} {text:?}");
        };
        let hex = |digits: usize| format!("0x{}", "aB".repeat(digits / 2));
        let all = [
            (ParamKind::Address, hex(40)),
            (ParamKind::Hash, hex(64)),
            (ParamKind::Block, hex(64)),
            (ParamKind::Block, "0".to_owned()),
            (ParamKind::Number, i64::MAX.to_string()),
            (ParamKind::Item, U256::MAX.to_string()),
            (ParamKind::Item, hex(64)),
            (ParamKind::Item, "0xa".to_owned()),
            (ParamKind::Pair, hex(40)),
            (ParamKind::Pair, hex(64)),
            (ParamKind::PublicKey, hex(96)),
        ];
        for (kind, good) in all {
            check(kind, &good, true);
            for bad in [
                format!(" {good}"),
                format!("{good}'"),
                format!("{good}\0"),
                format!("-{good}"),
                format!("{good}{}", "0".repeat(100)),
                good.replace("aB", "aü"),
                good.replace("0x", "0X"),
            ] {
                check(kind, &bad, bad == good);
            }
            for bad in ["", "0x", "-1", "1.0", "1e9", "null", "latest", "１２", "+1", "1_000"] {
                check(kind, bad, false);
            }
        }
        check(ParamKind::Number, &(1_u64 << 63).to_string(), false);
        check(ParamKind::Item, &format!("{}0", U256::MAX), false);
        check(ParamKind::Item, &"9".repeat(78), false);
    }
}
