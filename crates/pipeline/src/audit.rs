//! The audit: checks stored history against its own headers again.
//!
//! Guarantees: every block is read as a client would get it, with its logs. Its number and hashes are compared with the
//! index, its parts with its header, to the verification level that is stored with it. [`audit`] also compares stored
//! senders with signatures; the [`Auditor`] does not, because that costs more than everything else. The auditor has
//! damaged blocks refilled where that is safe ([`RepairHandler::refill`]), both those it finds and those the index
//! already knows of; the latter at once, before the round reaches them. Where a refill is not safe, the index is
//! degraded until an operator decides. A restart continues the round where it was, and repeats at most
//! `STORE_EVERY` of it. Leaves to others: fetching and writing blocks.

mod progress;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logmill_chain::{ChainProfile, VerifyLevel, verify_for};
use logmill_io::{Clock, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::chain::Chain;
use crate::error::Result;
use crate::repair::RepairHandler;
use crate::senders;
use progress::{AuditProgress, AuditRecord};

/// Maximum number of damaged blocks that a report lists.
const LISTED_MAX: usize = 100;
/// Pause between the rounds of a continuous audit.
const REST: Duration = Duration::from_secs(60);
/// How often known damage is looked for in that pause.
const LOOKS_PER_REST: u32 = 60;
/// How often findings are checked again, and every how many of these times a refill is tried.
const RECHECK_EVERY: Duration = Duration::from_secs(60);
const RECHECKS_PER_REFILL: u64 = 10;
/// Precedes the reason in the description of a finding.
const NOT_REFILLED: &str = "; not refilled: ";
/// How often the progress of a round is stored.
const STORE_EVERY: Duration = Duration::from_secs(10);
/// Blocks checked between two pauses.
const SLICE: u64 = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Blocks checked at level `full`.
    pub verified: u64,
    /// Blocks checked at a lower level, which is the one stored with them.
    pub less_verified: u64,
    /// Blocks without a stored body.
    pub logs_only: u64,
    pub damaged: u64,
    /// Damaged blocks that were fetched and written again.
    pub refilled: u64,
    /// The first damaged blocks, up to a limit.
    pub findings: Vec<Finding>,
}

/// A damaged block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub number: u64,
    pub what: String,
}

impl AuditReport {
    pub fn is_clean(&self) -> bool {
        self.damaged == 0
    }

    fn add(&mut self, number: u64, what: String) {
        self.damaged += 1;
        if self.findings.len() < LISTED_MAX {
            self.findings.push(Finding { number, what });
        }
    }
}

/// Checks one finalized block; returns what is wrong with it, or counts it. An error is a failure of the store and
/// tells nothing about the block.
async fn check(
    chain: &Chain,
    number: u64,
    with_senders: bool,
    report: &mut AuditReport,
) -> Result<Option<String>> {
    let looked_up = match chain.shared.archived(number).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            return Ok(Some(logmill_io::error_chain(&error)));
        }
        looked_up => looked_up?,
    };
    let Some(block) = looked_up else {
        report.logs_only += 1;
        return Ok(None);
    };
    let listed = chain.shared.block_ref(number).await?;
    if listed != Some(block.at) {
        let hash = block.at.hash;
        return Ok(Some(format!("its body has the hash {hash}, and the index lists another")));
    }
    let fault = if with_senders { senders::find_fault(&block).await } else { None };
    let level = block.verified;
    let profile = ChainProfile::of(chain.chain_id());
    let checked = logmill_io::compute(move || {
        let mut block = Arc::unwrap_or_clone(block);
        verify_for(Some(profile), &mut block, level)
    })
    .await;
    let label = chain.chain_id().to_string();
    metrics::counter!("logmill_audited_blocks_total", "chain" => label).increment(1);
    match checked.map_err(|mismatch| mismatch.to_string()).and(fault.map_or(Ok(()), Err)) {
        Err(what) => return Ok(Some(what)),
        Ok(()) if level == VerifyLevel::Full => report.verified += 1,
        Ok(()) => report.less_verified += 1,
    }
    Ok(None)
}

