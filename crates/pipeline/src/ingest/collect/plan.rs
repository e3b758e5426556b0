//! The planner: turns missing ranges up to the newest final block into jobs, a few at a time.
//!
//! ```text
//!   as many jobs due as there are workers ──▶ wait until one has ended
//!   a range is missing ─────────────────────▶ claim it with its job, continue at once
//!   nothing is missing ─────────────────────▶ realtime; wait for a new head, at most the poll interval
//!   the chain does not answer ──────────────▶ wait, longer each time
//!   the database fails three times ─────────▶ give up
//! ```
//!
//! Jobs that failed or whose worker died come first: while they are due, no new range is claimed.
//!
//! Guarantees: no range is claimed above the finalized head, and none without its job (one transaction). The last range
//! includes the newest final block. Leaves to others: running the jobs ([`super::scan`]).

use std::time::Duration;

use async_trait::async_trait;
use logmill_chain::BlockRef;
use logmill_io::ErrorKind;
use logmill_work::coverage::RangeClaim;
use logmill_work::intervals::SearchOrder;
use logmill_work::ranges::{self, RangeDriver, Step};
use logmill_work::{Backoff, Coverage, Heights, IntervalSet, NewJob};

use super::retry::{is_of_chain, with_retry};
use super::scan::RangeJob;
use super::{ATTEMPTS_MAX, Collector, Head, Mode};
use crate::derive::store::SwapOutcome;
use crate::derive::{Generation, GenerationState};
use crate::error::{Error, Result};

/// Minimum interval between two runs of `tidy`.
const TIDY_EVERY: Duration = Duration::from_secs(30);

/// Result of one planning step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlanOutcome {
    Claimed(Heights),
    /// Enough jobs are queued.
    Busy,
    CaughtUp,
}

#[async_trait]
impl RangeDriver for Collector {
    type Error = Error;

    async fn claim(&self) -> Result<Step> {
        let step = self.step().await;
        self.note_idle(matches!(step, Ok(PlanOutcome::CaughtUp)));
        match step {
            Ok(PlanOutcome::Claimed(_)) => Ok(Step::Claimed),
            Ok(PlanOutcome::Busy) => Ok(Step::Busy),
            Ok(PlanOutcome::CaughtUp) => Ok(Step::CaughtUp),
            Err(error) if error.kind() == ErrorKind::Conflict && !is_of_chain(&error) => {
                self.reload().await.map(|()| Step::Claimed)
            }
            Err(error) => Err(error),
        }
    }

    async fn wait(&self, after: Step) {
        if after == Step::Busy {
            tokio::select! {
                biased;
                () = self.ended.notified() => {}
                () = self.tables.sql().clock().sleep(self.settings.historical_poll) => {}
            }
            return;
        }
        // Two processes that create an index at the same time can conflict; it is tried again later.
        if let Err(error) = self.tidy().await {
            tracing::warn!(
                error = logmill_io::error_chain(&error),
                "cannot create indexes or replace tables, retrying later"
            );
        }
        self.source.changed(self.poll()).await;
    }

    fn retry(&self, error: Error) -> Result<Backoff> {
        if !is_of_chain(&error) {
            return Err(error);
        }
        let text = logmill_io::error_chain(&error);
        tracing::warn!(chain = self.chain_id, error = text, "no node answers, retrying");
        self.counts.failed(&text);
        Ok(Backoff::Exponential {
            first: Duration::from_secs(1).min(self.settings.historical_poll),
            max: self.poll(),
            jitter_percent: 20,
        })
    }
}

impl Collector {
    /// Plans until the database fails permanently.
    pub(super) async fn plan(&self) -> Error {
        let sql = self.tables.sql();
        ranges::drive(self, &**sql.clock(), &**sql.entropy()).await
    }

    pub(super) async fn step(&self) -> Result<PlanOutcome> {
        let sql = self.tables.sql();
        let (kind, ahead) = (self.kind(), self.settings.workers);
        let queue = self.tables.queue();
        let due = || async { Ok(queue.due(&kind, ahead).await?) };
        if with_retry(sql, "count due jobs", due).await? >= ahead {
            return Ok(PlanOutcome::Busy);
        }
        let known = self.known_head();
        if let Some(Head { finalized, .. }) = known
            && let Some(range) = self.claim(finalized).await?
        {
            return Ok(PlanOutcome::Claimed(range));
        }
        let Some(Head { finalized, .. }) = self.look_at_head().await? else {
            self.set_mode(Mode::Realtime);
            return Ok(PlanOutcome::CaughtUp);
        };
        match self.claim(finalized).await? {
            Some(range) => Ok(PlanOutcome::Claimed(range)),
            None => {
                self.set_mode(Mode::Realtime);
                Ok(PlanOutcome::CaughtUp)
            }
        }
    }

