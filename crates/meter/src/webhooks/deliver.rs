//! The deliverer: claims deliveries that are due, sends them, records what became of them; many at a time.
//!
//! ```text
//!          wake-up, a delivery that comes due, a lease that ends, slow poll
//!                                │
//!                                ▼
//!     record ◀── ended ── [requests] ◀── lanes ◀── load ◀── claim, per class
//!        │                                 │
//!        └────────── put off ◀─────────────┘
//! ```
//!
//! One task does all of this; each request has a task of its own. Requests go on while the task waits for the database.
//!
//! Guarantees:
//! - What is claimed is recorded, released or, when this process dies, claimed by another once its lease has ended.
//!   What can not be recorded now is kept, with heartbeats, and recorded later.
//! - Idle means idle: no statement is sent until a wake-up, the next due time, or the slow poll.
//! - On the stop signal nothing new is claimed; what is under way may finish, and the rest is released.
//!
//! Leaves to others: what is sent next (`lanes`), what an answer means (`verdict`).

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::sql::Waiter;
use logmill_io::{Clock, ErrorKind, Tasks};
use logmill_work::Claim;
use logmill_work::queue::Claimer;

use super::Webhooks;
use super::lanes::{Class, Ended, Lanes, PATIENCE, PutOff};
use super::load::{Held, Loaded, Loader};
use super::record::{Attempt, Ending, Settled};
use super::send::{Sent, send};
use super::targets::On;
use super::verdict::{Answered, Next, judge};
use crate::error::Result;

/// The most deliveries that one statement claims.
const CLAIM_MAX: usize = 1_000;
/// How many deliveries of a class a process may hold however few slots there are: what can not be sent soon is put
/// off, and that should be quick.
const HELD_MIN: usize = 512;
/// The most that one transaction records.
const RECORD_MAX: usize = 1_000;
/// How often an idle deliverer looks, in case a wake-up was lost.
const SLOW_POLL: Duration = Duration::from_secs(15);
/// How often a busy one looks for leases that have ended.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// A delivery that is held for more leases than this was claimed by a clock that was ahead.
const LEASES_MAX: u32 = 10;
/// After how long a failed statement is tried again.
const AGAIN_WAIT: Duration = Duration::from_millis(500);
/// How long a stop waits for requests, beyond their timeout.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Delivers messages until it is told to stop.
pub struct Deliverer {
    hooks: Webhooks,
    clock: Arc<dyn Clock>,
    parts: [Part; 3],
    lanes: Lanes<Held>,
    loader: Loader,
    tasks: Tasks<Sent>,
    /// Claimed, and not looked at.
    unloaded: Vec<(Class, Claim)>,
    /// Ended, and not recorded.
    settled: Vec<Settled>,
    /// The number of changes to endpoints that the lanes know of.
    version: Option<i64>,
    heartbeat_at: Duration,
    tidy_at: Duration,
    /// When to look for deliveries that wait for nothing.
    unstick_at: Duration,
    claimed: u64,
    sent: u64,
}