/// Checks all stored finalized blocks of a range; calls `progress` after each.
pub async fn audit(
    chain: &Chain,
    range: Range<u64>,
    mut progress: impl FnMut(u64),
) -> Result<AuditReport> {
    let mut report = AuditReport::default();
    for covered in chain.index().coverage() {
        let (start, end) = (covered.start.max(range.start), covered.end.min(range.end));
        for number in start..end {
            if let Some(what) = check(chain, number, true, &mut report).await? {
                log_damage(chain, &Finding { number, what: what.clone() });
                report.add(number, what);
            }
            progress(number);
        }
    }
    Ok(report)
}

/// A continuous audit at a limited rate.
#[derive(Debug)]
pub struct Auditor {
    chain: Chain,
    clock: Arc<dyn Clock>,
    blocks_per_second: u64,
    progress: Mutex<AuditProgress>,
}

/// What the status shows of a continuous audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditStatus {
    pub report: AuditReport,
    /// The first block that the current round has not checked; 0 between two rounds.
    pub next: u64,
    /// Number of finished rounds, also those of earlier processes.
    pub rounds: u64,
    /// End of the last finished round, in milliseconds since 1970.
    pub round_ended_ms: Option<i64>,
}

/// One pass of an auditor over all stored blocks, or the rest of one.
#[derive(Debug)]
struct Round {
    progress: AuditProgress,
    /// When it was last stored, on the monotonic clock.
    stored_at: Duration,
    /// No further refill is tried below this block.
    refused_below: u64,
    /// Ranges of known damage, `(start, end)`, whose refill was tried.
    tried: BTreeSet<(u64, u64)>,
    /// When findings were last checked again, on the monotonic clock, and how often.
    rechecked: (Duration, u64),
}

impl Auditor {
    /// A rate of 0 disables the audit.
    pub fn new(chain: Chain, clock: Arc<dyn Clock>, blocks_per_second: u64) -> Self {
        Self { chain, clock, blocks_per_second, progress: Mutex::default() }
    }

    /// Findings of the current round and, for blocks that it has not reached yet, of the previous one.
    pub fn report(&self) -> AuditReport {
        self.progress().known()
    }

    pub fn status(&self) -> AuditStatus {
        let progress = self.progress();
        let report = progress.known();
        let AuditProgress { next, rounds, round_ended_ms, .. } = progress;
        AuditStatus { report, next, rounds, round_ended_ms }
    }

    pub fn damaged(&self) -> u64 {
        self.report().damaged
    }

    fn progress(&self) -> AuditProgress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Audits for as long as it is polled; damaged blocks are refilled by `repairs`.
    pub async fn run(&self, repairs: Option<&RepairHandler>) -> Result<std::convert::Infallible> {
        if self.blocks_per_second == 0 {
            std::future::pending::<()>().await;
        }
        self.resume(repairs).await;
        loop {
            self.round(repairs).await;
            self.rest(repairs).await;
        }
    }

    /// Continues where the last process that audited this chain has stopped. What that process found is checked again:
    /// it may have been repaired since.
    pub async fn resume(&self, repairs: Option<&RepairHandler>) {
        let stored = loop {
            match AuditRecord::beside(&self.chain.shared.tip).read().await {
                Ok(stored) => break stored,
                Err(error) => {
                    let (chain, said) = (self.chain.chain_id(), logmill_io::error_chain(&error));
                    tracing::warn!(chain, error = said, "cannot read the progress of the audit");
                    if error.kind() == ErrorKind::Corrupt {
                        break None;
                    }
                    self.clock.sleep(REST).await;
                }
            }
        };
        let Some(stored) = stored else { return };
        self.publish(&stored);
        let mut round = self.begin(stored);
        self.recheck(repairs, &mut round).await;
        self.publish(&round.progress);
    }

    /// Checks all findings again, which may have been repaired, or may now be refilled because a node answers.
    async fn recheck(&self, repairs: Option<&RepairHandler>, round: &mut Round) {
        let progress = &mut round.progress;
        let mut refused_below = 0;
        let mut left = (Vec::new(), Vec::new());
        progress.before.retain(|finding| finding.number >= progress.next);
        let (of_round, before) =
            (std::mem::take(&mut progress.report.findings), std::mem::take(&mut progress.before));
        let count = of_round.len();
        for (position, mut finding) in of_round.into_iter().chain(before).enumerate() {
            let number = finding.number;
            let is_of_round = position < count;
            let mut scratch = AuditReport::default();
            let checked = match self.is_stored(number) {
                true => check(&self.chain, number, false, &mut scratch).await,
                false => Ok(None),
            };
            let is_whole = matches!(checked, Ok(None));
            // A store that fails tells nothing about the block.
            let may_refill = matches!(checked, Ok(Some(_))) && number >= refused_below;
            let is_refilled = match repairs.filter(|_| may_refill) {
                Some(repairs) => refill(&self.chain, repairs, &mut finding).await,
                None => false,
            };
            if !is_whole && !is_refilled {
                refused_below = self.end_of_chunk(number);
                if is_of_round { &mut left.0 } else { &mut left.1 }.push(finding);
                continue;
            }
            progress.report.refilled += u64::from(is_refilled);
            progress.report.damaged -= u64::from(is_of_round);
        }
        (progress.report.findings, progress.before) = left;
        round.rechecked = (self.clock.monotonic(), round.rechecked.1 + 1);
    }

