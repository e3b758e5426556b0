//! Claims: the deliveries that this process holds, and how it gets them.
//!
//! Guarantees: no more deliveries of a class are held than there is room for. One that was claimed and could not be
//! loaded is loaded later. The database is queried only after a wake-up, at the next due time, at the end of a lease,
//! or by the slow poll. Leaves to others: keeping a claim until it is recorded, released or lost ([`ClaimKeeper`]),
//! sending and recording.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::Clock;
use logmill_work::{Claim, ClaimKeeper, ClaimSettings};

use super::Webhooks;
use super::endpoint_queues::Class;
use super::load::{ClaimAction, Loader};
use super::ordering::RELEASE_BATCH;
use super::orphaned::ScanPosition;
use super::record::SettledClaim;
use super::targets::{Connection, Snapshot};
use crate::error::Result;

/// Maximum number of deliveries that one statement claims.
const CLAIM_MAX: usize = 1_000;
/// Minimum number of deliveries of a class that a process may hold, however few slots there are: some wait in their
/// endpoint queues while others are recorded and others are claimed, and a delivery that cannot be sent soon should be
/// postponed quickly.
const HELD_MIN: usize = 2_048;
/// Poll interval of an idle deliverer, in case a wake-up was lost.
pub(super) const SLOW_POLL: Duration = Duration::from_secs(15);
/// How soon to look again for deliveries that wait needlessly, after a full batch of them.
const UNSTICK_AGAIN: Duration = Duration::from_secs(1);

/// All claims of this process.
pub(super) struct Claims {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    classes: [ClassClaims; 3],
    loader: Loader,
    /// Claimed, not loaded yet.
    unloaded: Vec<(Class, Claim)>,
    /// When to look for deliveries that wait needlessly.
    unstick_at: Duration,
    /// Position of the search for pending deliveries without a job.
    scan_position: ScanPosition,
    /// Total number of claims.
    pub(super) claimed: u64,
}

struct ClassClaims {
    held: ClaimKeeper<()>,
    held_max: usize,
    /// Whether there may be something to claim.
    may_have_due: bool,
    /// When to check in any case, on the monotonic clock.
    check_at: Duration,
}

/// New claims, and the current endpoints.
pub(super) struct ClaimedBatch {
    pub(super) targets: Arc<Snapshot>,
    pub(super) loaded: Vec<ClaimAction>,
}

impl Claims {
    pub(super) fn new(hooks: &Webhooks, owner: &str, slots: [usize; 3]) -> Result<Self> {
        let class_claims = |class: Class| -> Result<ClassClaims> {
            let settings = ClaimSettings {
                kind: class.kind().to_owned(),
                owner: owner.to_owned(),
                lease: hooks.settings.lease,
                slow_poll: SLOW_POLL,
                wait_max: hooks.settings.wait_max(class),
                clock_look: SLOW_POLL,
            };
            Ok(ClassClaims {
                held: ClaimKeeper::new(hooks.queue.clone(), settings)?,
                held_max: slots[class.index()].saturating_mul(2).max(HELD_MIN),
                may_have_due: true,
                check_at: Duration::ZERO,
            })
        };
        Ok(Self {
            hooks: hooks.clone(),
            clock: Arc::clone(hooks.sql().clock()),
            classes: [
                class_claims(Class::First)?,
                class_claims(Class::Overflow)?,
                class_claims(Class::Retry)?,
            ],
            loader: Loader::new(),
            unloaded: Vec::new(),
            unstick_at: Duration::ZERO,
            scan_position: ScanPosition::default(),
            claimed: 0,
        })
    }

    /// Waits for a wake-up.
    pub(super) async fn wait(&mut self) {
        let [first, overflow, retry] = &mut self.classes;
        tokio::select! {
            biased;
            () = first.held.wait() => first.may_have_due = true,
            () = overflow.held.wait() => overflow.may_have_due = true,
            () = retry.held.wait() => retry.may_have_due = true,
        }
    }

    /// Makes the next call of [`Claims::claim_due`] query every class.
    pub(super) fn check_all_classes(&mut self) {
        self.classes.iter_mut().for_each(|class_claims| class_claims.may_have_due = true);
    }

    /// Notes that waiting deliveries may have become pending.
    pub(super) fn check_first_class(&mut self, may_have_due: bool) {
        self.classes[Class::First.index()].may_have_due |= may_have_due;
    }

    pub(super) fn may_have_due(&self) -> bool {
        self.classes.iter().any(|class_claims| class_claims.may_have_due)
    }

    /// Whether there may be something to claim, and room for it.
    pub(super) fn can_claim(&self) -> bool {
        self.classes.iter().any(|class_claims| class_claims.may_have_due && class_claims.room() > 0)
    }