/// One class of deliveries.
struct Part {
    claimer: Claimer,
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

impl Webhooks {
    /// What delivers their messages. `owner` is different in every process and every run.
    pub fn deliverer(&self, owner: &str) -> Result<Deliverer> {
        let settings = &self.settings;
        let slots = [settings.first_slots, settings.overflow_slots, settings.retry_slots];
        let part = |class: Class| -> Result<Part> {
            let (queue, kind) = (self.queue.clone(), class.kind());
            Ok(Part {
                waiter: queue.wakes().waiter(kind)?,
                claimer: Claimer::new(queue, kind, owner, settings.lease),
                held: BTreeMap::new(),
                held_max: slots[class.index()].saturating_mul(2).max(HELD_MIN),
                look: true,
                look_at: Duration::ZERO,
            })
        };
        Ok(Deliverer {
            clock: Arc::clone(self.sql().clock()),
            parts: [part(Class::First)?, part(Class::Overflow)?, part(Class::Retry)?],
            lanes: Lanes::new(slots, settings.endpoint_slots),
            loader: Loader::new(),
            tasks: Tasks::new(),
            unloaded: Vec::new(),
            settled: Vec::new(),
            version: None,
            heartbeat_at: Duration::ZERO,
            tidy_at: Duration::ZERO,
            unstick_at: Duration::ZERO,
            claimed: 0,
            sent: 0,
            hooks: self.clone(),
        })
    }
}

impl Deliverer {
    /// Delivers until `stop` completes, then winds down.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        loop {
            let wait = match self.turn().await {
                Ok(()) => self.pause(),
                // A handle that refuses to go on will not recover: whoever started us must open it anew.
                Err(error) if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Corrupt) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(error = error.chain(), "delivering was interrupted");
                    AGAIN_WAIT
                }
            };
            let [first, overflow, retry] = &mut self.parts;
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.end(ended),
                () = first.waiter.wait() => first.look = true,
                () = overflow.waiter.wait() => overflow.look = true,
                () = retry.waiter.wait() => retry.look = true,
                () = self.clock.sleep(wait) => {}
            }
        }
        self.wind_down().await
    }

    /// Delivers what is due now, and what comes due by it; gives how many requests were made. For tests, and for
    /// whoever wants to be sure before going on.
    pub async fn drain(&mut self) -> Result<u64> {
        let sent = self.sent;
        loop {
            let claimed = self.claimed;
            self.parts.iter_mut().for_each(|part| part.look = true);
            self.turn().await?;
            while !self.tasks.is_empty() || !self.settled.is_empty() || self.lanes.is_waiting() {
                while let Some(ended) = self.tasks.join_next().await {
                    self.end(ended);
                }
                self.turn().await?;
            }
            // A lease that was stale has ended just now.
            let more = self.parts.iter().any(|part| part.look);
            if self.claimed == claimed && !more {
                return Ok(self.sent - sent);
            }
        }
    }

    /// Everything that can be done now.
    pub(super) async fn turn(&mut self) -> Result<()> {
        self.collect_ended().await;
        let late = self.lanes.put_off_late(self.clock.monotonic());
        self.put_off(late);
        self.start();
        self.record().await?;
        self.heartbeat().await?;
        self.tidy().await?;
        for class in Class::ALL {
            self.claim(class).await?;
        }
        self.load().await?;
        self.start();
        Ok(())
    }

    /// How long until there is something else to do, if nothing happens before.
    fn pause(&self) -> Duration {
        let now = self.clock.monotonic();
        if !self.settled.is_empty() || self.parts.iter().any(|part| part.look && part.room() > 0) {
            return Duration::ZERO;
        }
        let mut at = now + SLOW_POLL;
        for part in &self.parts {
            at = at.min(part.look_at.max(now));
            if !part.held.is_empty() {
                at = at.min(self.heartbeat_at);
            }
        }
        if self.lanes.is_waiting() {
            at = at.min(now + PATIENCE);
        }
        at.saturating_sub(now)
    }

    fn part(&mut self, class: Class) -> &mut Part {
        &mut self.parts[class.index()]
    }

    /// Claims what there is room for, if there may be something.
    async fn claim(&mut self, class: Class) -> Result<()> {
        let now = self.clock.monotonic();
        let part = self.part(class);
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
            self.parts[class.index()].held.insert(claim.key.clone(), claim.clone());
            self.unloaded.push((class, claim));
        }
        if !self.part(class).look {
            self.look_ahead(class).await?;
        }
        Ok(())
    }

    /// Finds out when there will be something to claim, and ends a stale lease if there is one.
    async fn look_ahead(&mut self, class: Class) -> Result<()> {
        let (now, due) = self.hooks.queue.next_due(class.kind()).await?;
        let monotonic = self.clock.monotonic();
        match due {
            Some(due) if due <= now => {
                self.hooks.queue.reap(class.kind()).await?;
                self.part(class).look = true;
            }
            Some(due) => self.part(class).look_at = monotonic + due.since(now).min(SLOW_POLL),
            None => {}
        }
        Ok(())
    }

    /// Ends stale leases at times, also when there is always something else to claim.
    async fn tidy(&mut self) -> Result<()> {
        let now = self.clock.monotonic();
        if now >= self.unstick_at {
            self.unstick_at = now + SLOW_POLL;
            self.parts[Class::First.index()].look |= self.hooks.unstick().await?;
            let settings = &self.hooks.settings;
            let (wait_max, held_max) = (settings.wait_max(), settings.lease * LEASES_MAX);
            for class in Class::ALL {
                let hastened = self.hooks.queue.hasten(class.kind(), wait_max, held_max).await?;
                self.parts[class.index()].look |= hastened > 0;
            }
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

    /// Finds out what becomes of what was claimed, and hands it to the lanes.
    async fn load(&mut self) -> Result<()> {
        if self.unloaded.is_empty() {
            return Ok(());
        }
        let targets = self.hooks.targets.current(On::Sql(self.hooks.sql())).await?;
        let known = self.version.replace(targets.version);
        if known.is_none() {
            let failing = targets.by_seq.values().filter(|target| target.failing);
            failing.for_each(|target| self.lanes.set_failing(target.seq));
        }
        if known != Some(targets.version) {
            self.lanes.retain(|endpoint| targets.by_seq.contains_key(&endpoint));
        }
        let loaded = self.loader.load(&self.hooks, &targets, &self.unloaded).await?;
        self.unloaded.clear();
        let now = self.clock.monotonic();
        for loaded in loaded {
            match loaded {
                Loaded::Settle(settled) => self.settled.push(settled),
                Loaded::Send(held) => {
                    let put_off = self.lanes.admit(held.of.endpoint, held.class, held, now);
                    self.put_off(put_off);
                }
            }
        }
        Ok(())
    }

    /// Starts as many requests as there are slots for.
    fn start(&mut self) {
        for start in self.lanes.start() {
            self.tasks.spawn(send(self.hooks.clone(), start.item));
        }
    }

    fn put_off(&mut self, put_off: impl IntoIterator<Item = PutOff<Held>>) {
        for PutOff { item, class, wait } in put_off {
            self.settle(item, Ending::PutOff { class, wait });
        }
    }

    fn settle(&mut self, held: Held, ending: Ending) {
        let Held { claim, class, of, attempts, .. } = held;
        self.settled.push(Settled { claim, class, of, attempts, ending });
    }

    /// Judges a request that is over.
    fn end(&mut self, ended: Result<Sent, logmill_io::Panicked>) {
        // The task turns panics into failures, so one that vanished was stopped with us.
        let Ok(Sent { held, at, took, answered, error, response }) = ended else {
            return;
        };
        self.sent += 1;
        let entropy = self.hooks.sql().entropy();
        let verdict = judge(&answered, held.attempts + 1, &self.hooks.settings, &**entropy);
        let how = match (&answered, &verdict.next) {
            (_, Next::Succeeded) => Ended::Well,
            (Answered::Status { .. }, _) => Ended::Badly { pause: verdict.pause },
            _ => Ended::Silent,
        };
        let (endpoint, now) = (held.of.endpoint, self.clock.monotonic());
        let unwanted = self.lanes.end(endpoint, held.class, how, took, now);
        self.put_off(unwanted);
        self.hooks.targets.set_failing(endpoint, self.lanes.is_failing(endpoint));
        let status = match answered {
            Answered::Status { status, .. } => Some(status),
            _ => None,
        };
        let (next, dry_run) = (verdict.next, answered == Answered::DryRun);
        let attempt = Attempt { at, took, status, error, response, dry_run, next };
        self.settle(held, Ending::Attempted(attempt));
    }

    /// Takes note of every request that is over, without waiting for any but those that are just about to be.
    async fn collect_ended(&mut self) {
        tokio::task::yield_now().await;
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.end(ended),
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Records all that has ended. What can not be recorded now stays, and is heartbeated.
    async fn record(&mut self) -> Result<()> {
        while !self.settled.is_empty() {
            let most = self.settled.len().min(RECORD_MAX);
            let recorded = self.hooks.record(&self.settled[..most]).await?;
            let now = self.clock.monotonic();
            for settled in self.settled.drain(..most) {
                let held = &mut self.parts[settled.class.index()].held;
                if held.get(&settled.claim.key).is_some_and(|held| *held == settled.claim) {
                    held.remove(&settled.claim.key);
                }
                if let Some((class, wait)) = settled.later() {
                    let part = &mut self.parts[class.index()];
                    part.look_at = part.look_at.min(now + wait);
                }
            }
            self.parts[Class::First.index()].look |= recorded.advanced;
            if !recorded.disabled.is_empty() {
                // They tell the others, wherever those are delivered to.
                self.hooks.wake();
            }
            for endpoint in recorded.disabled {
                self.hooks.cancel_open(endpoint).await?;
            }
        }
        Ok(())
    }

    async fn heartbeat(&mut self) -> Result<()> {
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

    async fn wind_down(mut self) -> Result<()> {
        let deadline = self.clock.monotonic() + self.hooks.settings.timeout + STOP_GRACE;
        let waiting = self.lanes.take_waiting();
        drop(waiting);
        while !self.tasks.is_empty() && self.clock.monotonic() < deadline {
            if let Err(error) = self.heartbeat().await {
                tracing::warn!(error = error.chain(), "no heartbeat");
            }
            let left = deadline.saturating_sub(self.clock.monotonic());
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => self.end(ended),
                () = self.clock.sleep(left.min(AGAIN_WAIT)) => {}
            }
        }
        self.tasks.abort_all();
        self.record().await?;
        for part in &self.parts {
            let left: Vec<Claim> = part.held.values().cloned().collect();
            self.hooks.queue.release_many(&left).await?;
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

impl std::fmt::Debug for Deliverer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Deliverer({} sent, {} under way)", self.sent, self.tasks.len())
    }
}
