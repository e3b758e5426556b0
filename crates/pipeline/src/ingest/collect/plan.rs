//! What is collected next: ranges that are missing up to the newest final block become jobs, a few at a time.
//!
//! ```text
//!   as many jobs wait as there are workers ──▶ wait until one has ended
//!   some range is missing ──────────────────▶ claim it with its job, look again at once
//!   nothing is missing ─────────────────────▶ realtime; wait for news, or the poll interval
//!   the chain does not answer ──────────────▶ wait, longer each time
//!   the database does not, three times ─────▶ give up
//! ```
//!
//! Jobs that failed or whose worker died come first: while they are due, no new range is claimed.
//!
//! Guarantees: no range is claimed above what is final, and none without its job (one transaction). The newest final
//! block is in the last range. Leaves to others: doing the jobs ([`super::scan`]).

use std::time::Duration;

use logmill_chain::BlockRef;
use logmill_io::ErrorKind;
use logmill_work::coverage::RangeClaim;
use logmill_work::intervals::From;
use logmill_work::{Backoff, Coverage, Heights, IntervalSet, NewJob};

use super::retry::{is_of_chain, with_retry};
use super::scan::RangeJob;
use super::{Collector, Head, Mode};
use crate::derive::{Line, LineState};
use crate::error::{Error, Result};

/// How many attempts a range has before somebody must look at it.
pub(super) const ATTEMPTS_MAX: u32 = 10;
/// How often what is not urgent is done.
const TIDY_EVERY: Duration = Duration::from_secs(30);

/// What came of one look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A range was claimed.
    Claimed(Heights),
    /// Enough jobs wait.
    Busy,
    /// Nothing is missing.
    CaughtUp,
}

