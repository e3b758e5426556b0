//! What `eth_getLogs` asks for: the filter object of clients, and the blocks that it means in a view.
//!
//! Guarantees: tags are resolved on the view that is searched; what clients are known to get wrong is refused with the
//! texts of the conformance cases. Leaves to others: searching.

use alloy_primitives::{Address, B256};
use finalized_log_index::{Blocks, BroadPolicy, Filter};
use logmill_pipeline::{Chain, View};
use serde::Deserialize;

use super::error::{RpcError, RpcResult, too_broad};
use super::params::Tag;

const TOPICS_MAX: usize = finalized_log_index::TOPICS_MAX;

/// A filter, with its blocks still unresolved.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct Criteria {
    pub(crate) blocks: Wanted,
    pub(crate) addresses: Vec<Address>,
    pub(crate) topics: Vec<Vec<B256>>,
}

/// In which blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Hash(B256),
    Range { from: Option<Tag>, to: Option<Tag> },
}

/// The object as clients write it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    from_block: Option<Tag>,
    to_block: Option<Tag>,
    block_hash: Option<B256>,
    address: Option<OneOrMany<Address>>,
    topics: Option<Vec<Option<OneOrMany<B256>>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<Option<T>>),
}

impl<T: Ord> OneOrMany<T> {
    /// The alternatives, each once; none is any, and so is a list with `null` in it.
    fn terms(self) -> Vec<T> {
        let mut terms = match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many.into_iter().collect::<Option<Vec<T>>>().unwrap_or_default(),
        };
        terms.sort_unstable();
        terms.dedup();
        terms
    }
}

impl TryFrom<Written> for Criteria {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { from_block: from, to_block: to, block_hash, address, topics } = written;
        let blocks = match (block_hash, from, to) {
            (Some(hash), None, None) => Wanted::Hash(hash),
            (None, from, to) => Wanted::Range { from, to },
            _ => {
                return Err("cannot specify both BlockHash and FromBlock/ToBlock, choose one or \
                            the other"
                    .to_owned());
            }
        };
        let topics = topics.unwrap_or_default();
        if topics.len() > TOPICS_MAX {
            return Err(format!("exceed max topics: {}, at most {TOPICS_MAX}", topics.len()));
        }
        let addresses = address.map(OneOrMany::terms).unwrap_or_default();
        let topics = topics.into_iter().map(|at| at.map(OneOrMany::terms).unwrap_or_default());
        Ok(Self { blocks, addresses, topics: topics.collect() })
    }
}

/// A filter whose blocks are known: a range with its ends, or one block by its hash.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) filter: Filter,
    /// Both ends included; none for a hash.
    pub(crate) range: Option<(u64, u64)>,
}

impl Criteria {
    /// The blocks that are meant, in this view.
    pub(crate) fn resolve(&self, view: &View, blocks_max: u64) -> RpcResult<Resolved> {
        let (blocks, range) = match self.blocks {
            Wanted::Hash(hash) => (Blocks::Hash(hash), None),
            Wanted::Range { from, to } => {
                let (from, to) = range(view, from, to)?;
                check_width(from, to, blocks_max)?;
                (Blocks::Range(from..=to), Some((from, to)))
            }
        };
        Ok(Resolved { filter: self.filter(blocks), range })
    }

    /// Addresses and topics, in these blocks.
    pub(crate) fn filter(&self, blocks: Blocks) -> Filter {
        Filter {
            blocks,
            addresses: self.addresses.clone(),
            topics: self.topics.clone(),
            max_results: None,
        }
    }

    /// Refuses more alternatives than the index takes, wherever the blocks are: whether a block is final yet is no
    /// matter of the client.
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

/// The ends of a range; both are the newest block where nothing is said.
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
        for text in [
            "{\"topics\":[null,null,null,null,null]}",
            "{\"topics\":[\"0x00\"]}",
            "{\"topics\":{}}",
            "{\"address\":\"0x00\"}",
            "[]",
            "7",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("{\"address\":[]}").expect("any").addresses.is_empty());
    }
}
