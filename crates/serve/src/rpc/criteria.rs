//! The filter object of `eth_getLogs`, and its resolution to blocks of a view.
//!
//! Guarantees: tags are resolved on the view that is searched; known client mistakes are rejected with the error texts
//! of the conformance cases. Leaves to others: searching.

use alloy_primitives::{Address, B256};
use finalized_log_index::{Blocks, BroadPolicy, Filter};
use logmill_pipeline::{Chain, View};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::{RpcError, RpcResult, too_broad};
use super::hex;
use super::params::{Tag, fields, text, text_field};

const TOPICS_MAX: usize = finalized_log_index::TOPICS_MAX;

/// A filter, with its blocks still unresolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Criteria {
    pub(crate) blocks: BlockSelection,
    pub(crate) addresses: Vec<Address>,
    pub(crate) topics: Vec<Vec<B256>>,
}

/// Block selection of a filter, unresolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockSelection {
    Hash(B256),
    Range { from: Option<Tag>, to: Option<Tag> },
}

impl Criteria {
    /// Parses the filter object; unknown fields are ignored.
    fn read(json: &str) -> Result<Self, String> {
        let fields = fields(json)?;
        let tag = |name| -> Result<Option<Tag>, String> {
            let text = text_field(&fields, name)?;
            let tag = text.map(|text| Tag::try_from(text).map_err(|why| format!("{name}: {why}")));
            tag.transpose()
        };
        let (from, to) = (tag("fromBlock")?, tag("toBlock")?);
        let hash = text_field(&fields, "blockHash")?.map(|text| hex::fixed(&text).map(B256::from));
        let hash = hash.transpose().map_err(|why| format!("blockHash: {why}"))?;
        let blocks = match (hash, from, to) {
            (Some(hash), None, None) => BlockSelection::Hash(hash),
            (None, from, to) => BlockSelection::Range { from, to },
            (Some(_), _, _) => {
                return Err("cannot specify both BlockHash and FromBlock/ToBlock, choose one or \
                            the other"
                    .to_owned());
            }
        };
        let is_given = |value: &&&RawValue| value.get() != "null";
        let addresses = fields.get("address").filter(is_given).map(|json| addresses(json));
        let topics = fields.get("topics").filter(is_given).map(|json| topics(json));
        Ok(Self {
            blocks,
            addresses: addresses.transpose()?.unwrap_or_default(),
            topics: topics.transpose()?.unwrap_or_default(),
        })
    }
}

impl<'de> Deserialize<'de> for Criteria {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        Self::read(json.get()).map_err(D::Error::custom)
    }
}

/// One address or a list; an empty list matches any. `null` in a list is rejected, as it would match every address.
fn addresses(json: &RawValue) -> Result<Vec<Address>, String> {
    let read = |json: &RawValue| hex::fixed(&text(json)?).map(Address::from);
    let Some(list) = list(json) else {
        return read(json).map(|one| vec![one]).map_err(|why| format!("invalid address: {why}"));
    };
    let mut addresses = Vec::with_capacity(list.len());
    for (at, json) in list.into_iter().enumerate() {
        if !json.get().starts_with('"') {
            return Err(format!("non-string address at index {at}"));
        }
        let address = read(json).map_err(|why| format!("invalid address at index {at}: {why}"))?;
        addresses.push(address);
    }
    Ok(distinct(addresses))
}

/// The alternatives at each position. An empty list matches any topic, and so does a list that contains `null`.
fn topics(json: &RawValue) -> Result<Vec<Vec<B256>>, String> {
    let positions = list(json).ok_or("invalid topics: expected an array")?;
    if positions.len() > TOPICS_MAX {
        return Err(format!("exceed max topics: {}, at most {TOPICS_MAX}", positions.len()));
    }
    let mut topics = Vec::with_capacity(positions.len());
    for (at, json) in positions.into_iter().enumerate() {
        let wrong = |why| format!("invalid topic at index {at}: {why}");
        let read = |json: &RawValue| hex::fixed(&text(json)?).map(B256::from);
        topics.push(match list(json) {
            None if json.get() == "null" => Vec::new(),
            None => vec![read(json).map_err(wrong)?],
            // Every entry is parsed, so that an invalid one is rejected even beside a `null`.
            Some(list) => {
                let each = list.into_iter().map(|json| match json.get() {
                    "null" => Ok(None),
                    _ => read(json).map(Some),
                });
                let each: Vec<Option<B256>> = each.collect::<Result<_, _>>().map_err(wrong)?;
                distinct(each.into_iter().collect::<Option<Vec<B256>>>().unwrap_or_default())
            }
        });
    }
    Ok(topics)
}

