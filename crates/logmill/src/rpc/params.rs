//! Parameters: positions of a list, and what clients write for numbers, hashes and blocks.
//!
//! Guarantees: what is refused is refused by its position. Leaves to others: filters ([`super::criteria`]).

use alloy_primitives::B256;
use logmill_pipeline::View;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::{RpcError, RpcResult};

/// The most positions of any method.
const POSITIONS_MAX: usize = 8;

/// The parameters of a call.
pub(crate) struct Params<'a>(Vec<&'a RawValue>);

impl<'a> Params<'a> {
    /// Of a list; none given is an empty one.
    pub(crate) fn read(text: Option<&'a RawValue>) -> RpcResult<Self> {
        let Some(text) = text.map(RawValue::get).filter(|text| *text != "null") else {
            return Ok(Self(Vec::new()));
        };
        let list: Vec<&RawValue> =
            serde_json::from_str(text).map_err(|_| RpcError::params("non-array args"))?;
        if list.len() > POSITIONS_MAX {
            let why = format!("too many arguments, want at most {POSITIONS_MAX}");
            return Err(RpcError::params(why));
        }
        Ok(Self(list))
    }

    /// What is at a position, if anything but `null` is.
    pub(crate) fn get<T: DeserializeOwned>(&self, position: usize) -> RpcResult<Option<T>> {
        let Some(text) = self.0.get(position).filter(|text| text.get() != "null") else {
            return Ok(None);
        };
        let wrong = |error: serde_json::Error| {
            // The message of serde ends with a position in the parameter, which helps nobody.
            let why = error.to_string();
            let why = why.split(" at line ").next().unwrap_or_default();
            RpcError::params(format!("invalid argument {position}: {why}"))
        };
        serde_json::from_str(text.get()).map(Some).map_err(wrong)
    }

    /// What must be at a position.
    pub(crate) fn read_at<T: DeserializeOwned>(&self, position: usize) -> RpcResult<T> {
        let missing =
            || RpcError::params(format!("missing value for required argument {position}"));
        self.get(position)?.ok_or_else(missing)
    }
}

/// A number, written in hexadecimal digits after `0x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Quantity(pub(crate) u64);

impl TryFrom<String> for Quantity {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").filter(|digits| !digits.is_empty());
        let digits = digits.ok_or("a number is written 0x…, in hexadecimal digits")?;
        if digits.starts_with('+') {
            return Err("invalid hex digit".to_owned());
        }
        u64::from_str_radix(digits, 16).map(Self).map_err(|error| error.to_string())
    }
}

/// Which block: a number or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Tag {
    Number(u64),
    Earliest,
    Latest,
    Safe,
    Finalized,
    Pending,
}

impl TryFrom<String> for Tag {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Ok(match text.as_str() {
            "earliest" => Self::Earliest,
            "latest" | "" => Self::Latest,
            "safe" => Self::Safe,
            "finalized" => Self::Finalized,
            "pending" => Self::Pending,
            _ => Self::Number(Quantity::try_from(text)?.0),
        })
    }
}

impl Tag {
    /// The number of the block in a view.
    pub(crate) fn resolve(self, view: &View) -> RpcResult<u64> {
        let named = |block: Option<logmill_chain::BlockRef>, name| {
            block.map(|block| block.number).ok_or_else(|| RpcError::unknown_block(name))
        };
        match self {
            Self::Number(number) => Ok(number),
            Self::Earliest => Ok(0),
            Self::Latest => named(view.head(), "latest"),
            Self::Safe => named(view.safe(), "safe"),
            Self::Finalized => named(view.finalized(), "finalized"),
            Self::Pending => Err(RpcError::params("pending blocks are not supported")),
        }
    }
}

/// Which block: by its number or name, or by its hash; also as the object of EIP-1898.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) enum Which {
    Tag(Tag),
    Hash(B256),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Object(Eip1898),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Eip1898 {
    block_number: Option<Tag>,
    block_hash: Option<B256>,
}

/// The signs of a hash.
const HASH_SIGNS: usize = 66;

impl TryFrom<Written> for Which {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Text(text) if text.len() == HASH_SIGNS => {
                text.parse().map(Self::Hash).map_err(|_| "a hash has 32 bytes".to_owned())
            }
            Written::Text(text) => Tag::try_from(text).map(Self::Tag),
            Written::Object(Eip1898 { block_number: Some(tag), block_hash: None }) => {
                Ok(Self::Tag(tag))
            }
            Written::Object(Eip1898 { block_number: None, block_hash: Some(hash) }) => {
                Ok(Self::Hash(hash))
            }
            Written::Object(_) => Err("either blockNumber or blockHash is needed".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_hashes_are_told_apart() {
        let read = |text: &str| serde_json::from_str::<Which>(text).map_err(|e| e.to_string());
        let hash = format!("\"0x{}\"", "ab".repeat(32));
        for (text, expected) in [
            ("\"0x0\"", Which::Tag(Tag::Number(0))),
            ("\"0x00ff\"", Which::Tag(Tag::Number(255))),
            ("\"0xffffffffffffffff\"", Which::Tag(Tag::Number(u64::MAX))),
            ("\"latest\"", Which::Tag(Tag::Latest)),
            ("\"earliest\"", Which::Tag(Tag::Earliest)),
            ("{\"blockNumber\":\"0x5\"}", Which::Tag(Tag::Number(5))),
            (hash.as_str(), Which::Hash(B256::repeat_byte(0xab))),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for text in [
            "5",
            "\"5\"",
            "\"0x\"",
            "\"0x+5\"",
            "\"0x10000000000000000\"",
            "\"newest\"",
            "{}",
            "[]",
            "true",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn positions_are_named_in_errors() {
        let text = RawValue::from_string("[\"0x1\", null, 7]".to_owned()).expect("JSON");
        let params = Params::read(Some(&text)).expect("a list");
        assert_eq!(params.read_at::<Quantity>(0).map(|number| number.0), Ok(1));
        assert_eq!(params.get::<Quantity>(1).map(|number| number.is_none()), Ok(true));
        let missing = params.read_at::<Quantity>(1).expect_err("null is not a number");
        assert_eq!(
            (missing.code, &*missing.message),
            (-32_602, "missing value for required argument 1")
        );
        let wrong = params.read_at::<Quantity>(2).expect_err("not text");
        assert!(wrong.message.starts_with("invalid argument 2: "), "{}", wrong.message);
        let text = RawValue::from_string("{}".to_owned()).expect("JSON");
        assert!(Params::read(Some(&text)).is_err());
        assert!(Params::read(None).is_ok());
    }
}
