//! Operator decisions that end the degraded state of a log index.
//!
//! Each command prints what it will do (`plan:`), what it did (`done:`) and what comes next (`next:`).
//!
//! Guarantees: a dry run ends after the plan and changes nothing; a decision is one commit, so it happened or it did
//! not. Where a server writes the index, the server carries it out, as a job. Leaves to others: which decision is
//! right, which the operator judges (docs/runbooks).

use std::cmp::Ordering;
use std::time::Duration;

use finalized_log_index::{Cause, LogIndex, RebuildPlan, Resolution, Writer};

use logmill_io::{Entropy, OsEntropy};
use logmill_pipeline::resolve;

use super::{bad_argument, blocks, of, open_to_read, with_writer};
use crate::cli::index::{Chain, Resolve, ResolveArgs};
use crate::commands::jobs;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::stores::{Database, Databases, OpenMode};

/// ResolveArgs long a server may take to carry out a decision.
const SERVER_WITHIN: Duration = Duration::from_secs(60);

struct Plan {
    resolution: Resolution,
    /// What will be done.
    description: String,
    /// What the operator should do next.
    next: String,
}

/// Plans a decision, and carries it out unless it is a dry run.
pub(super) async fn run(settings: &Settings, resolve: Resolve) -> Result<()> {
    let (resolution, ResolveArgs { chain, dry_run }) = match resolve {
        Resolve::Keep { args } => (Resolution::Keep, args),
        Resolve::RebuildFrom { block, args } => (Resolution::RebuildFrom(block), args),
        Resolve::Discard { token, args } => (Resolution::Discard(token), args),
    };
    if dry_run {
        let (chain, index) = open_to_read(settings, chain).await?;
        return match plan(chain, &index, resolution)? {
            Some(plan) => output::line(&format!("plan: {}", plan.description)),
            None => output::line(NOTHING),
        };
    }
    let here = with_writer(settings, chain, async |chain, writer| {
        match plan(chain, writer.index(), resolution)? {
            Some(plan) => carry_out(chain, writer, &plan).await,
            None => output::line(NOTHING),
        }
    });
    match here.await {
        Err(error) if is_written(&error) => {
            through_server(settings, chain, resolution, error).await
        }
        outcome => outcome,
    }
}

/// Whether a server holds the data folder, or writes the index.
fn is_written(error: &Error) -> bool {
    match error {
        Error::FolderNeeded { .. } => true,
        Error::Index { source, .. } => matches!(**source, finalized_log_index::Error::Standby),
        _ => false,
    }
}

/// Has the server that writes the index carry it out; `refusal` is returned if there is none.
async fn through_server(
    settings: &Settings,
    chain: Chain,
    resolution: Resolution,
    refusal: Error,
) -> Result<()> {
    let (chain, index) = open_to_read(settings, chain).await?;
    let kind = resolve::kind(chain);
    let queue = Databases::open(settings, OpenMode::Read).await?.queue(Database::Work).await?;
    if !queue.has_runner(&kind).await? {
        return Err(refusal);
    }
    let Some(plan) = plan(chain, &index, resolution)? else {
        return output::line(NOTHING);
    };
    output::line(&format!("plan: {}", plan.description))?;
    let mark = format!("{:x}", OsEntropy.mark());
    let job = resolve::job(chain, resolution, index.last_replacement(), &mark)?;
    jobs::run_on_server(settings, job, Some(SERVER_WITHIN)).await?;
    of(chain, index.refresh()).await?;
    report(&index, &plan)
}

const NOTHING: &str = "the index is not degraded: nothing to resolve";

async fn carry_out(chain: u64, writer: &Writer, plan: &Plan) -> Result<()> {
    // First, so that an operator who interrupts it knows what was about to happen.
    output::line(&format!("plan: {}", plan.description))?;
    of(chain, writer.resolve(plan.resolution)).await?;
    report(writer.index(), plan)
}

/// Prints what was done, and what comes next.
fn report(index: &LogIndex, plan: &Plan) -> Result<()> {
    let health = index.health();
    let covered: Vec<String> = health.coverage.iter().map(blocks).collect();
    let covered = if covered.is_empty() { "nothing".to_owned() } else { covered.join(", ") };
    match health.degraded {
        None => {
            output::line(&format!("done: the index is no longer degraded, and covers {covered}"))?;
        }
        Some(left) => output::line(&format!(
            "done: the index covers {covered}, and is still degraded: {}",
            left.reason
        ))?,
    }
    output::line(&format!("next: {}", plan.next))
}