/// The values of a JSON array; `None` for other JSON.
fn list(json: &RawValue) -> Option<Vec<&RawValue>> {
    json.get().starts_with('[').then(|| serde_json::from_str(json.get()).ok()).flatten()
}

/// Sorts, and removes duplicates.
fn distinct<T: Ord>(mut terms: Vec<T>) -> Vec<T> {
    terms.sort_unstable();
    terms.dedup();
    terms
}

/// A filter whose tags are resolved.
#[derive(Debug)]
pub(crate) struct ResolvedFilter {
    pub(crate) filter: Filter,
    /// Inclusive; `None` for a block hash.
    pub(crate) range: Option<(u64, u64)>,
}

impl Criteria {
    /// Resolves the tags in this view, and rejects a range of more than `blocks_max` blocks.
    pub(crate) fn resolve(&self, view: &View, blocks_max: u64) -> RpcResult<ResolvedFilter> {
        let (blocks, range) = match self.blocks {
            BlockSelection::Hash(hash) => (Blocks::Hash(hash), None),
            BlockSelection::Range { from, to } => {
                let (from, to) = range(view, from, to)?;
                check_width(from, to, blocks_max)?;
                (Blocks::Range(from..=to), Some((from, to)))
            }
        };
        Ok(ResolvedFilter { filter: self.filter(blocks), range })
    }

    pub(crate) fn filter(&self, blocks: Blocks) -> Filter {
        Filter {
            blocks,
            addresses: self.addresses.clone(),
            topics: self.topics.clone(),
            max_results: None,
        }
    }

    /// Rejects more alternatives than the index accepts, even for blocks that are not final: whether a block is final
    /// must not change what a client may ask.
    pub(crate) fn check_terms(&self, chain: &Chain) -> RpcResult<()> {
        let settings = chain.index().settings();
        let most = self.topics.iter().map(Vec::len).chain([self.addresses.len()]).max();
        let (most, max) = (most.unwrap_or(0), settings.max_or_terms);
        if most > max && settings.broad_policy == BroadPolicy::Error {
            return Err(too_broad(most, max));
        }
        Ok(())
    }
}

/// Resolves both ends of a range; each defaults to the newest block.
fn range(view: &View, from: Option<Tag>, to: Option<Tag>) -> RpcResult<(u64, u64)> {
    let reversed = || RpcError::params("invalid block range params");
    if from == Some(Tag::Pending) || to == Some(Tag::Pending) {
        return Err(RpcError::params("pending logs are not supported"));
    }
    if let (Some(Tag::Number(from)), Some(Tag::Number(to))) = (from, to)
        && from > to
    {
        return Err(reversed());
    }
    let from = from.unwrap_or(Tag::Latest).resolve(view)?;
    let to = to.unwrap_or(Tag::Latest).resolve(view)?;
    let head = Tag::Latest.resolve(view)?;
    if from > head || to > head {
        return Err(RpcError::params("block range extends beyond current head block"));
    }
    if from > to {
        return Err(reversed());
    }
    Ok((from, to))
}

