//! Claims: the deliveries that this process holds, how it gets them, and how it keeps them.
//!
//! Guarantees: no more deliveries of a class are held than there is room for. A held delivery is heartbeated until it
//! is recorded, released or lost; one that was claimed and could not be loaded is loaded later. The database is
//! queried only after a wake-up, at the next due time, at the end of a lease, or by the slow poll. Leaves to others:
//! sending and recording.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::Clock;
use logmill_io::sql::Waiter;
use logmill_work::Claim;
use logmill_work::queue::{Claimer, Reclaimer};

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
/// How often a busy deliverer looks for leases that have ended.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// A delivery held for more lease durations than this was claimed while the clock was ahead.
const LEASES_MAX: u32 = 10;

/// All claims of this process.
pub(super) struct Claims {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    classes: [ClassClaims; 3],
    loader: Loader,
    /// Claimed, not loaded yet.
    unloaded: Vec<(Class, Claim)>,
    heartbeat_at: Duration,
    tidy_at: Duration,
    /// When to look for deliveries that wait needlessly.
    unstick_at: Duration,
    /// Position of the search for pending deliveries without a job.
    scan_position: ScanPosition,
    /// Total number of claims.
    pub(super) claimed: u64,
}

struct ClassClaims {
    claimer: Claimer,
    /// Takes back deliveries from processes that have ended.
    reclaimer: Reclaimer,
    waiter: Waiter,
    /// Claims of this process in the class, by key.
    held: BTreeMap<String, Claim>,
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
            let (queue, kind) = (hooks.queue.clone(), class.kind());
            Ok(ClassClaims {
                waiter: queue.wakes().waiter(kind)?,
                reclaimer: Reclaimer::new(queue.clone(), kind, owner, hooks.settings.lease),
                claimer: Claimer::new(queue, kind, owner, hooks.settings.lease),
                held: BTreeMap::new(),
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
            heartbeat_at: Duration::ZERO,
            tidy_at: Duration::ZERO,
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
            () = first.waiter.wait() => first.may_have_due = true,
            () = overflow.waiter.wait() => overflow.may_have_due = true,
            () = retry.waiter.wait() => retry.may_have_due = true,
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
            if let Some(within) = class_claims.reclaimer.look_within() {
                at = at.min(now + within);
            }
            if !class_claims.held.is_empty() {
                at = at.min(self.heartbeat_at);
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
        class_claims.waiter.clear();
        let claims = class_claims.claimer.claim(most).await?;
        class_claims.may_have_due = claims.len() == most;
        class_claims.check_at = now + SLOW_POLL;
        for claim in claims {
            self.claimed += 1;
            class_claims.held.insert(claim.key.clone(), claim.clone());
            self.unloaded.push((class, claim));
        }
        if !class_claims.may_have_due {
            self.find_next_due(class).await?;
        }
        Ok(())
    }

    /// Finds out when there will be something to claim, and ends a stale lease if there is one.
    async fn find_next_due(&mut self, class: Class) -> Result<()> {
        let (now, due) = self.hooks.queue.next_due(class.kind()).await?;
        let monotonic = self.clock.monotonic();
        let class_claims = &mut self.classes[class.index()];
        match due {
            Some(due) if due <= now => {
                self.hooks.queue.reap(class.kind()).await?;
                class_claims.may_have_due = true;
            }
            Some(due) => class_claims.check_at = monotonic + due.since(now).min(SLOW_POLL),
            None => {}
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
            self.unstick_at = now + if full { TIDY_INTERVAL } else { SLOW_POLL };
            self.classes[Class::First.index()].may_have_due |= unstuck > 0;
            let (found, scan_position) = self.hooks.requeue_orphaned(self.scan_position).await?;
            self.scan_position = scan_position;
            self.classes[Class::Overflow.index()].may_have_due |= found > 0;
            let settings = &self.hooks.settings;
            let held_max = settings.lease * LEASES_MAX;
            for class in Class::ALL {
                let (kind, wait_max) = (class.kind(), settings.wait_max(class));
                let hastened = self.hooks.queue.hasten(kind, wait_max, held_max).await?;
                self.classes[class.index()].may_have_due |= hastened > 0;
            }
        }
        for class_claims in &mut self.classes {
            class_claims.may_have_due |= class_claims.reclaimer.look().await? > 0;
        }
        if now < self.tidy_at {
            return Ok(());
        }
        self.tidy_at = now + TIDY_INTERVAL;
        for class in Class::ALL.into_iter().filter(|class| self.classes[class.index()].may_have_due)
        {
            self.hooks.queue.reap(class.kind()).await?;
        }
        Ok(())
    }

    /// Extends the leases of held claims, when it is time.
    pub(super) async fn heartbeat(&mut self) -> Result<()> {
        let (now, lease) = (self.clock.monotonic(), self.hooks.settings.lease);
        if self.classes.iter().all(|class_claims| class_claims.held.is_empty()) {
            self.heartbeat_at = now + lease / 3;
        }
        if now < self.heartbeat_at {
            return Ok(());
        }
        for class_claims in &mut self.classes {
            let claims: Vec<Claim> = class_claims.held.values().cloned().collect();
            for claim in self.hooks.queue.heartbeat(&claims, lease).await? {
                // Its request may be under way; recording its result will be fenced.
                tracing::warn!(
                    kind = claim.kind,
                    key = claim.key,
                    "lost the claim of a webhook delivery"
                );
                class_claims.held.remove(&claim.key);
            }
        }
        self.heartbeat_at = now + lease / 3;
        Ok(())
    }

    /// Drops the recorded claims, and notes when their deliveries come again.
    pub(super) fn drop_recorded(&mut self, recorded: &[SettledClaim]) {
        let now = self.clock.monotonic();
        for settled in recorded {
            let held = &mut self.classes[settled.class.index()].held;
            if held.get(&settled.claim.key).is_some_and(|held| *held == settled.claim) {
                held.remove(&settled.claim.key);
            }
            if let Some((class, wait)) = settled.later() {
                let class_claims = &mut self.classes[class.index()];
                class_claims.check_at = class_claims.check_at.min(now + wait);
            }
        }
    }

    /// Releases all claims.
    pub(super) async fn release(&mut self) -> Result<()> {
        for class_claims in &mut self.classes {
            let left: Vec<Claim> = class_claims.held.values().cloned().collect();
            self.hooks.queue.release_many(&left).await?;
            class_claims.held.clear();
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