/// The effect of a resolution on this index; `None` if it has none.
fn plan(chain: u64, index: &LogIndex, resolution: Resolution) -> Result<Option<Plan>> {
    let (description, next) = match resolution {
        Resolution::Keep => match index.health().degraded {
            None => return Ok(None),
            Some(degraded) => (
                "continue with the index as it is, without changes".to_owned(),
                after_keep(degraded.cause).to_owned(),
            ),
        },
        Resolution::RebuildFrom(block) => plan_rebuild(index, block)?,
        Resolution::Discard(token) => plan_discard(chain, index, token)?,
    };
    Ok(Some(Plan { resolution, description, next }))
}

fn after_keep(cause: Cause) -> &'static str {
    match cause {
        Cause::FinalityViolation => {
            "make sure that the source of the contradicting block is no longer used, or the index will stop again"
        }
        Cause::Corruption => {
            "queries that need the damaged bytes still fail, and writes stop again when they need them, \
             unless the bytes were restored"
        }
        Cause::Metadata => {
            "reads and writes will stop again unless the damaged record was restored"
        }
        Cause::Backlog => "run `logmill index gc` more often, or raise index.guardrails",
    }
}

fn plan_rebuild(index: &LogIndex, block: u64) -> Result<(String, String)> {
    let head = index.health().head;
    let Some(plan) = index.plan_rebuild(block) else {
        return Err(bad_argument("BLOCK", "no block is indexed yet".to_owned()));
    };
    if let Some(head) = head.filter(|head| block > *head) {
        let why = format!("{block} is above the head {head}: there is nothing to discard");
        return Err(bad_argument("BLOCK", why));
    }
    let first = plan.first_block;
    let description = format!(
        "discard all blocks from {first} on{}: {} chunks, {} blocks of the tail, {} logs",
        why_another_first(block, &plan),
        plan.chunks,
        plan.tail_blocks,
        plan.logs
    );
    let next = format!(
        "let ingest continue with block {first}, from a correct source; then check `logmill index status`, and \
         run `logmill index gc` to delete the discarded chunks"
    );
    Ok((description, next))
}

/// Why a rebuild does not begin with the block that was named; empty if it does.
fn why_another_first(block: u64, plan: &RebuildPlan) -> String {
    let first = plan.first_block;
    match block.cmp(&first) {
        Ordering::Equal => String::new(),
        Ordering::Less => {
            format!(" (block {block} is not stored, and {first} is the next that is)")
        }
        Ordering::Greater => {
            let part = if plan.chunks > 0 { "a chunk" } else { "the tail" };
            format!(
                " (block {block} is in {part}, which begins with {first} and can only go whole)"
            )
        }
    }
}

fn plan_discard(chain: u64, index: &LogIndex, token: u64) -> Result<(String, String)> {
    let chunks = index.chunks();
    let Some(chunk) = chunks.iter().find(|chunk| chunk.token == token) else {
        let what = format!("no chunk with the token {token:016x}");
        return Err(Error::of_index(chain)(finalized_log_index::Error::Invalid { what }));
    };
    let range = blocks(&chunk.blocks);
    let description = format!("discard the chunk of blocks {range}: {} logs", chunk.logs);
    let next = format!(
        "blocks {range} are not covered, and queries for them are refused, until they are ingested again; \
         run `logmill index gc` to delete the damaged bytes"
    );
    Ok((description, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_that_begins_elsewhere_says_why() {
        let why = |block: u64, chunks: usize| {
            let plan = RebuildPlan { first_block: 128, chunks, tail_blocks: 7, logs: 9 };
            why_another_first(block, &plan)
        };
        assert_eq!(why(128, 1), "");
        let chunk = " (block 130 is in a chunk, which begins with 128 and can only go whole)";
        assert_eq!(why(130, 1), chunk);
        let tail = " (block 130 is in the tail, which begins with 128 and can only go whole)";
        assert_eq!(why(130, 0), tail);
        assert_eq!(why(120, 1), " (block 120 is not stored, and 128 is the next that is)");
    }
}
