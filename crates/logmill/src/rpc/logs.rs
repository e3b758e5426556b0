//! `eth_getLogs`, and our own ways to ask for logs: with a cursor, with an explanation, and what is covered.
//!
//! A cursor names the next block, the last one wanted, and the hash of the block before the next: if that has been
//! replaced, pages would not fit together, and the cursor is refused.
//!
//! Guarantees: one view per call; more results than allowed are an error that says which blocks would do. Leaves to
//! others: how logs are found.

use alloy_primitives::B256;
use finalized_log_index::{Blocks, Explanation, LogPage, Strategy};
use logmill_chain::{BlockRef, render};
use logmill_pipeline::View;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Answer, LogAnswer};
use super::criteria::{Criteria, Resolved, Wanted};
use super::error::{RpcError, RpcResult, intervals};
use super::params::{Params, Quantity, Tag};
use super::{Rpc, Served};

impl Rpc {
    /// `eth_getLogs`.
    pub(super) async fn get_logs(&self, served: &Served, params: &Params<'_>) -> RpcResult<Answer> {
        self.logs_of(served, &params.read_at(0)?).await
    }

    /// All logs of a filter, if they are not too many.
    pub(super) async fn logs_of(&self, served: &Served, wanted: &Criteria) -> RpcResult<Answer> {
        wanted.check_terms(&served.chain)?;
        let view = served.chain.view().await?;
        let resolved = wanted.resolve(&view, self.limits.max_blocks)?;
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

    /// `logmill_getLogs`: a page of logs, the range with its hashes, and a cursor to go on with.
    pub(super) async fn page_of_logs(
        &self,
        served: &Served,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let wanted: Criteria = params.read_at(0)?;
        let paging: Paging = params.get(1)?.unwrap_or_default();
        wanted.check_terms(&served.chain)?;
        let view = served.chain.view().await?;
        let mut resolved = match &paging.cursor {
            None => wanted.resolve(&view, self.limits.max_blocks)?,
            Some(cursor) => go_on(&view, &wanted, cursor, self.limits.max_blocks).await?,
        };
        let limit = paging.limit.map_or(self.limits.max_results, |limit| limit.results());
        let limit = limit.min(self.limits.max_results);
        if limit == 0 {
            return Err(RpcError::params("invalid argument 1: a limit of 0"));
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
        let range = json!({"from": shown(&from), "to": shown(&to)});
        let before = format!("{{\"range\":{range},\"cursor\":{cursor},\"logs\":").into_bytes();
        Ok(Answer::Logs(LogAnswer { before, logs: page.logs, after: b"}".to_vec() }))
    }

    /// `logmill_explain`: how a query is answered.
    pub(super) async fn explain(&self, served: &Served, params: &Params<'_>) -> RpcResult<Answer> {
        let wanted: Criteria = params.read_at(0)?;
        wanted.check_terms(&served.chain)?;
        let view = served.chain.view().await?;
        let resolved = wanted.resolve(&view, self.limits.max_blocks)?;
        let index = served.chain.index();
        let final_to = view.finalized().map(|block| block.number);
        let mut filter = resolved.filter.limit(self.limits.max_results);
        // What is above the final blocks is compared one by one, in memory.
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
        let range = resolved.range.map(|(from, to)| json!({"from": hex(from), "to": hex(to)}));
        Answer::json(&json!({
            "range": range,
            "tipBlocks": hex(tip),
            "results": explanation.results,
            "replans": explanation.replans,
            "tookMicros": u64::try_from(explanation.took.as_micros()).unwrap_or(u64::MAX),
            "sources": explanation.sources.iter().take(SOURCES_MAX).map(source).collect::<Value>(),
            "sourcesTotal": explanation.sources.len(),
        }))
    }

    /// `logmill_coverage`: what is stored.
    pub(super) async fn coverage(&self, served: &Served) -> RpcResult<Answer> {
        let view = served.chain.view().await?;
        let block = |block: Option<BlockRef>| block.map(|block| shown(&block));
        Answer::json(&json!({
            "chainId": hex(served.chain.chain_id()),
            "head": block(view.head()),
            "safe": block(view.safe()),
            "finalized": block(view.finalized()),
            "covered": intervals(&view.covered()),
            "complete": view.is_complete(),
        }))
    }
}

/// The most sources that an explanation lists.
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

fn shown(block: &BlockRef) -> Value {
    json!({"number": hex(block.number), "hash": block.hash, "timestamp": hex(block.timestamp)})
}

fn hex(number: u64) -> String {
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
        "from": hex(source.blocks.start),
        "to": hex(source.blocks.end.saturating_sub(1)),
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

/// How `logmill_getLogs` is paged.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Paging {
    cursor: Option<Cursor>,
    limit: Option<Limit>,
}

/// A number, as JSON has it or as Ethereum writes it.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Limit {
    Plain(u64),
    Hex(Quantity),
}

impl Limit {
    fn results(self) -> usize {
        let (Self::Plain(limit) | Self::Hex(Quantity(limit))) = self;
        usize::try_from(limit).unwrap_or(usize::MAX)
    }
}

/// Where the next page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
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
        let wrong = "not a cursor of ours";
        let mut parts = text.splitn(3, '-');
        let mut part = || parts.next().ok_or(wrong);
        let (next, to, before) = (part()?, part()?, part()?);
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong);
        let cursor = Self {
            next: number(next)?,
            to: number(to)?,
            before: before.parse().map_err(|_| wrong)?,
        };
        let is_fine = cursor.next > 0 && cursor.next <= cursor.to;
        is_fine.then_some(cursor).ok_or(wrong)
    }
}

/// The rest of the blocks of a cursor.
async fn go_on(
    view: &View,
    wanted: &Criteria,
    cursor: &Cursor,
    blocks_max: u64,
) -> RpcResult<Resolved> {
    let before = view.block_ref(cursor.next - 1).await?;
    if before.is_none_or(|before| before.hash != cursor.before) {
        return Err(RpcError::unknown(
            "the chain has changed since the cursor was given: begin again",
        ));
    }
    let (from, to) = (Some(Tag::Number(cursor.next)), Some(Tag::Number(cursor.to)));
    let rest = Criteria { blocks: Wanted::Range { from, to }, ..wanted.clone() };
    rest.resolve(view, blocks_max)
}

/// Writes the hash of a block.
pub(super) fn write_hash(out: &mut Vec<u8>, hash: &B256) {
    render::bytes(out, hash.as_slice());
}
