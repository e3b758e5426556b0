//! `eth_getLogs`, and Logmill's own methods for logs: pages with a cursor, query explanation, and coverage.
//!
//! A cursor holds the next block, the last requested block, and the hash of the block before the next. If that block
//! has been replaced, the pages would not fit together, and the cursor is rejected.
//!
//! Guarantees: one view per call; too many results are an error that suggests a smaller range. Leaves to others: the
//! search.

use alloy_primitives::B256;
use finalized_log_index::{Blocks, Explanation, LogPage, Strategy};
use logmill_chain::{BlockRef, render};
use logmill_pipeline::View;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::answer::{Answer, LogAnswer};
use super::criteria::{BlockSelection, Criteria, ResolvedFilter};
use super::error::{RpcError, RpcResult, intervals};
use super::hex;
use super::params::{Params, Tag, fields, text_field};
use super::{Rpc, ServedChain};

impl Rpc {
    /// `eth_getLogs`.
    pub(super) async fn get_logs(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        self.logs_of(served, &params.read_at(0)?).await
    }

    /// All logs of a filter; fails if there are more than `max_results`.
    pub(super) async fn logs_of(
        &self,
        served: &ServedChain,
        criteria: &Criteria,
    ) -> RpcResult<Answer> {
        criteria.check_terms(&served.chain)?;
        let view = served.chain.view().await?;
        let resolved = criteria.resolve(&view, self.limits.max_blocks)?;
        let max = self.limits.max_results;
        let page = find(&view, resolved.filter.limit(max)).await?;
        match (page.next, resolved.range) {
            (Some(next), Some((from, _))) => {
                let last = next.saturating_sub(1);
                let why =
                    format!("query exceeds max results {max}, retry with the range {from}-{last}");
                let limit = u64::try_from(max).unwrap_or(u64::MAX);
                Err(RpcError::limit_of_range(why, limit, from, last, "results"))
            }
            _ => Ok(Answer::logs(page.logs)),
        }
    }

    /// `logmill_getLogs`: a page of logs, the first and last block of the range, and a cursor for the next page.
    pub(super) async fn page_of_logs(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let criteria: Criteria = params.read_at(0)?;
        let paging: Paging = params.get(1)?.unwrap_or_default();
        criteria.check_terms(&served.chain)?;
        let view = served.chain.view().await?;
        let mut resolved = match &paging.cursor {
            None => criteria.resolve(&view, self.limits.max_blocks)?,
            Some(cursor) => resume(&view, &criteria, cursor, self.limits.max_blocks).await?,
        };
        let limit = paging.limit.unwrap_or(self.limits.max_results);
        let limit = limit.min(self.limits.max_results);
        if limit == 0 {
            return Err(RpcError::params("invalid argument 1: the limit must be at least 1"));
        }
        resolved.filter.max_results = Some(limit);
        let page = find(&view, resolved.filter.clone()).await?;
        let (from, to) = match (resolved.range, &resolved.filter.blocks) {
            (Some((from, to)), _) => (read_block(&view, from).await?, read_block(&view, to).await?),
            (None, Blocks::Hash(hash)) => {
                let block = view.block_ref_by_hash(hash).await?;
                let block = block.ok_or_else(RpcError::block_not_found)?;
                (block, block)
            }
            (None, _) => return Err(RpcError::internal()),
        };
        let cursor = match page.next {
            None => Value::Null,
            Some(next) => {
                let before = read_block(&view, next.saturating_sub(1)).await?;
                json!(Cursor { next, to: to.number, before: before.hash }.to_string())
            }
        };
        let range = json!({"from": block_json(&from), "to": block_json(&to)});
        let before = format!("{{\"range\":{range},\"cursor\":{cursor},\"logs\":").into_bytes();
        Ok(Answer::Logs(LogAnswer { before, logs: page.logs, after: b"}".to_vec() }))
    }

    /// `logmill_explain`: how the index answers a query.
    pub(super) async fn explain(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let criteria: Criteria = params.read_at(0)?;
        criteria.check_terms(&served.chain)?;
        let view = served.chain.view().await?;
        let resolved = criteria.resolve(&view, self.limits.max_blocks)?;
        let index = served.chain.index();
        let final_to = view.finalized().map(|block| block.number);
        let mut filter = resolved.filter.limit(self.limits.max_results);
        // Blocks above the final ones are scanned in memory and are not part of the index.
        let (explanation, tip) = match (resolved.range, final_to) {
            (Some((from, to)), Some(head)) if from <= head => {
                filter.blocks = Blocks::Range(from..=to.min(head));
                (index.explain(&filter).await?, to.saturating_sub(head))
            }
            (Some((from, to)), _) => (Explanation::default(), to - from + 1),
            (None, _) => match index.explain(&filter).await {
                Err(finalized_log_index::Error::BlockNotFound { .. }) => {
                    // The block may be in the tip.
                    view.logs(&filter).await?;
                    (Explanation::default(), 1)
                }
                explained => (explained?, 0),
            },
        };
        let range =
            resolved.range.map(|(from, to)| json!({"from": quantity(from), "to": quantity(to)}));
        Answer::json(&json!({
            "range": range,
            "tipBlocks": quantity(tip),
            "results": explanation.results,
            "replans": explanation.replans,
            "tookMicros": u64::try_from(explanation.took.as_micros()).unwrap_or(u64::MAX),
            "sources": explanation.sources.iter().take(SOURCES_MAX).map(source).collect::<Value>(),
            "sourcesTotal": explanation.sources.len(),
        }))
    }