impl Collector {
    /// Plans until the database fails for good.
    pub(super) async fn plan(&self) -> Result<std::convert::Infallible> {
        let clock = self.tables.sql().clock();
        let mut failed = 0;
        loop {
            let step = self.step().await;
            match step {
                Err(error) if is_of_chain(&error) => {
                    failed += 1;
                    self.note_failure(&error);
                    clock.sleep(self.backoff(failed)).await;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Conflict => self.reload().await?,
                Err(error) => return Err(error),
                Ok(Step::Claimed(_)) => {}
                Ok(Step::Busy) => tokio::select! {
                    biased;
                    () = self.ended.notified() => {}
                    () = clock.sleep(self.settings.historical_poll) => {}
                },
                Ok(Step::CaughtUp) => {
                    // Two processes that make an index at the same time get in each other's way; later will do.
                    if let Err(error) = self.tidy().await {
                        tracing::warn!(error = logmill_io::chain(&error), "tidied up only in part");
                    }
                    self.source.changed(self.poll()).await;
                }
            }
            failed = 0;
        }
    }

    /// Looks once.
    pub(super) async fn step(&self) -> Result<Step> {
        let sql = self.tables.sql();
        let (kind, ahead) = (self.kind(), self.settings.workers);
        let queue = self.tables.queue();
        let due = || async { Ok(queue.due(&kind, ahead).await?) };
        if with_retry(sql, "count jobs", due).await? >= ahead {
            return Ok(Step::Busy);
        }
        let known = self.known_head();
        if let Some(Head { finalized, .. }) = known
            && let Some(range) = self.claim(finalized).await?
        {
            return Ok(Step::Claimed(range));
        }
        let Some(Head { finalized, .. }) = self.look_at_head().await? else {
            self.set_mode(Mode::Realtime);
            return Ok(Step::CaughtUp);
        };
        match self.claim(finalized).await? {
            Some(range) => Ok(Step::Claimed(range)),
            None => {
                self.set_mode(Mode::Realtime);
                Ok(Step::CaughtUp)
            }
        }
    }

    /// Claims the lowest range that is missing up to a block, with its job.
    async fn claim(&self, finalized: BlockRef) -> Result<Option<Heights>> {
        let within = self.start()..finalized.number.saturating_add(1);
        if within.is_empty() {
            return Ok(None);
        }
        let claim = RangeClaim { within, most: self.settings.batch, from: From::Below };
        for line in self.lines() {
            let claimed = || self.claim_of(&line, &claim);
            let claimed = with_retry(self.tables.sql(), "claim a range", claimed).await?;
            if let Some(range) = claimed {
                let lag = finalized.number.saturating_sub(range.end - 1);
                self.set_mode(self.mode().after_claim(lag, self.settings.batch));
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    async fn claim_of(&self, line: &Line, claim: &RangeClaim) -> Result<Option<Heights>> {
        let (kind, generation) = (self.kind(), line.generation);
        let job = |range: &Heights| {
            let key = format!("{generation}-{:016x}-{:016x}", range.start, range.end);
            let payload = RangeJob { generation, start: range.start, end: range.end };
            // Numbers are JSON whatever they are.
            let payload = serde_json::to_string(&payload).unwrap_or_default();
            NewJob { attempts_max: ATTEMPTS_MAX, ..NewJob::new(&kind, key, payload) }
        };
        let queue = self.tables.queue();
        Ok(Coverage::claim_next(queue, &line.scope(), claim, job).await?)
    }

    /// A final block at or above the last of a range, for nodes to show that they have it.
    pub(super) async fn anchor(&self, end: u64) -> Result<BlockRef> {
        let last = end.saturating_sub(1);
        let reaches = |head: &Option<Head>| match head {
            Some(head) if head.finalized.number >= last => Some(head.finalized),
            _ => None,
        };
        let known = self.known_head();
        if let Some(anchor) = reaches(&known) {
            return Ok(anchor);
        }
        let seen = self.look_at_head().await?;
        Ok(reaches(&seen).ok_or(logmill_chain::Error::NotYet { number: last })?)
    }

    /// Asks where the chain is, and checks that it still has what it had called final.
    async fn look_at_head(&self) -> Result<Option<Head>> {
        let heads = self.source.heads().await?;
        let Some(finalized) = heads.finalized else {
            return Ok(self.known_head());
        };
        match self.check_finality(finalized).await {
            Err(error @ Error::FinalityReverted { .. }) => {
                self.set_halted(Some(error.to_string()));
                return Err(error);
            }
            checked => checked?,
        }
        self.set_halted(None);
        Ok(Some(self.saw_head(finalized, heads.latest.number)))
    }

    /// Checks that the chain still has the last final block that was seen, and remembers a higher one.
    async fn check_finality(&self, finalized: BlockRef) -> Result<()> {
        let (sql, place) = (self.tables.sql(), &self.place);
        let before = with_retry(sql, "read the anchor", || place.get_anchor()).await?;
        if let Some(before) = &before {
            before.check(&*self.source, finalized).await?;
        }
        if before.as_ref().is_none_or(|before| before.number < finalized.number) {
            let put = || place.put_anchor(before.as_ref(), finalized);
            with_retry(sql, "remember the anchor", put).await?;
        }
        Ok(())
    }

    /// What is done when nothing is missing: indexes, and a generation that is complete.
    pub(super) async fn tidy(&self) -> Result<()> {
        let sql = self.tables.sql();
        if !self.is_time_to_tidy(sql.clock().monotonic()) {
            return Ok(());
        }
        for line in self.lines() {
            with_retry(sql, "make indexes", || self.tables.make_indexes(&line)).await?;
            if line.state == LineState::Building && self.is_collected(&line).await? {
                let stored = IntervalSet::new();
                let swap = || self.tables.swap(None, &line, &stored);
                if !with_retry(sql, "replace the tables", swap).await? {
                    let processor = line.processor.name();
                    tracing::warn!(processor, "the tables before these cover more, and stay");
                }
            }
        }
        self.reload().await
    }

    fn is_time_to_tidy(&self, now: Duration) -> bool {
        let mut state = self.state();
        let due = state.tidied_at.is_none_or(|at| now.saturating_sub(at) >= TIDY_EVERY);
        if due {
            state.tidied_at = Some(now);
        }
        due
    }

    /// Whether all that is wanted so far is in a line.
    async fn is_collected(&self, line: &Line) -> Result<bool> {
        let wanted = self.known_head().map(|head| self.start()..head.finalized.number + 1);
        let covered = with_retry(self.tables.sql(), "read", || self.tables.covered(line)).await?;
        Ok(wanted.is_some_and(|wanted| covered.covers(&wanted)))
    }

    fn note_failure(&self, error: &Error) {
        let said = logmill_io::chain(error);
        tracing::warn!(chain = self.chain_id, error = said, "the chain does not answer");
        self.counts.failed(&said);
    }

    fn backoff(&self, failed: i64) -> Duration {
        let waits = Backoff::Exponential {
            first: Duration::from_secs(1).min(self.settings.historical_poll),
            max: self.poll(),
            jitter_percent: 20,
        };
        waits.wait(failed, &**self.tables.sql().entropy())
    }
}
