//! Blocks that were stored before node fields (values that nodes report beside a block) were kept.
//!
//! On chains whose rules differ from Ethereum's, fees and other fields of such blocks may be wrong, and so may rows
//! derived from them. The version byte of a stored body identifies such blocks ([`stored::is_compared`]). If the tip
//! has any, the whole tip is dropped when a process begins to write, and is fetched again. Final blocks are fetched
//! again in the background, chunk by chunk, newest first; where that changes a block, everything derived from it
//! follows, as after any replacement. `/status` of every process shows the remaining blocks (`ingest.uncompared`).
//!
//! Guarantees: a final block is only replaced by one with the same hash, the published logs and at least the recorded
//! verification level; fetching takes at most half of the time; the search for such blocks reads a bounded number of
//! bodies. Leaves to others: the replacement itself ([`crate::repair`]).

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use finalized_log_index::Writer;
use logmill_chain::{ChainProfile, stored};
use logmill_io::{Clock, ErrorKind};

use crate::chain::Chain;
use crate::error::Result;
use crate::ingest::Progress;
use crate::repair::RepairHandler;
use crate::sighting::UncomparedBlocks;

/// Maximum number of blocks sampled across the stored ranges.
const LOOKS_MAX: u64 = 64;
/// Maximum number of chunks whose first and last blocks are sampled.
const CHUNK_LOOKS_MAX: usize = 2_048;
/// Minimum pause after a chunk.
const PAUSE: Duration = Duration::from_millis(200);
/// Wait before failed chunks are retried.
const RETRY: Duration = Duration::from_secs(300);

/// Drops the tip if it has such blocks. Called when a process begins to write.
pub async fn at_start(chain: &Chain, writer: &Writer) -> Result<()> {
    let id = chain.chain_id();
    if ChainProfile::of(id).has_ethereum_rules() {
        return Ok(());
    }
    let tip = chain.shared.tip.now();
    if tip.blocks.iter().any(|block| !block.node_fields.is_compared()) {
        tracing::info!(chain = id, "fetching the tip again, because it lacks node fields");
        chain.stage(Vec::new(), None, writer.fence()).await?;
    }
    Ok(())
}

/// Fetches such final blocks again until none is left, then waits forever. The error is one after which this process
/// cannot write.
pub async fn refetch(
    chain: &Chain,
    repairs: &RepairHandler,
    progress: &Progress,
    clock: &dyn Clock,
) -> Result<Infallible> {
    let id = chain.chain_id();
    let mut why = None;
    while !ChainProfile::of(id).has_ethereum_rules() {
        let found = find(chain).await;
        let left = found.clone().map(|found| (*found.start(), *found.end()));
        progress.set_uncompared(left.map(|(from, to)| UncomparedBlocks { from, to, why }));
        let Some(found) = found else { break };
        tracing::warn!(
            chain = id,
            from = found.start(),
            to = found.end(),
            "final blocks were stored by an earlier version without node fields, such as the effectiveGasPrice of \
             receipts: fetching them again; until then, fees of this chain may be wrong"
        );
        why = refetch_round(chain, repairs, clock, &found).await?;
        if let Some(why) = &why {
            tracing::warn!(chain = id, why, "cannot fetch blocks again, retrying later");
            let (from, to) = (*found.start(), *found.end());
            let why = Some(why.clone());
            progress.set_uncompared(Some(UncomparedBlocks { from, to, why }));
            clock.sleep(RETRY).await;
        }
    }
    std::future::pending().await
}

/// Fetches the blocks of a range again, chunk by chunk; returns the last failure, if any.
async fn refetch_round(
    chain: &Chain,
    repairs: &RepairHandler,
    clock: &dyn Clock,
    found: &RangeInclusive<u64>,
) -> Result<Option<String>> {
    let mut why = None;
    for part in newest_first(chain, found) {
        let began = clock.monotonic();
        match repairs.refetch_uncompared(part).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Fenced || error.is_fatal() => {
                return Err(error);
            }
            // A source that does not answer now will not answer for the next chunk either.
            Err(error) if error.kind() == ErrorKind::Transient => {
                return Ok(Some(logmill_io::error_chain(&error)));
            }
            Err(error) => why = Some(logmill_io::error_chain(&error)),
        }
        let took = clock.monotonic().saturating_sub(began);
        clock.sleep(took.max(PAUSE)).await;
    }
    Ok(why)
}

/// The parts of a range that are each rewritten at once: the tail, then the chunks, newest first.
fn newest_first(chain: &Chain, found: &RangeInclusive<u64>) -> Vec<Range<u64>> {
    let (start, end) = (*found.start(), found.end().saturating_add(1));
    let chunks = chain.index().chunks();
    let tail = chunks.last().map_or(0, |newest| newest.blocks.end);
    let parts = chunks.iter().map(|entry| entry.blocks.clone());
    let parts = parts.chain(std::iter::once(tail..u64::MAX));
    let parts = parts.map(|part| part.start.max(start)..part.end.min(end));
    let mut parts: Vec<Range<u64>> = parts.filter(|part| !part.is_empty()).collect();
    parts.reverse();
    parts
}

/// The range that contains all such final blocks, as far as sampling shows: blocks between two samples are assumed to
/// be complete if both samples are.
pub async fn find(chain: &Chain) -> Option<RangeInclusive<u64>> {
    let covered = chain.index().coverage();
    let looks = blocks_to_sample(chain, &covered);
    let mut found: Option<RangeInclusive<u64>> = None;
    let mut looked_at_before = None;
    for range in covered {
        let mut is_open = false;
        let last = range.end.saturating_sub(1);
        for number in looks.range(range.clone()).copied() {
            // Unreadable blocks are left to the auditor.
            let Ok(body) = chain.index().body(number).await else { continue };
            let is_old = body.is_some_and(|body| !stored::is_compared(&body));
            if is_old {
                let since = looked_at_before.map_or(range.start, |before: u64| before + 1);
                let start = found.as_ref().map_or(since, |found| *found.start());
                found = Some(start..=number);
            } else if is_open && let Some(old) = &found {
                // Such blocks may extend up to the one before this sample.
                found = Some(*old.start()..=number.saturating_sub(1));
            }
            is_open = is_old;
            looked_at_before = Some(number);
        }
        if is_open && let Some(old) = &found {
            found = Some(*old.start()..=last);
        }
    }
    found
}

/// Blocks to sample: an even spread, and both ends of chunks, because chunks are rewritten as a whole.
fn blocks_to_sample(chain: &Chain, covered: &[Range<u64>]) -> BTreeSet<u64> {
    let blocks: u64 = covered.iter().map(|range| range.end - range.start).sum();
    let step = usize::try_from(blocks.div_ceil(LOOKS_MAX).max(1)).unwrap_or(usize::MAX);
    let mut looks = BTreeSet::new();
    for range in covered {
        looks.extend(range.clone().step_by(step));
        looks.extend(range.end.checked_sub(1));
    }
    let chunks = chain.index().chunks();
    for entry in chunks.iter().step_by(chunks.len().div_ceil(CHUNK_LOOKS_MAX).max(1)) {
        looks.extend([entry.blocks.start, entry.blocks.end - 1]);
    }
    looks
}
