//! The audit: stored history, checked again against its own headers.
//!
//! Guarantees: every block is read back as a client would get it, with its logs; its place is compared with the index,
//! its parts with its header, as far as they were checked when it came. [`audit`] compares stored senders with
//! signatures too; the [`Auditor`] does not, as that costs more than all else. Leaves to others: mending
//! ([`crate::repair`]).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logmill_chain::{Verify, verify};
use logmill_io::{Clock, ErrorKind};
use serde::Serialize;

use crate::chain::Chain;
use crate::error::Result;
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
    /// How many damaged blocks the last whole round found.
    last_damaged: AtomicU64,
}

impl Auditor {
    /// Looks at so many blocks a second.
    pub fn new(chain: Chain, clock: Arc<dyn Clock>, blocks_per_second: u64) -> Self {
        let last_damaged = AtomicU64::new(0);
        Self { chain, clock, blocks_per_second, report: Mutex::default(), last_damaged }
    }

    /// What the round under way, or the last, has found.
    pub fn report(&self) -> AuditReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many blocks are damaged, as far as is known: what the last whole round found counts until the next one ends.
    pub fn damaged(&self) -> u64 {
        self.report().damaged.max(self.last_damaged.load(Ordering::Relaxed))
    }

    /// Audits for as long as it is polled.
    pub async fn run(&self) -> Result<std::convert::Infallible> {
        loop {
            if self.blocks_per_second == 0 {
                std::future::pending::<()>().await;
            }
            let mut report = AuditReport::default();
            for covered in self.chain.index().coverage() {
                self.look_through(covered, &mut report).await;
            }
            self.last_damaged.store(report.damaged, Ordering::Relaxed);
            self.clock.sleep(REST).await;
        }
    }

    async fn look_through(&self, covered: Range<u64>, report: &mut AuditReport) {
        let pause = Duration::from_millis(1_000 * SLICE / self.blocks_per_second.max(1));
        for number in covered {
            if let Err(error) = check(&self.chain, number, false, report).await {
                tracing::warn!(block = number, error = logmill_io::chain(&error), "audit");
                return;
            }
            if number % SLICE == 0 {
                *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report.clone();
                self.clock.sleep(pause).await;
            }
        }
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report.clone();
    }
}
