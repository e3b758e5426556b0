//! Reading a log index: its status and its logs.
//!
//! Guarantees: nothing is changed, and no other process is waited for. JSON has stable names; logs are in the format of
//! `eth_getLogs`. Leaves to others: query semantics ([`finalized_log_index`]).

use finalized_log_index::{
    Cause, Degradation, ExplainedClause, ExplainedSource, Explanation, Filter, HealthReport, Log,
    LogPage, Strategy,
};
use logmill_pipeline::sighting::Sighting;
use serde::Serialize;
use serde_json::{Value, json};

use super::{blocks, of, open_to_read};
use crate::cli::index::{Chain, Logs};
use crate::config::Settings;
use crate::error::Result;
use crate::output::{self, one_line};
use crate::stores::index::IndexStores;
use crate::stores::{Databases, OpenMode};

/// Prints the status of one index, or of all.
pub(super) async fn status(settings: &Settings, chain: Chain, json: bool) -> Result<()> {
    let databases = Databases::open(settings, OpenMode::Read).await?;
    let stores = IndexStores::open(&databases).await?.without_warm_up();
    let chains = match chain.id {
        None => stores.chains().await?,
        Some(_) => Vec::new(),
    };
    let chains = if chains.len() > 1 { chains } else { vec![stores.choose(chain.id).await?] };
    let mut indexes = Vec::new();
    for chain in chains {
        let health = stores.index(chain).await?.health();
        indexes.push((chain, health, stores.sightings(chain).read().await?));
    }
    if json {
        let indexes: Vec<Status> =
            indexes.iter().map(|(chain, health, seen)| Status::new(*chain, health, seen)).collect();
        return output::json(&json!({ "indexes": indexes }));
    }
    for (position, (chain, health, seen)) in indexes.iter().enumerate() {
        if position > 0 {
            output::line("")?;
        }
        output::table(&status_rows(*chain, health, seen.as_ref()))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Status {
    chain: u64,
    degraded: Option<Value>,
    /// Damaged stored blocks that the server's audit has found.
    damaged_blocks: u64,
    /// The chain's head as the writing process last saw it, and how long ago.
    head_seen: Option<Value>,
    head: Option<u64>,
    /// Both ends included.
    coverage: Vec<Value>,
    pruned_below: u64,
    chunks: usize,
    chunks_unanchored: usize,
    tail_blocks: u64,
    writer_epoch: u64,
    logs: u64,
    bytes: u64,
}

impl Status {
    fn new(chain: u64, health: &HealthReport, seen: &Option<Sighting>) -> Self {
        let head_seen = seen
            .as_ref()
            .map(|seen| json!({ "number": seen.head, "seconds_ago": seen.age.as_secs() }));
        let degraded = health.degraded.as_ref().map(|degraded| {
            json!({
                "cause": cause_name(degraded.cause),
                "reason": degraded.reason,
                "stops_reads": degraded.stops_reads(),
            })
        });
        let coverage = health.coverage.iter();
        let coverage =
            coverage.map(|range| json!({ "from": range.start, "to": range.end - 1 })).collect();
        Self {
            chain,
            degraded,
            damaged_blocks: seen.as_ref().map_or(0, |seen| seen.damaged),
            head_seen,
            head: health.head,
            coverage,
            pruned_below: health.pruned_below,
            chunks: health.chunks,
            chunks_unanchored: health.chunks_unanchored,
            tail_blocks: health.tail_blocks,
            writer_epoch: health.writer_epoch,
            logs: health.logs,
            bytes: health.bytes,
        }
    }
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::FinalityViolation => "finality_violation",
        Cause::Corruption => "corruption",
        Cause::Backlog => "backlog",
        Cause::Metadata => "metadata",
    }
}

fn status_rows(chain: u64, health: &HealthReport, seen: Option<&Sighting>) -> Vec<Vec<String>> {
    let mut rows = vec![("chain", chain.to_string())];
    let damaged = seen.map_or(0, |seen| seen.damaged);
    match &health.degraded {
        None if damaged > 0 => {
            rows.push(("state", format!("damaged: the audit found {damaged} damaged blocks")));
            let way_out = "`logmill verify` lists them, `logmill repair` fetches them again";
            rows.push(("way out", way_out.to_owned()));
        }
        None => rows.push(("state", "healthy".to_owned())),
        Some(degraded) => rows.extend(degraded_rows(degraded)),
    }
    let coverage: Vec<String> = health.coverage.iter().map(blocks).collect();
    let coverage = if coverage.is_empty() { "nothing".to_owned() } else { coverage.join(", ") };
    let or_none = |number: Option<u64>| number.map_or("-".to_owned(), |n| n.to_string());
    let seen = seen
        .map_or("never".to_owned(), |seen| format!("{} ({} s ago)", seen.head, seen.age.as_secs()));
    rows.extend([
        // The index holds final blocks only; the newest blocks of the chain are in the tip.
        ("final head", or_none(health.head)),
        ("head of the chain", seen),
        ("covered final blocks", coverage),
        ("pruned below", or_none((health.pruned_below > 0).then_some(health.pruned_below))),
        ("chunks", health.chunks.to_string()),
        ("unanchored chunks", health.chunks_unanchored.to_string()),
        ("tail blocks", health.tail_blocks.to_string()),
        ("logs of final blocks", health.logs.to_string()),
        ("bytes of chunks", health.bytes.to_string()),
        ("writer epoch", health.writer_epoch.to_string()),
    ]);
    rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}

fn degraded_rows(degraded: &Degradation) -> [(&'static str, String); 4] {
    let (cause, stopped, way_out) = match degraded.cause {
        Cause::FinalityViolation => (
            "finality violation",
            "writes and reads",
            "`index resolve keep` or `index resolve rebuild-from BLOCK`; \
             see docs/runbooks/finality-violation-rebuild.md",
        ),
        Cause::Corruption => (
            "corruption",
            "writes, and queries that need the damaged bytes",
            "`logmill repair FIRST-LAST`, `index resolve discard TOKEN` or \
             `index resolve rebuild-from BLOCK`; see docs/runbooks/corrupt-chunk.md",
        ),
        Cause::Backlog => ("backlog", "writes", "`index gc`, then `index resolve keep`"),
        Cause::Metadata => (
            "metadata",
            "writes and reads",
            "restore the damaged record; see docs/runbooks/corrupt-chunk.md",
        ),
    };
    [
        ("state", format!("degraded: {cause}")),
        ("reason", one_line(&degraded.reason)),
        ("stopped", stopped.to_owned()),
        ("way out", way_out.to_owned()),
    ]
}

/// Prints the logs of a range of blocks, or how they were found.
pub(super) async fn logs(settings: &Settings, args: Logs) -> Result<()> {
    let (chain, index) = open_to_read(settings, args.chain).await?;
    let mut filter = Filter::range(args.from..=args.to).limit(args.limit);
    filter.addresses = args.address;
    for (position, topic) in args.topic {
        filter = filter.topic(position, topic);
    }
    if args.explain {
        let explanation = of(chain, index.explain(&filter)).await?;
        return explain(&explanation, args.json);
    }
    let page = of(chain, index.query_finalized(&filter)).await?;
    if args.json {
        let logs: Vec<Value> = page.logs.iter().map(log_json).collect();
        return output::json(&json!({ "logs": logs, "next": page.next }));
    }
    log_table(&page)
}

fn log_table(page: &LogPage) -> Result<()> {
    let head = ["BLOCK", "LOG", "ADDRESS", "TRANSACTION", "DATA BYTES", "TOPICS"];
    let row = |log: &Log| {
        let topics: Vec<String> = log.log.topics.iter().map(|t| format!("{t:#x}")).collect();
        vec![
            log.block_number.to_string(),
            log.log.log_index.to_string(),
            format!("{:#x}", log.log.address),
            format!("{:#x}", log.log.transaction_hash),
            log.log.data.len().to_string(),
            topics.join(" "),
        ]
    };
    let head = head.map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(head).chain(page.logs.iter().map(row)).collect();
    output::table(&rows)?;
    match page.next {
        Some(next) => output::note(&format!(
            "{} logs; there are more, continue with --from {next}",
            page.logs.len()
        )),
        None => output::note(&format!("{} logs; there are no more", page.logs.len())),
    }
    Ok(())
}

/// A log in the format of a node.
fn log_json(log: &Log) -> Value {
    let topics: Vec<String> = log.log.topics.iter().map(|topic| format!("{topic:#x}")).collect();
    json!({
        "address": format!("{:#x}", log.log.address),
        "topics": topics,
        "data": log.log.data.to_string(),
        "blockNumber": format!("{:#x}", log.block_number),
        "blockHash": format!("{:#x}", log.block_hash),
        "blockTimestamp": format!("{:#x}", log.block_timestamp),
        "transactionHash": format!("{:#x}", log.log.transaction_hash),
        "transactionIndex": format!("{:#x}", log.log.transaction_index),
        "logIndex": format!("{:#x}", log.log.log_index),
        "removed": false,
    })
}

fn explain(explanation: &Explanation, json: bool) -> Result<()> {
    if json {
        return output::json(&explanation_json(explanation));
    }
    let head = ["BLOCKS", "WHERE", "PLAN", "PAGES", "BYTES", "CANDIDATES", "MATCHED"];
    let rows = explanation.sources.iter().map(|source| {
        vec![
            blocks(&source.blocks),
            if source.in_tail { "tail" } else { "chunk" }.to_owned(),
            plan(source),
            format!("{} of {}", source.pages_read, source.pages_in_range),
            source.bytes_read.to_string(),
            source.candidates.to_string(),
            source.matched.to_string(),
        ]
    });
    let head = head.map(str::to_owned).to_vec();
    output::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())?;
    output::line(&format!(
        "{} logs from {} pages and {} candidates in {} us, {} replans",
        explanation.results,
        explanation.pages_read(),
        explanation.candidates(),
        explanation.took.as_micros(),
        explanation.replans
    ))
}

/// The plan for one source: the clauses in the order in which they were looked up.
fn plan(source: &ExplainedSource) -> String {
    let clause = |position: &usize| {
        source.clauses.get(*position).map_or_else(String::new, |clause| {
            format!("{}[{}/{}]~{}", clause.kind, clause.terms_found, clause.terms, clause.estimate)
        })
    };
    match &source.strategy {
        Strategy::Nothing => "nothing can match".to_owned(),
        Strategy::Scan => "scan".to_owned(),
        Strategy::Index(order) => order.iter().map(clause).collect::<Vec<_>>().join(" & "),
    }
}

fn explanation_json(explanation: &Explanation) -> Value {
    let sources: Vec<Value> = explanation.sources.iter().map(source_json).collect();
    json!({
        "sources": sources,
        "results": explanation.results,
        "replans": explanation.replans,
        "took_us": u64::try_from(explanation.took.as_micros()).unwrap_or(u64::MAX),
    })
}

fn source_json(source: &ExplainedSource) -> Value {
    let clause = |clause: &ExplainedClause| {
        json!({
            "kind": clause.kind,
            "terms": clause.terms,
            "terms_found": clause.terms_found,
            "estimate": clause.estimate,
        })
    };
    json!({
        "from": source.blocks.start,
        "to": source.blocks.end - 1,
        "in_tail": source.in_tail,
        "plan": plan(source),
        "clauses": source.clauses.iter().map(clause).collect::<Vec<_>>(),
        "pages_in_range": source.pages_in_range,
        "pages_read": source.pages_read,
        "bytes_read": source.bytes_read,
        "candidates": source.candidates,
        "matched": source.matched,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_names_clauses_in_the_order_of_their_lookup() {
        let clause = |kind: &str, terms_found, estimate| ExplainedClause {
            kind: kind.to_owned(),
            terms: 2,
            terms_found,
            estimate,
        };
        let mut source = ExplainedSource {
            blocks: 0..1,
            in_tail: false,
            strategy: Strategy::Index(vec![1, 0]),
            clauses: vec![clause("addr", 2, 70), clause("topic0", 1, 3)],
            pages_in_range: 0,
            pages_read: 0,
            bytes_read: 0,
            candidates: 0,
            matched: 0,
        };
        assert_eq!(plan(&source), "topic0[1/2]~3 & addr[2/2]~70");
        source.strategy = Strategy::Scan;
        assert_eq!(plan(&source), "scan");
    }
}