    /// Latest time at which there is something to do here.
    pub(super) fn next_at(&self, now: Duration) -> Duration {
        let mut at = now + SLOW_POLL;
        for class_claims in &self.classes {
            at = at.min(class_claims.check_at.max(now));
            if let Some(within) = class_claims.held.reclaim_within() {
                at = at.min(now + within);
            }
            if let Some(heartbeat_at) = class_claims.held.heartbeat_at() {
                at = at.min(heartbeat_at);
            }
        }
        at
    }

    /// Claims as much as there is room for, and decides what to do with each claim.
    pub(super) async fn claim_due(&mut self) -> Result<Option<ClaimedBatch>> {
        for class in Class::ALL {
            self.claim(class).await?;
        }
        if self.unloaded.is_empty() {
            return Ok(None);
        }
        let targets =
            self.hooks.targets.current(Connection::Sql(self.hooks.sql()), &self.hooks.keys).await?;
        let loaded = self.loader.load(&self.hooks, &targets, &self.unloaded).await?;
        self.unloaded.clear();
        Ok(Some(ClaimedBatch { targets, loaded }))
    }

    /// Claims as much as there is room for, if there may be something.
    async fn claim(&mut self, class: Class) -> Result<()> {
        let now = self.clock.monotonic();
        let class_claims = &mut self.classes[class.index()];
        let most = class_claims.room().min(CLAIM_MAX);
        if most == 0 || (!class_claims.may_have_due && now < class_claims.check_at) {
            return Ok(());
        }
        let claims = class_claims.held.claim(&[], most).await?.claims;
        class_claims.may_have_due = claims.len() == most;
        class_claims.check_at = now + SLOW_POLL;
        for claim in claims {
            self.claimed += 1;
            class_claims.held.hold(claim.clone(), ());
            self.unloaded.push((class, claim));
        }
        if !class_claims.may_have_due {
            let wait = class_claims.held.look_ahead().await?;
            if wait.is_zero() {
                class_claims.may_have_due = true;
            } else {
                class_claims.check_at = self.clock.monotonic() + wait;
            }
        }
        Ok(())
    }

    /// Heartbeats the held claims, and ends leases that other processes left behind.
    pub(super) async fn tend(&mut self) -> Result<()> {
        self.heartbeat().await?;
        self.tidy().await
    }

    /// Ends stale leases periodically, even when there is always something else to claim.
    async fn tidy(&mut self) -> Result<()> {
        let now = self.clock.monotonic();
        if now >= self.unstick_at {
            let unstuck = self.hooks.unstick().await?;
            let full = unstuck >= RELEASE_BATCH.unsigned_abs();
            self.unstick_at = now + if full { UNSTICK_AGAIN } else { SLOW_POLL };
            self.classes[Class::First.index()].may_have_due |= unstuck > 0;
            let (found, scan_position) = self.hooks.requeue_orphaned(self.scan_position).await?;
            self.scan_position = scan_position;
            self.classes[Class::Overflow.index()].may_have_due |= found > 0;
        }
        for class_claims in &mut self.classes {
            class_claims.may_have_due |= class_claims.held.reclaim().await?;
            if class_claims.may_have_due {
                class_claims.held.tidy().await?;
            }
        }
        Ok(())
    }

    /// Extends the leases of held claims, when it is time.
    pub(super) async fn heartbeat(&mut self) -> Result<()> {
        for class_claims in &mut self.classes {
            for (claim, ()) in class_claims.held.heartbeat().await? {
                // Its request may be under way; recording its result will be fenced.
                tracing::warn!(
                    kind = claim.kind,
                    key = claim.key,
                    "lost the claim of a webhook delivery"
                );
            }
        }
        Ok(())
    }

    /// Drops the recorded claims, and notes when their deliveries come again.
    pub(super) fn drop_recorded(&mut self, recorded: &[SettledClaim]) {
        let now = self.clock.monotonic();
        for settled in recorded {
            self.classes[settled.class.index()].held.settle(&settled.claim);
            if let Some((class, wait)) = settled.later() {
                let class_claims = &mut self.classes[class.index()];
                class_claims.check_at = class_claims.check_at.min(now + wait);
            }
        }
    }

    /// Releases all claims.
    pub(super) async fn release(&mut self) -> Result<()> {
        for class_claims in &mut self.classes {
            class_claims.held.release().await?;
        }
        Ok(())
    }
}

impl ClassClaims {
    /// How many more may be held; 0 if too few to be worth a statement.
    fn room(&self) -> usize {
        let room = self.held_max.saturating_sub(self.held.len());
        if room < (self.held_max / 4).max(1) { 0 } else { room }
    }
}
