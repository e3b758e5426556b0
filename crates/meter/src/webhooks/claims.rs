//! Claims: the deliveries that this process holds, how it comes by them, and how it keeps them.
//!
//! Guarantees: of each class no more is held than there is room for; what is held is heartbeated until it is recorded,
//! released or lost; what was claimed and could not be loaded is loaded later. Nobody is asked without reason: a
//! wake-up, the next due time, a lease that ends, or the slow poll. Leaves to others: sending and recording.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::Clock;
use logmill_io::sql::Waiter;
use logmill_work::Claim;
use logmill_work::queue::{Claimer, Reclaimer};

use super::Webhooks;
use super::lanes::Class;
use super::load::{Loaded, Loader};
use super::lost::LookedAt;
use super::record::Settled;
use super::targets::{On, Snapshot};
use super::turns::RELEASE_BATCH;
use crate::error::Result;

/// The most deliveries that one statement claims.
const CLAIM_MAX: usize = 1_000;
/// How many deliveries of a class a process may hold however few slots there are: some wait in their lanes while
/// others are recorded and others are claimed, and what can not be sent soon is put off, which should be quick.
const HELD_MIN: usize = 2_048;
/// How often an idle deliverer looks, in case a wake-up was lost.
pub(super) const SLOW_POLL: Duration = Duration::from_secs(15);
/// How often a busy one looks for leases that have ended.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// A delivery that is held for more leases than this was claimed by a clock that was ahead.
const LEASES_MAX: u32 = 10;

/// All that this process holds.
pub(super) struct Claims {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    parts: [Part; 3],
    loader: Loader,
    /// Claimed, and not looked at.
    unloaded: Vec<(Class, Claim)>,
    heartbeat_at: Duration,
    tidy_at: Duration,
    /// When to look for deliveries that wait for nothing.
    unstick_at: Duration,
    /// How far the look for deliveries that nobody would send has come.
    looked_at: LookedAt,
    /// How many were ever claimed.
    pub(super) claimed: u64,
}

/// One class of deliveries.
struct Part {
    claimer: Claimer,
    /// Takes deliveries back from processes that have ended.
    reclaimer: Reclaimer,
    waiter: Waiter,
    /// All that this process holds of it, by key.
    held: BTreeMap<String, Claim>,
    /// The most that it may hold.
    held_max: usize,
    /// Whether there may be something to claim.
    look: bool,
    /// When to look anyway, on the monotonic clock.
    look_at: Duration,
}

/// What was claimed just now, and the endpoints as they are.
pub(super) struct Looked {
    pub(super) targets: Arc<Snapshot>,
    pub(super) loaded: Vec<Loaded>,
}

impl Claims {
    pub(super) fn new(hooks: &Webhooks, owner: &str, slots: [usize; 3]) -> Result<Self> {
        let part = |class: Class| -> Result<Part> {
            let (queue, kind) = (hooks.queue.clone(), class.kind());
            Ok(Part {
                waiter: queue.wakes().waiter(kind)?,
                reclaimer: Reclaimer::new(queue.clone(), kind, owner, hooks.settings.lease),
                claimer: Claimer::new(queue, kind, owner, hooks.settings.lease),
                held: BTreeMap::new(),
                held_max: slots[class.index()].saturating_mul(2).max(HELD_MIN),
                look: true,
                look_at: Duration::ZERO,
            })
        };
        Ok(Self {
            hooks: hooks.clone(),
            clock: Arc::clone(hooks.sql().clock()),
            parts: [part(Class::First)?, part(Class::Overflow)?, part(Class::Retry)?],
            loader: Loader::new(),
            unloaded: Vec::new(),
            heartbeat_at: Duration::ZERO,
            tidy_at: Duration::ZERO,
            unstick_at: Duration::ZERO,
            looked_at: LookedAt::default(),
            claimed: 0,
        })
    }

    /// Waits until somebody says that there is something to claim.
    pub(super) async fn wait(&mut self) {
        let [first, overflow, retry] = &mut self.parts;
        tokio::select! {
            biased;
            () = first.waiter.wait() => first.look = true,
            () = overflow.waiter.wait() => overflow.look = true,
            () = retry.waiter.wait() => retry.look = true,
        }
    }

    /// Looks at everything next time, whatever is known.
    pub(super) fn look_anyway(&mut self) {
        self.parts.iter_mut().for_each(|part| part.look = true);
    }

    /// There may be deliveries whose turn has come.
    pub(super) fn look_at_first(&mut self, look: bool) {
        self.parts[Class::First.index()].look |= look;
    }

    /// Whether there may be something to claim.
    pub(super) fn may_look(&self) -> bool {
        self.parts.iter().any(|part| part.look)
    }

    /// Whether there may be something to claim, and room for it.
    pub(super) fn can_look(&self) -> bool {
        self.parts.iter().any(|part| part.look && part.room() > 0)
    }

    /// When there is something to do here at the latest.
    pub(super) fn next_at(&self, now: Duration) -> Duration {
        let mut at = now + SLOW_POLL;
        for part in &self.parts {
            at = at.min(part.look_at.max(now));
            if let Some(within) = part.reclaimer.look_within() {
                at = at.min(now + within);
            }
            if !part.held.is_empty() {
                at = at.min(self.heartbeat_at);
            }
        }
        at
    }

