//! The operator's ways out of a degraded log index.
//!
//! Each says what it will do (`plan:`), what it did (`done:`) and what comes next (`next:`).
//!
//! Guarantees: a dry run ends after the plan and changes nothing; a way out is one commit, so it happened or it did
//! not. Leaves to others: which is right, which a person decides (docs/runbooks).

use finalized_log_index::{Cause, LogIndex, Resolution, Writer};

use super::{bad_argument, blocks, of, open_to_read, with_writer};
use crate::cli::index::{How, Resolve};
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;

/// What is about to be done.
struct Plan {
    resolution: Resolution,
    /// What it does, in words.
    said: String,
    /// What comes after it.
    next: String,
}

/// Plans one way out, and takes it unless it is a dry run.
pub(super) async fn run(settings: &Settings, resolve: Resolve) -> Result<()> {
    let (resolution, How { chain, dry_run }) = match resolve {
        Resolve::Keep { how } => (Resolution::Keep, how),
        Resolve::RebuildFrom { block, how } => (Resolution::RebuildFrom(block), how),
        Resolve::Discard { token, how } => (Resolution::Discard(token), how),
    };
    if dry_run {
        let (chain, index) = open_to_read(settings, chain).await?;
        return match plan(chain, &index, resolution)? {
            Some(plan) => output::line(&format!("plan: {}", plan.said)),
            None => output::line(NOTHING),
        };
    }
    with_writer(settings, chain, async |chain, writer| {
        match plan(chain, writer.index(), resolution)? {
            Some(plan) => carry_out(chain, writer, &plan).await,
            None => output::line(NOTHING),
        }
    })
    .await
}

const NOTHING: &str = "the index is not degraded: there is nothing to resolve";

async fn carry_out(chain: u64, writer: &Writer, plan: &Plan) -> Result<()> {
    // First, so that whoever interrupts it knows what it was about.
    output::line(&format!("plan: {}", plan.said))?;
    of(chain, writer.resolve(plan.resolution)).await?;
    let health = writer.index().health();
    let covered: Vec<String> = health.coverage.iter().map(blocks).collect();
    let covered = if covered.is_empty() { "nothing".to_owned() } else { covered.join(", ") };
    output::line(&format!("done: the index is no longer degraded, and covers {covered}"))?;
    output::line(&format!("next: {}", plan.next))
}

/// What a resolution does to this index; none if it does nothing.
fn plan(chain: u64, index: &LogIndex, resolution: Resolution) -> Result<Option<Plan>> {
    let (said, next) = match resolution {
        Resolution::Keep => match index.health().degraded {
            None => return Ok(None),
            Some(degraded) => (
                "go on with the index as it is, and change nothing in it".to_owned(),
                after_keep(degraded.cause).to_owned(),
            ),
        },
        Resolution::RebuildFrom(block) => plan_rebuild(index, block)?,
        Resolution::Discard(token) => plan_discard(chain, index, token)?,
    };
    Ok(Some(Plan { resolution, said, next }))
}

fn after_keep(cause: Cause) -> &'static str {
    match cause {
        Cause::FinalityViolation => {
            "make sure that the source of the contradicting block is not asked again, or the index stops again"
        }
        Cause::Corruption => {
            "queries that need the damaged bytes still fail, and writes stop again when they meet them, \
             unless what was damaged was restored"
        }
        Cause::Metadata => "reads and writes stop again unless the damaged record was restored",
        Cause::Backlog => "run `logmill index gc` more often, or raise index.guardrails",
    }
}

fn plan_rebuild(index: &LogIndex, block: u64) -> Result<(String, String)> {
    let head = index.health().head;
    let Some(plan) = index.plan_rebuild(block) else {
        return Err(bad_argument("BLOCK", "nothing is indexed yet".to_owned()));
    };
    if let Some(head) = head.filter(|head| block > *head) {
        let why = format!("{block} is above the head {head}: nothing is there to throw away");
        return Err(bad_argument("BLOCK", why));
    }
    let first = plan.first_block;
    let said = format!(
        "throw away all blocks from {first} on: {} chunks, {} blocks of the tail, {} logs",
        plan.chunks, plan.tail_blocks, plan.logs
    );
    let next = format!(
        "ingest goes on with block {first}, from a source that is right; then `logmill index status`, and \
         `logmill index gc` to delete what was thrown away"
    );
    Ok((said, next))
}

fn plan_discard(chain: u64, index: &LogIndex, token: u64) -> Result<(String, String)> {
    let chunks = index.chunks();
    let Some(chunk) = chunks.iter().find(|chunk| chunk.token == token) else {
        let what = format!("there is no chunk of attempt {token:016x}");
        return Err(Error::of_index(chain)(finalized_log_index::Error::Invalid { what }));
    };
    let range = blocks(&chunk.blocks);
    let said = format!("throw away the chunk of blocks {range}: {} logs", chunk.logs);
    let next = format!(
        "blocks {range} are not covered, and queries for them are refused, until they are built again; \
         `logmill index gc` deletes the damaged bytes"
    );
    Ok((said, next))
}