    /// `logmill_coverage`: the stored blocks.
    pub(super) async fn coverage(&self, served: &ServedChain) -> RpcResult<Answer> {
        let view = served.chain.view().await?;
        let block = |block: Option<BlockRef>| block.map(|block| block_json(&block));
        Answer::json(&json!({
            "chainId": quantity(served.chain.chain_id()),
            "head": block(view.head()),
            "safe": block(view.safe()),
            "finalized": block(view.finalized()),
            "covered": intervals(&view.covered()),
            "complete": view.is_complete(),
        }))
    }
}

/// Maximum number of sources in an explanation.
const SOURCES_MAX: usize = 1_000;

async fn find(view: &View, filter: finalized_log_index::Filter) -> RpcResult<LogPage> {
    view.logs(&filter).await.map_err(|error| match error {
        logmill_pipeline::Error::BlockNotFound { .. } if !view.is_complete() => {
            let covered = json!({"covered": intervals(&view.covered())});
            RpcError { data: Some(covered), ..RpcError::block_not_found() }
        }
        error => error.into(),
    })
}

async fn read_block(view: &View, number: u64) -> RpcResult<BlockRef> {
    let block = view.block_ref(number).await?;
    block.ok_or_else(|| RpcError::not_stored(&format!("block {number}"), &view.covered()))
}

fn block_json(block: &BlockRef) -> Value {
    json!({"number": quantity(block.number), "hash": block.hash, "timestamp": quantity(block.timestamp)})
}

fn quantity(number: u64) -> String {
    format!("0x{number:x}")
}

fn source(source: &finalized_log_index::ExplainedSource) -> Value {
    let clauses = source.clauses.iter().map(|clause| {
        json!({
            "kind": clause.kind,
            "terms": clause.terms,
            "termsFound": clause.terms_found,
            "estimate": clause.estimate,
        })
    });
    json!({
        "from": quantity(source.blocks.start),
        "to": quantity(source.blocks.end.saturating_sub(1)),
        "inTail": source.in_tail,
        "strategy": strategy(&source.strategy),
        "clauses": clauses.collect::<Value>(),
        "pagesInRange": source.pages_in_range,
        "pagesRead": source.pages_read,
        "bytesRead": source.bytes_read,
        "candidates": source.candidates,
        "matched": source.matched,
    })
}

fn strategy(strategy: &Strategy) -> String {
    format!("{strategy:?}")
}

/// The paging parameter of `logmill_getLogs`.
#[derive(Default)]
struct Paging {
    cursor: Option<Cursor>,
    limit: Option<usize>,
}

impl Paging {
    fn read(json: &str) -> Result<Self, String> {
        let fields = fields(json)?;
        if let Some(name) = fields.keys().find(|name| !matches!(name.as_str(), "cursor" | "limit"))
        {
            let name: String = name.chars().take(64).collect();
            return Err(format!("unknown field {name:?}, want cursor and limit"));
        }
        let cursor = text_field(&fields, "cursor")?.map(Cursor::try_from).transpose()?;
        let limit = match fields.get("limit").map(|value| value.get()) {
            None | Some("null") => None,
            Some(text) if text.starts_with('"') => {
                let text = text_field(&fields, "limit")?.unwrap_or_default();
                Some(hex::quantity(&text).map_err(|why| format!("limit: {why}"))?)
            }
            Some(text) => Some(text.parse().map_err(|_| "limit: expected a whole number")?),
        };
        Ok(Self { cursor, limit: limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)) })
    }
}

impl<'de> Deserialize<'de> for Paging {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        Self::read(json.get()).map_err(D::Error::custom)
    }
}

/// Start of the next page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    next: u64,
    to: u64,
    /// The hash of the block before `next`.
    before: B256,
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.next, self.to, self.before)
    }
}

impl TryFrom<String> for Cursor {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = "invalid cursor";
        let mut parts = text.splitn(3, '-');
        let mut part = || parts.next().ok_or(wrong);
        let (next, to, before) = (part()?, part()?, part()?);
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong);
        let cursor = Self {
            next: number(next)?,
            to: number(to)?,
            before: before.parse().map_err(|_| wrong)?,
        };
        // Accept only the exact form that was issued.
        let is_fine = cursor.next > 0 && cursor.next <= cursor.to && cursor.to_string() == text;
        is_fine.then_some(cursor).ok_or(wrong)
    }
}

/// Resolves the remaining blocks of a cursor.
async fn resume(
    view: &View,
    criteria: &Criteria,
    cursor: &Cursor,
    blocks_max: u64,
) -> RpcResult<ResolvedFilter> {
    let before = view.block_ref(cursor.next - 1).await?;
    if before.is_none_or(|before| before.hash != cursor.before) {
        return Err(RpcError::unknown(
            "the chain changed after the cursor was issued: start again without a cursor",
        ));
    }
    let (from, to) = (Some(Tag::Number(cursor.next)), Some(Tag::Number(cursor.to)));
    let rest = Criteria { blocks: BlockSelection::Range { from, to }, ..criteria.clone() };
    rest.resolve(view, blocks_max)
}

pub(super) fn write_hash(out: &mut Vec<u8>, hash: &B256) {
    render::bytes(out, hash.as_slice());
}