    /// Checks findings again if it is time. Most times nothing is refilled: what was refused once is mostly refused
    /// again, at the price of a chunk.
    async fn recheck_sometimes(&self, repairs: Option<&RepairHandler>, round: &mut Round) {
        let (at, count) = round.rechecked;
        if self.clock.monotonic().saturating_sub(at) >= RECHECK_EVERY {
            let repairs = repairs.filter(|_| count % RECHECKS_PER_REFILL == 0 && count > 0);
            self.recheck(repairs, round).await;
        }
    }

    fn is_stored(&self, number: u64) -> bool {
        self.chain.index().coverage().iter().any(|range| range.contains(&number))
    }

    /// The block after the chunk that holds a block; 0 if none does.
    fn end_of_chunk(&self, number: u64) -> u64 {
        let chunks = self.chain.index().chunks();
        let chunk = chunks.iter().find(|entry| entry.blocks.contains(&number));
        chunk.map_or(0, |entry| entry.blocks.end)
    }

    fn begin(&self, progress: AuditProgress) -> Round {
        let (now, tried) = (self.clock.monotonic(), BTreeSet::new());
        Round { progress, stored_at: now, refused_below: 0, tried, rechecked: (now, 0) }
    }

    /// Checks every stored block once, or the rest of them if a round is under way.
    pub async fn round(&self, repairs: Option<&RepairHandler>) {
        let mut round = self.begin(self.progress().begin());
        self.refill_known(repairs, &mut round).await;
        for covered in self.chain.index().coverage() {
            let left = covered.start.max(round.progress.next)..covered.end;
            if !self.look_through(left, repairs, &mut round).await {
                self.publish(&round.progress);
                return self.store(repairs, &mut round).await;
            }
        }
        round.progress.end(self.clock.now().millis());
        self.publish(&round.progress);
        self.store(repairs, &mut round).await;
    }

    /// The pause between two rounds, in which damage that becomes known is refilled.
    async fn rest(&self, repairs: Option<&RepairHandler>) {
        let mut round = self.begin(self.progress());
        for _ in 0..LOOKS_PER_REST {
            self.clock.sleep(REST / LOOKS_PER_REST).await;
            self.refill_known(repairs, &mut round).await;
            self.recheck_sometimes(repairs, &mut round).await;
            self.publish(&round.progress);
        }
    }

    /// Checks a range; returns false if the store failed.
    async fn look_through(
        &self,
        covered: Range<u64>,
        repairs: Option<&RepairHandler>,
        round: &mut Round,
    ) -> bool {
        let pause = Duration::from_millis(1_000 * SLICE / self.blocks_per_second.max(1));
        for number in covered {
            if let Err(error) = self.check_and_refill(number, repairs, round).await {
                tracing::warn!(
                    block = number,
                    error = logmill_io::error_chain(&error),
                    "cannot audit a block"
                );
                return false;
            }
            round.progress.next = number + 1;
            if number % SLICE == 0 {
                self.publish(&round.progress);
                if self.clock.monotonic().saturating_sub(round.stored_at) >= STORE_EVERY {
                    self.store(repairs, round).await;
                }
                self.clock.sleep(pause).await;
                self.refill_known(repairs, round).await;
                self.recheck_sometimes(repairs, round).await;
            }
        }
        true
    }

