//! The audit: stored history, checked again against its own headers.
//!
//! Guarantees: every block is read back as a client would get it, with its logs; its place is compared with the index,
//! its parts with its header, as far as they were checked when it came. [`audit`] compares stored senders with
//! signatures too; the [`Auditor`] does not, as that costs more than all else. What the auditor finds damaged it has
//! refilled, where that is safe ([`RepairHandler::refill`]); else the index is degraded until a person has decided.
//! Leaves to others: fetching and writing blocks.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logmill_chain::{Verify, verify};
use logmill_io::{Clock, ErrorKind};
use serde::Serialize;

use crate::chain::Chain;
use crate::error::Result;
use crate::repair::RepairHandler;
use crate::senders;

/// The most damaged blocks that are listed.
const LISTED_MAX: usize = 100;
/// How long a continuous audit rests between rounds, and when there is nothing to look at.
const REST: Duration = Duration::from_secs(60);
/// Blocks between two looks at the clock.
const SLICE: u64 = 16;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// Blocks that were checked in full.
    pub verified: u64,
    /// Blocks of which less was checked, because less was when they came.
    pub less_verified: u64,
    /// Blocks whose logs alone are stored.
    pub logs_only: u64,
    /// Blocks that are not what they should be.
    pub damaged: u64,
    /// Blocks that were damaged, and were fetched and written again.
    pub refilled: u64,
    /// Some of them, and what is wrong.
    pub findings: Vec<Finding>,
}

/// A block that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its number.
    pub number: u64,
    /// What is wrong with it.
    pub what: String,
}

impl AuditReport {
    /// Whether all is as it should be.
    pub fn is_clean(&self) -> bool {
        self.damaged == 0
    }

    fn found(&mut self, number: u64, what: String) {
        tracing::error!(block = number, what, "a stored block is damaged");
        metrics::counter!("logmill_audit_damaged_total").increment(1);
        self.add(number, what);
    }

    fn add(&mut self, number: u64, what: String) {
        self.damaged += 1;
        if self.findings.len() < LISTED_MAX {
            self.findings.push(Finding { number, what });
        }
    }
}

/// Checks one finalized block; an error is trouble with the store that says nothing about the block.
async fn check(
    chain: &Chain,
    number: u64,
    with_senders: bool,
    report: &mut AuditReport,
) -> Result<()> {
    let looked_up = match chain.shared.archived(number).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.found(number, logmill_io::chain(&error));
            return Ok(());
        }
        looked_up => looked_up?,
    };
    let Some(block) = looked_up else {
        report.logs_only += 1;
        return Ok(());
    };
    let listed = chain.shared.block_ref(number).await?;
    if listed != Some(block.at) {
        report.found(number, format!("it is stored as {}, and listed otherwise", block.at.hash));
        return Ok(());
    }
    let fault = if with_senders { senders::fault(&block).await } else { None };
    let level = block.verified;
    let checked = logmill_io::compute(move || {
        let mut block = Arc::unwrap_or_clone(block);
        verify(&mut block, level)
    })
    .await;
    match checked.map_err(|mismatch| mismatch.to_string()).and(fault.map_or(Ok(()), Err)) {
        Err(what) => report.found(number, what),
        Ok(()) if level == Verify::Full => report.verified += 1,
        Ok(()) => report.less_verified += 1,
    }
    metrics::counter!("logmill_audited_blocks_total").increment(1);
    Ok(())
}

/// Checks all finalized blocks of a range that are stored; `progress` hears of each.
pub async fn audit(
    chain: &Chain,
    range: Range<u64>,
    mut progress: impl FnMut(u64),
) -> Result<AuditReport> {
    let mut report = AuditReport::default();
    for covered in chain.index().coverage() {
        let (start, end) = (covered.start.max(range.start), covered.end.min(range.end));
        for number in start..end {
            check(chain, number, true, &mut report).await?;
            progress(number);
        }
    }
    Ok(report)
}

/// An audit that never ends, within a budget.
#[derive(Debug)]
pub struct Auditor {
    chain: Chain,
    clock: Arc<dyn Clock>,
    blocks_per_second: u64,
    report: Mutex<AuditReport>,
}

/// A round of an auditor.
#[derive(Debug, Default)]
struct Round {
    report: AuditReport,
    /// What the round before has found.
    before: Vec<Finding>,
    /// Below this block no refill is tried again in this round.
    refused_below: u64,
}

