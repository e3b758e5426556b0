//! Positional parameters, and the forms in which clients write numbers, hashes and blocks.
//!
//! Guarantees: an error names the position of the parameter; values that geth rejects are rejected. Leaves to others:
//! filters ([`super::criteria`]).

use std::collections::BTreeMap;

use alloy_primitives::B256;
use logmill_pipeline::View;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::{RpcError, RpcResult};
use super::hex;

pub(crate) struct Params<'a>(Vec<&'a RawValue>);

impl<'a> Params<'a> {
    /// Parses an array of at most `positions_max` values; a missing or `null` array is empty.
    pub(crate) fn read(text: Option<&'a RawValue>, positions_max: usize) -> RpcResult<Self> {
        let Some(text) = text.map(RawValue::get).filter(|text| *text != "null") else {
            return Ok(Self(Vec::new()));
        };
        let list: Vec<&RawValue> =
            serde_json::from_str(text).map_err(|_| RpcError::params("non-array args"))?;
        if list.len() > positions_max {
            let why = format!("too many arguments, want at most {positions_max}");
            return Err(RpcError::params(why));
        }
        Ok(Self(list))
    }

    /// The value at a position; `None` if it is missing or `null`.
    pub(crate) fn get<T: DeserializeOwned>(&self, position: usize) -> RpcResult<Option<T>> {
        let Some(text) = self.0.get(position).filter(|text| text.get() != "null") else {
            return Ok(None);
        };
        let wrong = |error: serde_json::Error| {
            // Serde's message ends with a line and column inside the parameter, which mean nothing to the client.
            let why = error.to_string();
            let why = why.split(" at line ").next().unwrap_or_default();
            RpcError::params(format!("invalid argument {position}: {why}"))
        };
        serde_json::from_str(text.get()).map(Some).map_err(wrong)
    }

    /// The value at a position; an error if it is missing or `null`.
    pub(crate) fn read_at<T: DeserializeOwned>(&self, position: usize) -> RpcResult<T> {
        let missing =
            || RpcError::params(format!("missing value for required argument {position}"));
        self.get(position)?.ok_or_else(missing)
    }
}

/// The fields of an object. An array is rejected; a derived `Deserialize` would read it as the fields in order.
pub(super) fn fields(text: &str) -> Result<BTreeMap<String, &RawValue>, String> {
    if !text.trim_start().starts_with('{') {
        return Err(format!("expected an object, got {}", kind(text)));
    }
    serde_json::from_str(text).map_err(|_| "invalid object".to_owned())
}

/// A string field; `None` if it is missing or `null`.
pub(super) fn text_field(
    fields: &BTreeMap<String, &RawValue>,
    name: &str,
) -> Result<Option<String>, String> {
    let Some(value) = fields.get(name).filter(|value| value.get() != "null") else {
        return Ok(None);
    };
    text(value).map(Some).map_err(|why| format!("{name}: {why}"))
}

/// A JSON string.
pub(super) fn text(value: &RawValue) -> Result<String, String> {
    let wrong = || format!("expected a string, got {}", kind(value.get()));
    serde_json::from_str(value.get()).map_err(|_| wrong())
}

/// The type of a JSON value, judged by its first character.
fn kind(text: &str) -> &'static str {
    match text.trim_start().bytes().next() {
        Some(b'"') => "a string",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// A number in hex digits with `0x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Quantity(pub(crate) u64);

impl TryFrom<String> for Quantity {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        hex::quantity(&text).map(Self)
    }
}

/// The hash of a block or a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Hash(pub(crate) B256);

impl TryFrom<String> for Hash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        hex::fixed(&text).map(|bytes| Self(B256::from(bytes)))
    }
}

/// Any number of bytes, in hex digits with `0x`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Data(pub(crate) Vec<u8>);

impl TryFrom<String> for Data {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        hex::data(&text).map(Self)
    }
}

/// A block by its number or tag.
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
            "latest" => Self::Latest,
            "safe" => Self::Safe,
            "finalized" => Self::Finalized,
            "pending" => Self::Pending,
            text => match hex::quantity(text)? {
                number if i64::try_from(number).is_err() => {
                    return Err("block number larger than int64".to_owned());
                }
                number => Self::Number(number),
            },
        })
    }
}

impl Tag {
    /// Resolves the tag to a block number in a view. A number is returned as it is, even if there is no such block.
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

/// A block by number, tag or hash; also in the object form of EIP-1898.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockSelector {
    Tag(Tag),
    Hash(B256),
}

/// Length of a hash in hex digits with `0x`.
const HASH_CHARS: usize = 66;