    /// Checks a block, and has it refilled if it is damaged. The error is a failure of the store.
    async fn check_and_refill(
        &self,
        number: u64,
        repairs: Option<&RepairHandler>,
        round: &mut Round,
    ) -> Result<()> {
        let report = &mut round.progress.report;
        let Some(what) = check(&self.chain, number, false, report).await? else { return Ok(()) };
        let mut finding = Finding { number, what };
        let mut is_refilled = false;
        log_damage(&self.chain, &finding);
        if let Some(repairs) = repairs.filter(|_| number >= round.refused_below) {
            is_refilled = refill(&self.chain, repairs, &mut finding).await;
            if !is_refilled {
                // The reason for a refusal holds for all blocks of the chunk.
                round.refused_below = self.end_of_chunk(number);
            }
        }
        match is_refilled {
            true => report.refilled += 1,
            false => report.add(finding.number, finding.what),
        }
        Ok(())
    }

    /// Refills damage that the index knows of because a query or the writer met it; once per round.
    async fn refill_known(&self, repairs: Option<&RepairHandler>, round: &mut Round) {
        let Some(repairs) = repairs else { return };
        let index = self.chain.index();
        let known = index.health().degraded.map_or_else(Vec::new, |degraded| degraded.damaged);
        for damaged in known {
            let (number, end) = (damaged.blocks.start, damaged.blocks.end);
            // Damage without a known position is found block by block.
            let is_placed = end < u64::MAX;
            let is_stored = index.coverage().iter().any(|range| range.contains(&number));
            if !is_placed || !is_stored || !round.tried.insert((number, end)) {
                continue;
            }
            match repairs.refill(number).await {
                Ok(()) => {
                    tracing::info!(number, end, what = damaged.what, "known damage was refilled");
                    let label = self.chain.chain_id().to_string();
                    metrics::counter!("logmill_audit_refilled_total", "chain" => label)
                        .increment(1);
                    round.progress.report.refilled += 1;
                }
                // It stays known, and counts as damaged once the round reaches it.
                Err(error) => {
                    let why = logmill_io::error_chain(&error);
                    tracing::error!(number, end, why, "cannot refill known damage");
                }
            }
        }
    }

    fn publish(&self, progress: &AuditProgress) {
        let label = self.chain.chain_id().to_string();
        metrics::gauge!("logmill_audit_damaged_blocks", "chain" => label)
            .set(gauge(progress.known().damaged));
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress.clone();
    }

    /// Stores the progress, if this process writes. After a failure, a restart repeats more of the round.
    async fn store(&self, repairs: Option<&RepairHandler>, round: &mut Round) {
        let Some(repairs) = repairs else { return };
        round.stored_at = self.clock.monotonic();
        let record = AuditRecord::beside(&self.chain.shared.tip);
        if let Err(error) = record.put(round.progress.clone(), repairs.fence()).await {
            let (chain, error) = (self.chain.chain_id(), logmill_io::error_chain(&error));
            tracing::warn!(chain, error, "cannot store the progress of the audit");
        }
    }
}

/// A gauge holds 32-bit numbers exactly.
fn gauge(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn log_damage(chain: &Chain, finding: &Finding) {
    let (chain, what) = (chain.chain_id(), &finding.what);
    tracing::error!(chain, block = finding.number, what, "a stored block is damaged");
    metrics::counter!("logmill_audit_damaged_total", "chain" => chain.to_string()).increment(1);
}

/// Refills a damaged block. Returns false if that failed, and adds the reason to the finding: it is tried again later,
/// and unless the failure was transient, the index is degraded until an operator decides.
async fn refill(chain: &Chain, repairs: &RepairHandler, finding: &mut Finding) -> bool {
    let (chain, number) = (chain.chain_id(), finding.number);
    let Err(error) = repairs.refill(number).await else {
        tracing::info!(chain, block = number, "a damaged block was refilled");
        let label = chain.to_string();
        metrics::counter!("logmill_audit_refilled_total", "chain" => label).increment(1);
        return true;
    };
    let why = logmill_io::error_chain(&error);
    tracing::error!(chain, block = number, why, "cannot refill a damaged block");
    let found = finding.what.split(NOT_REFILLED).next().unwrap_or_default();
    finding.what = format!("{found}{NOT_REFILLED}{why}");
    // A node that does not answer tells nothing about the block.
    if error.kind() == ErrorKind::Transient {
        return false;
    }
    if let Err(error) = repairs.report_damage(number, &finding.what).await {
        tracing::warn!(
            error = logmill_io::error_chain(&error),
            "cannot record the damage in the index"
        );
    }
    false
}