fn check_width(from: u64, to: u64, blocks_max: u64) -> RpcResult<()> {
    if blocks_max == 0 || to - from < blocks_max {
        return Ok(());
    }
    let last = from + (blocks_max - 1);
    let why =
        format!("query exceeds max block range {blocks_max}, retry with the range {from}-{last}");
    Err(RpcError::limit_of_range(why, blocks_max, from, last, "blocks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Criteria, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_and_topics_are_one_many_or_any() {
        let word = |byte: u8| format!("\"0x{}\"", format!("{byte:02x}").repeat(32));
        let (a, b) = (word(0xaa), word(0xbb));
        let all = [B256::repeat_byte(0xaa), B256::repeat_byte(0xbb)];
        for (topics, expected) in [
            ("null".to_owned(), vec![]),
            ("[]".to_owned(), vec![]),
            ("[null]".to_owned(), vec![vec![]]),
            ("[[], null]".to_owned(), vec![vec![], vec![]]),
            (format!("[{a}]"), vec![vec![all[0]]]),
            (format!("[[{b},{a},{b}],{b}]"), vec![all.to_vec(), vec![all[1]]]),
            (format!("[[{a},null]]"), vec![vec![]]),
        ] {
            let read = read(&format!("{{\"topics\":{topics},\"unknown\":1}}")).expect(&topics);
            assert_eq!(read.topics, expected, "{topics}");
        }
        assert!(read("{\"address\":[]}").expect("any").addresses.is_empty());
        assert!(read("{\"address\":null}").expect("any").addresses.is_empty());
    }

    #[test]
    fn filters_that_nodes_reject_are_rejected_with_the_position() {
        let (word, address) = ("ab".repeat(32), "ab".repeat(20));
        for (text, why) in [
            ("[]".to_owned(), "expected an object, got an array"),
            (r#"["0x1","0x2"]"#.to_owned(), "expected an object, got an array"),
            ("7".to_owned(), "expected an object, got a number"),
            ("\"latest\"".to_owned(), "expected an object, got a string"),
            (r#"{"fromBlock":""}"#.to_owned(), "fromBlock: empty hex string"),
            (r#"{"toBlock":""}"#.to_owned(), "toBlock: empty hex string"),
            (r#"{"fromBlock":5}"#.to_owned(), "fromBlock: expected a string, got a number"),
            (r#"{"fromBlock":"5"}"#.to_owned(), "fromBlock: hex string without 0x prefix"),
            (
                r#"{"fromBlock":"0x05"}"#.to_owned(),
                "fromBlock: hex number with leading zero digits",
            ),
            (r#"{"toBlock":"0x"}"#.to_owned(), "toBlock: hex string \"0x\""),
            (r#"{"blockHash":""}"#.to_owned(), "blockHash: empty hex string"),
            (r#"{"blockHash":"0x1"}"#.to_owned(), "blockHash: hex string has length 1, want 64"),
            (format!(r#"{{"blockHash":"{word}"}}"#), "blockHash: hex string without 0x prefix"),
            (r#"{"address":[null]}"#.to_owned(), "non-string address at index 0"),
            (format!(r#"{{"address":["0x{address}",null]}}"#), "non-string address at index 1"),
            (format!(r#"{{"address":[["0x{address}"]]}}"#), "non-string address at index 0"),
            (
                r#"{"address":["0x12"]}"#.to_owned(),
                "invalid address at index 0: hex string has length 2, want 40",
            ),
            (
                r#"{"address":"0x12"}"#.to_owned(),
                "invalid address: hex string has length 2, want 40",
            ),
            (r#"{"address":""}"#.to_owned(), "invalid address: empty hex string"),
            (
                format!(r#"{{"address":"{address}"}}"#),
                "invalid address: hex string without 0x prefix",
            ),
            (r#"{"address":{}}"#.to_owned(), "invalid address: expected a string, got an object"),
            (r#"{"address":7}"#.to_owned(), "invalid address: expected a string, got a number"),
            (r#"{"topics":"0x12"}"#.to_owned(), "invalid topics: expected an array"),
            (r#"{"topics":{}}"#.to_owned(), "invalid topics: expected an array"),
            (
                r#"{"topics":["0x00"]}"#.to_owned(),
                "invalid topic at index 0: hex string has length 2, want 64",
            ),
            (
                r#"{"topics":[null,[null,"0x00"]]}"#.to_owned(),
                "invalid topic at index 1: hex string has length 2, want 64",
            ),
            (
                format!(r#"{{"topics":["{word}"]}}"#),
                "invalid topic at index 0: hex string without 0x prefix",
            ),
            (
                r#"{"topics":[7]}"#.to_owned(),
                "invalid topic at index 0: expected a string, got a number",
            ),
            (
                format!(r#"{{"topics":[[["0x{word}"]]]}}"#),
                "invalid topic at index 0: expected a string, got an array",
            ),
            (
                r#"{"topics":[null,null,null,null,null]}"#.to_owned(),
                "exceed max topics: 5, at most 4",
            ),
        ] {
            let said = read(&text).expect_err(&text);
            assert_eq!(said.split(" at line ").next(), Some(why), "{text}");
        }
    }
}