impl BlockSelector {
    pub(super) fn read(json: &RawValue) -> Result<Self, String> {
        if json.get().starts_with('"') {
            let text = text(json)?;
            return match text.len() {
                HASH_CHARS => Hash::try_from(text).map(|hash| Self::Hash(hash.0)),
                _ => Tag::try_from(text).map(Self::Tag),
            };
        }
        let fields = fields(json.get())?;
        if let Some(value) = fields.get("requireCanonical").filter(|value| value.get() != "null")
            && !matches!(value.get(), "true" | "false")
        {
            return Err("requireCanonical: expected a boolean".to_owned());
        }
        let (number, hash) =
            (text_field(&fields, "blockNumber")?, text_field(&fields, "blockHash")?);
        match (number, hash) {
            (Some(number), None) => {
                let tag = Tag::try_from(number).map_err(|why| format!("blockNumber: {why}"))?;
                Ok(Self::Tag(tag))
            }
            (None, Some(hash)) => {
                let hash = Hash::try_from(hash).map_err(|why| format!("blockHash: {why}"))?;
                Ok(Self::Hash(hash.0))
            }
            (Some(_), Some(_)) => {
                let why = "cannot specify both BlockHash and BlockNumber, choose one or the other";
                Err(why.to_owned())
            }
            (None, None) => Err("either blockNumber or blockHash is required".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for BlockSelector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        Self::read(&json).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tags_and_hashes_are_distinguished() {
        let read =
            |text: &str| serde_json::from_str::<BlockSelector>(text).map_err(|e| e.to_string());
        let word = format!("0x{}", "aB".repeat(32));
        let (text, object) = (format!("\"{word}\""), format!("{{\"blockHash\":\"{word}\"}}"));
        let canonical = format!("{{\"blockHash\":\"{word}\",\"requireCanonical\":true}}");
        let hash = BlockSelector::Hash(B256::repeat_byte(0xab));
        for (text, expected) in [
            ("\"0x0\"", BlockSelector::Tag(Tag::Number(0))),
            ("\"0X1\"", BlockSelector::Tag(Tag::Number(1))),
            ("\"0xff\"", BlockSelector::Tag(Tag::Number(255))),
            ("\"0x7fffffffffffffff\"", BlockSelector::Tag(Tag::Number(i64::MAX as u64))),
            ("\"latest\"", BlockSelector::Tag(Tag::Latest)),
            ("\"earliest\"", BlockSelector::Tag(Tag::Earliest)),
            ("{\"blockNumber\":\"0x5\"}", BlockSelector::Tag(Tag::Number(5))),
            ("{\"blockNumber\":\"safe\",\"blockHash\":null}", BlockSelector::Tag(Tag::Safe)),
            (text.as_str(), hash),
            (object.as_str(), hash),
            (canonical.as_str(), hash),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        let both = format!("{{\"blockNumber\":\"0x1\",\"blockHash\":\"{word}\"}}");
        let bare = format!("\"{}ab\"", &word[2..]);
        for (text, why) in [
            ("5", "expected an object, got a number"),
            ("true", "expected an object, got a boolean"),
            ("[\"0x1\"]", "expected an object, got an array"),
            ("[]", "expected an object, got an array"),
            ("{}", "either blockNumber or blockHash is required"),
            ("{\"blockNumber\":1}", "blockNumber: expected a string, got a number"),
            ("{\"blockNumber\":\"0x01\"}", "blockNumber: hex number with leading zero digits"),
            ("{\"blockHash\":\"0x01\"}", "blockHash: hex string has length 2, want 64"),
            (
                both.as_str(),
                "cannot specify both BlockHash and BlockNumber, choose one or the other",
            ),
            ("\"\"", "empty hex string"),
            ("\"5\"", "hex string without 0x prefix"),
            ("\"ff\"", "hex string without 0x prefix"),
            (bare.as_str(), "hex string without 0x prefix"),
            ("\"0x\"", "hex string \"0x\""),
            ("\"0x00\"", "hex number with leading zero digits"),
            ("\"0x01\"", "hex number with leading zero digits"),
            ("\"0x+5\"", "invalid hex string"),
            ("\"0x8000000000000000\"", "block number larger than int64"),
            ("\"0x10000000000000000\"", "hex number > 64 bits"),
            ("\"newest\"", "hex string without 0x prefix"),
            ("\"Latest\"", "hex string without 0x prefix"),
        ] {
            let said = read(text).expect_err(text);
            assert_eq!(said.split(" at line ").next(), Some(why), "{text}");
        }
    }

    #[test]
    fn positions_are_named_in_errors() {
        let text = RawValue::from_string("[\"0x1\", null, 7]".to_owned()).expect("JSON");
        let params = Params::read(Some(&text), 3).expect("an array");
        assert_eq!(params.read_at::<Quantity>(0).map(|number| number.0), Ok(1));
        assert_eq!(params.get::<Quantity>(1).map(|number| number.is_none()), Ok(true));
        let missing = params.read_at::<Quantity>(1).expect_err("null is not a number");
        assert_eq!(
            (missing.code, &*missing.message),
            (-32_602, "missing value for required argument 1")
        );
        let wrong = params.read_at::<Quantity>(2).expect_err("not text");
        assert!(wrong.message.starts_with("invalid argument 2: "), "{}", wrong.message);
        let many = Params::read(Some(&text), 2).err().expect("too many");
        assert_eq!((many.code, &*many.message), (-32_602, "too many arguments, want at most 2"));
        let text = RawValue::from_string("{}".to_owned()).expect("JSON");
        assert!(Params::read(Some(&text), 3).is_err());
        assert!(Params::read(None, 0).is_ok());
    }
}