impl Round {
    /// What is known once all blocks below `next` were looked at.
    fn known(&self, next: u64) -> AuditReport {
        let mut known = self.report.clone();
        for finding in self.before.iter().filter(|finding| finding.number >= next) {
            known.add(finding.number, finding.what.clone());
        }
        known
    }
}

impl Auditor {
    /// Looks at so many blocks a second.
    pub fn new(chain: Chain, clock: Arc<dyn Clock>, blocks_per_second: u64) -> Self {
        Self { chain, clock, blocks_per_second, report: Mutex::default() }
    }

    /// What the round under way has found, and for blocks that it has not reached yet, the one before it.
    pub fn report(&self) -> AuditReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many blocks are damaged, as far as is known.
    pub fn damaged(&self) -> u64 {
        self.report().damaged
    }

    /// Audits for as long as it is polled; has damaged blocks refilled by `repairs`.
    pub async fn run(&self, repairs: Option<&RepairHandler>) -> Result<std::convert::Infallible> {
        loop {
            if self.blocks_per_second == 0 {
                std::future::pending::<()>().await;
            }
            self.round(repairs).await;
            self.clock.sleep(REST).await;
        }
    }

    /// Looks at every stored block once.
    pub async fn round(&self, repairs: Option<&RepairHandler>) {
        let mut round = Round { before: self.report().findings, ..Round::default() };
        for covered in self.chain.index().coverage() {
            if let Some(reached) = self.look_through(covered, repairs, &mut round).await {
                // What the round before found further on is still the newest that is known of it.
                return self.publish(round.known(reached));
            }
        }
        self.publish(round.report);
    }

    /// Returns the block that it could not look at, if there is one.
    async fn look_through(
        &self,
        covered: Range<u64>,
        repairs: Option<&RepairHandler>,
        round: &mut Round,
    ) -> Option<u64> {
        let pause = Duration::from_millis(1_000 * SLICE / self.blocks_per_second.max(1));
        for number in covered {
            let (damaged, report) = (round.report.damaged, &mut round.report);
            if let Err(error) = check(&self.chain, number, false, report).await {
                tracing::warn!(block = number, error = logmill_io::chain(&error), "audit");
                return Some(number);
            }
            if report.damaged > damaged
                && let Some(repairs) = repairs.filter(|_| number >= round.refused_below)
                && !refill(repairs, number, report).await
            {
                // What its chunk lacks, it lacks for all of its blocks.
                let chunks = self.chain.index().chunks();
                let chunk = chunks.iter().find(|entry| entry.blocks.contains(&number));
                round.refused_below = chunk.map_or(0, |entry| entry.blocks.end);
            }
            if number % SLICE == 0 {
                self.publish(round.known(number + 1));
                self.clock.sleep(pause).await;
            }
        }
        None
    }

    fn publish(&self, report: AuditReport) {
        metrics::gauge!("logmill_audit_damaged_blocks").set(gauge(report.damaged));
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

/// A gauge takes a number of 32 bits exactly.
fn gauge(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Has a block refilled that was just found damaged; false if it was not, and then the index is degraded: the next
/// round tries again, or a person decides.
async fn refill(repairs: &RepairHandler, number: u64, report: &mut AuditReport) -> bool {
    let Err(error) = repairs.refill(number).await else {
        tracing::info!(block = number, "a damaged block was refilled");
        metrics::counter!("logmill_audit_refilled_total").increment(1);
        report.damaged -= 1;
        report.refilled += 1;
        report.findings.retain(|finding| finding.number != number);
        return true;
    };
    let why = logmill_io::chain(&error);
    tracing::error!(block = number, why, "a damaged block was not refilled");
    let finding = report.findings.iter_mut().find(|finding| finding.number == number);
    let what = finding.map_or_else(
        || why.clone(),
        |finding| {
            finding.what = format!("{}; not refilled: {why}", finding.what);
            finding.what.clone()
        },
    );
    // A node that does not answer says nothing about the block: the next round tries again.
    if error.kind() == ErrorKind::Transient {
        return false;
    }
    if let Err(error) = repairs.report_damage(number, &what).await {
        tracing::warn!(error = logmill_io::chain(&error), "degrade the index");
    }
    false
}