    /// Claims what there is room for, and finds out what becomes of it.
    pub(super) async fn look(&mut self) -> Result<Option<Looked>> {
        for class in Class::ALL {
            self.claim(class).await?;
        }
        if self.unloaded.is_empty() {
            return Ok(None);
        }
        let targets =
            self.hooks.targets.current(On::Sql(self.hooks.sql()), &self.hooks.keys).await?;
        let loaded = self.loader.load(&self.hooks, &targets, &self.unloaded).await?;
        self.unloaded.clear();
        Ok(Some(Looked { targets, loaded }))
    }

    /// Claims what there is room for, if there may be something.
    async fn claim(&mut self, class: Class) -> Result<()> {
        let now = self.clock.monotonic();
        let part = &mut self.parts[class.index()];
        let most = part.room().min(CLAIM_MAX);
        if most == 0 || (!part.look && now < part.look_at) {
            return Ok(());
        }
        part.waiter.clear();
        let claims = part.claimer.claim(most).await?;
        part.look = claims.len() == most;
        part.look_at = now + SLOW_POLL;
        for claim in claims {
            self.claimed += 1;
            part.held.insert(claim.key.clone(), claim.clone());
            self.unloaded.push((class, claim));
        }
        if !part.look {
            self.look_ahead(class).await?;
        }
        Ok(())
    }

    /// Finds out when there will be something to claim, and ends a stale lease if there is one.
    async fn look_ahead(&mut self, class: Class) -> Result<()> {
        let (now, due) = self.hooks.queue.next_due(class.kind()).await?;
        let monotonic = self.clock.monotonic();
        let part = &mut self.parts[class.index()];
        match due {
            Some(due) if due <= now => {
                self.hooks.queue.reap(class.kind()).await?;
                part.look = true;
            }
            Some(due) => part.look_at = monotonic + due.since(now).min(SLOW_POLL),
            None => {}
        }
        Ok(())
    }

    /// Keeps what is held, and ends leases that others have left behind.
    pub(super) async fn tend(&mut self) -> Result<()> {
        self.heartbeat().await?;
        self.tidy().await
    }

    /// Ends stale leases at times, also when there is always something else to claim.
    async fn tidy(&mut self) -> Result<()> {
        let now = self.clock.monotonic();
        if now >= self.unstick_at {
            let unstuck = self.hooks.unstick().await?;
            let full = unstuck >= RELEASE_BATCH.unsigned_abs();
            self.unstick_at = now + if full { TIDY_INTERVAL } else { SLOW_POLL };
            self.parts[Class::First.index()].look |= unstuck > 0;
            let (found, looked_at) = self.hooks.find_lost(self.looked_at).await?;
            self.looked_at = looked_at;
            self.parts[Class::Overflow.index()].look |= found > 0;
            let settings = &self.hooks.settings;
            let held_max = settings.lease * LEASES_MAX;
            for class in Class::ALL {
                let (kind, wait_max) = (class.kind(), settings.wait_max(class));
                let hastened = self.hooks.queue.hasten(kind, wait_max, held_max).await?;
                self.parts[class.index()].look |= hastened > 0;
            }
        }
        for part in &mut self.parts {
            part.look |= part.reclaimer.look().await? > 0;
        }
        if now < self.tidy_at {
            return Ok(());
        }
        self.tidy_at = now + TIDY_INTERVAL;
        for class in Class::ALL.into_iter().filter(|class| self.parts[class.index()].look) {
            self.hooks.queue.reap(class.kind()).await?;
        }
        Ok(())
    }

    /// Prolongs the leases of what is held, when it is time.
    pub(super) async fn heartbeat(&mut self) -> Result<()> {
        let (now, lease) = (self.clock.monotonic(), self.hooks.settings.lease);
        if self.parts.iter().all(|part| part.held.is_empty()) {
            self.heartbeat_at = now + lease / 3;
        }
        if now < self.heartbeat_at {
            return Ok(());
        }
        for part in &mut self.parts {
            let claims: Vec<Claim> = part.held.values().cloned().collect();
            for claim in self.hooks.queue.heartbeat(&claims, lease).await? {
                // Its request may be under way; what becomes of that is fenced.
                tracing::warn!(kind = claim.kind, key = claim.key, "lost its claim");
                part.held.remove(&claim.key);
            }
        }
        self.heartbeat_at = now + lease / 3;
        Ok(())
    }

    /// Lets go of what was recorded, and takes note of when it comes again.
    pub(super) fn let_go(&mut self, recorded: &[Settled]) {
        let now = self.clock.monotonic();
        for settled in recorded {
            let held = &mut self.parts[settled.class.index()].held;
            if held.get(&settled.claim.key).is_some_and(|held| *held == settled.claim) {
                held.remove(&settled.claim.key);
            }
            if let Some((class, wait)) = settled.later() {
                let part = &mut self.parts[class.index()];
                part.look_at = part.look_at.min(now + wait);
            }
        }
    }

    /// Gives back all that is held.
    pub(super) async fn release(&mut self) -> Result<()> {
        for part in &mut self.parts {
            let left: Vec<Claim> = part.held.values().cloned().collect();
            self.hooks.queue.release_many(&left).await?;
            part.held.clear();
        }
        Ok(())
    }
}

impl Part {
    /// How many more it may hold, as long as that is worth a statement.
    fn room(&self) -> usize {
        let room = self.held_max.saturating_sub(self.held.len());
        if room < (self.held_max / 4).max(1) { 0 } else { room }
    }
}