    /// Claims the lowest missing range up to a block, together with its job.
    async fn claim(&self, finalized: BlockRef) -> Result<Option<Heights>> {
        let within = self.start()..finalized.number.saturating_add(1);
        if within.is_empty() {
            return Ok(None);
        }
        let claim =
            RangeClaim { within, most: self.settings.batch, order: SearchOrder::LowestFirst };
        for generation in self.generations() {
            let claimed = || self.claim_of(&generation, &claim);
            let claimed = with_retry(self.tables.sql(), "claim a range", claimed).await?;
            if let Some(range) = claimed {
                let lag = finalized.number.saturating_sub(range.end - 1);
                self.set_mode(self.mode().after_claim(lag, self.settings.batch));
                return Ok(Some(range));
            }
        }
        Ok(None)
    }

    async fn claim_of(
        &self,
        generation: &Generation,
        claim: &RangeClaim,
    ) -> Result<Option<Heights>> {
        let (kind, number) = (self.kind(), generation.number);
        let job = |range: &Heights| {
            let key = format!("{number}-{:016x}-{:016x}", range.start, range.end);
            let payload = RangeJob { generation: number, start: range.start, end: range.end };
            // Serializing numbers cannot fail.
            let payload = serde_json::to_string(&payload).unwrap_or_default();
            NewJob { attempts_max: ATTEMPTS_MAX, ..NewJob::new(&kind, key, payload) }
        };
        let queue = self.tables.queue();
        Ok(Coverage::claim_next(queue, &generation.scope(), claim, job).await?)
    }

    /// A final block at or above the end of a range, by which nodes prove that they have the range.
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

    /// Asks for the heads, and checks that the chain still has the block that it had finalized.
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
        Ok(Some(self.record_head(finalized, heads.latest.number)))
    }

    /// Checks that the chain still has the anchor, and moves it up.
    async fn check_finality(&self, finalized: BlockRef) -> Result<()> {
        let (sql, records) = (self.tables.sql(), &self.records);
        let before = with_retry(sql, "read the anchor", || records.get_anchor()).await?;
        if let Some(before) = &before {
            before.check(&*self.source, finalized).await?;
        }
        if before.as_ref().is_none_or(|before| before.number < finalized.number) {
            let put = || records.put_anchor(before.as_ref(), finalized);
            with_retry(sql, "store the anchor", put).await?;
        }
        Ok(())
    }

    /// Work for when nothing is missing: creates indexes, and puts a complete generation into service.
    pub(super) async fn tidy(&self) -> Result<()> {
        let sql = self.tables.sql();
        if !self.is_time_to_tidy(sql.clock().monotonic()) {
            return Ok(());
        }
        for generation in self.generations() {
            with_retry(sql, "create indexes", || self.tables.make_indexes(&generation)).await?;
            if generation.state == GenerationState::Building
                && self.is_collected(&generation).await?
            {
                let stored = IntervalSet::new();
                let swap = || self.tables.swap(None, &generation, &stored);
                let swapped = with_retry(sql, "replace the tables", swap).await?;
                let processor = generation.processor.name();
                match swapped {
                    SwapOutcome::Serves => {}
                    SwapOutcome::Waits => {
                        tracing::warn!(
                            processor,
                            "the previous tables cover more blocks and keep serving"
                        );
                    }
                    SwapOutcome::WouldLose(why) => {
                        tracing::warn!(
                            processor,
                            why,
                            "the rebuilt tables cannot replace the serving ones"
                        );
                    }
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

    /// Whether a generation covers everything up to the finalized head.
    async fn is_collected(&self, generation: &Generation) -> Result<bool> {
        let wanted = self.known_head().map(|head| self.start()..head.finalized.number + 1);
        let covered =
            with_retry(self.tables.sql(), "read the coverage", || self.tables.covered(generation))
                .await?;
        Ok(wanted.is_some_and(|wanted| covered.covers(&wanted)))
    }

    fn note_idle(&self, idles: bool) {
        let idled = std::mem::replace(&mut self.state().idles, idles);
        if idles && !idled {
            tracing::info!(chain = self.chain_id, "idle: no work, everything is collected");
        }
    }
}
