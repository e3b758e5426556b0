//! A queue per endpoint: which of the claimed deliveries is sent next, so that no endpoint delays another.
//!
//! The deliveries of an endpoint are sent as fast as the endpoint takes them, with few concurrent requests until it has
//! shown that it answers. There are three classes, each with slots of its own:
//!
//! | class | contents |
//! |---|---|
//! | first | first attempts |
//! | overflow | first attempts of endpoints that are too slow for their traffic, and replays |
//! | retry | further attempts, and all attempts on failing endpoints |
//!
//! A delivery that cannot be sent soon is postponed: it goes back to the job queue with a later due time, in the class
//! where it belongs now. So a dead endpoint holds only retry slots, and a slow one only overflow slots.
//!
//! Guarantees: pure, time is an argument; no delivery stays in its queue longer than [`PATIENCE`] without being sent;
//! an endpoint never gets more concurrent requests than its limit, which is one once it fails. Leaves to others:
//! sending, and the job queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Maximum time that a delivery waits in its queue.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Deliveries that may wait for an endpoint that answers, however slow it is.
const WAITING_MIN: usize = 64;
/// Deliveries that may wait for a failing endpoint.
const FAILING_WAITING_MAX: usize = 2;
/// Consecutive failures after which an endpoint counts as failing. One that is unreachable or does not answer counts as
/// failing at once.
const STRIKES_MAX: u32 = 3;
/// Concurrent requests to an endpoint before it has answered any.
const LIMIT_FIRST: usize = 2;
/// Assumed response time until one was measured.
const AVERAGE_FIRST: Duration = Duration::from_millis(20);
/// Minimum delay of a postponed delivery.
const POSTPONE_MIN: Duration = Duration::from_secs(1);
/// Bounds of the spacing between the due times of postponed deliveries.
const SPACING_MIN: Duration = Duration::from_millis(1);
const SPACING_MAX: Duration = Duration::from_secs(15);
/// Maximum delay of the last of them, beyond a pause of its endpoint.
pub(super) const POSTPONE_MAX: Duration = Duration::from_secs(600);

/// Class of a delivery: decides whose slots it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    First,
    Overflow,
    Retry,
}

impl Class {
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Overflow, Self::Retry];

    /// Kind of its jobs in the queue.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::First => "webhook.first",
            Self::Overflow => "webhook.overflow",
            Self::Retry => "webhook.retry",
        }
    }

    pub(super) fn index(self) -> usize {
        match self {
            Self::First => 0,
            Self::Overflow => 1,
            Self::Retry => 2,
        }
    }
}

/// A delivery that goes back to the job queue, with its new class and delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PostponedDelivery<T> {
    pub(super) item: T,
    pub(super) class: Class,
    pub(super) wait: Duration,
}

/// A delivery to send now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StartedDelivery<T> {
    pub(super) endpoint: i64,
    pub(super) class: Class,
    pub(super) item: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestResult {
    Success,
    /// There was a response, and it was not a success.
    Failure {
        pause: Option<Duration>,
    },
    /// There was no response.
    NoResponse,
}

#[derive(Debug)]
pub(super) struct EndpointQueues<T> {
    queues: BTreeMap<i64, EndpointQueue<T>>,
    /// Endpoints with waiting deliveries.
    busy: BTreeSet<i64>,
    /// Endpoint that was served last.
    last_served: i64,
    in_flight: [usize; 3],
    slots: [usize; 3],
    endpoint_slots: usize,
}

#[derive(Debug)]
struct EndpointQueue<T> {
    waiting: [VecDeque<(Duration, T)>; 3],
    in_flight: usize,
    /// Maximum number of concurrent requests: grows with every success, up to a maximum.
    limit: usize,
    /// Failures since the last success.
    strikes: u32,
    /// End of the endpoint's pause, on the monotonic clock.
    paused_until: Duration,
    /// Moving average of the response time.
    average: Duration,
    /// Postponed deliveries that have not come back.
    away: u32,
    /// When the last of them should be back. Those missing by then were settled elsewhere or went to another process.
    back_at: Duration,
}

impl<T> EndpointQueues<T> {
    pub(super) fn new(slots: [usize; 3], endpoint_slots: usize) -> Self {
        Self {
            queues: BTreeMap::new(),
            busy: BTreeSet::new(),
            last_served: 0,
            in_flight: [0; 3],
            slots,
            endpoint_slots,
        }
    }

    /// Puts a delivery into its queue, or postpones it.
    pub(super) fn admit(
        &mut self,
        endpoint: i64,
        class: Class,
        item: T,
        now: Duration,
    ) -> Option<PostponedDelivery<T>> {
        let queue = self.queues.entry(endpoint).or_default();
        if class != Class::First {
            queue.away = queue.away.saturating_sub(1);
        }
        if !queue.takes(class, now) {
            return Some(queue.postpone(class, item, now));
        }
        queue.waiting[class.index()].push_back((now, item));
        self.busy.insert(endpoint);
        None
    }

    /// Deliveries to send now: one of each queue in turn, as long as there are slots.
    pub(super) fn start(&mut self) -> Vec<StartedDelivery<T>> {
        let mut started = Vec::new();
        loop {
            let after = self.busy.range(self.last_served + 1..).copied();
            let order: Vec<i64> =
                after.chain(self.busy.range(..=self.last_served).copied()).collect();
            let before = started.len();
            for endpoint in order {
                started.extend(self.start_one(endpoint));
            }
            if started.len() == before {
                return started;
            }
        }
    }

    fn start_one(&mut self, endpoint: i64) -> Option<StartedDelivery<T>> {
        let queue = self.queues.get_mut(&endpoint)?;
        if queue.in_flight >= queue.limit.min(self.endpoint_slots) {
            return None;
        }
        let is_free = |class: &Class| {
            let index = class.index();
            self.in_flight[index] < self.slots[index] && !queue.waiting[index].is_empty()
        };
        let class = Class::ALL.into_iter().find(is_free)?;
        let (_, item) = queue.waiting[class.index()].pop_front()?;
        queue.in_flight += 1;
        self.in_flight[class.index()] += 1;
        self.last_served = endpoint;
        if queue.waiting.iter().all(VecDeque::is_empty) {
            self.busy.remove(&endpoint);
        }
        Some(StartedDelivery { endpoint, class, item })
    }

    /// Applies the result of a request; returns the deliveries that its queue no longer takes.
    pub(super) fn end(
        &mut self,
        endpoint: i64,
        class: Class,
        ended: RequestResult,
        took: Duration,
        now: Duration,
    ) -> Vec<PostponedDelivery<T>> {
        self.in_flight[class.index()] = self.in_flight[class.index()].saturating_sub(1);
        let queue = self.queues.entry(endpoint).or_default();
        queue.in_flight = queue.in_flight.saturating_sub(1);
        queue.average = (queue.average * 7 + took) / 8;
        match ended {
            RequestResult::Success => {
                queue.strikes = 0;
                queue.limit = (queue.limit + 1).min(self.endpoint_slots);
                return Vec::new();
            }
            RequestResult::Failure { pause } => {
                queue.strike(1);
                let pause = now + pause.unwrap_or_default();
                queue.paused_until = queue.paused_until.max(pause);
            }
            RequestResult::NoResponse => queue.strike(STRIKES_MAX),
        }
        if !queue.is_failing() && now >= queue.paused_until {
            return Vec::new();
        }
        self.clear(endpoint, now, |queue, class, _| !queue.takes(class, now))
    }

    /// Postpones deliveries that have waited too long.
    pub(super) fn postpone_late(&mut self, now: Duration) -> Vec<PostponedDelivery<T>> {
        let late = |_: &EndpointQueue<T>, _, since: Duration| now.saturating_sub(since) > PATIENCE;
        let busy: Vec<i64> = self.busy.iter().copied().collect();
        busy.into_iter().flat_map(|endpoint| self.clear(endpoint, now, late)).collect()
    }

    /// Postpones unwanted deliveries, oldest first, up to the first wanted one.
    fn clear(
        &mut self,
        endpoint: i64,
        now: Duration,
        unwanted: impl Fn(&EndpointQueue<T>, Class, Duration) -> bool,
    ) -> Vec<PostponedDelivery<T>> {
        let mut out = Vec::new();
        let Some(queue) = self.queues.get_mut(&endpoint) else {
            return out;
        };
        for class in Class::ALL {
            while let Some((since, _)) = queue.waiting[class.index()].front()
                && unwanted(queue, class, *since)
                && let Some((_, item)) = queue.waiting[class.index()].pop_front()
            {
                out.push(queue.postpone(class, item, now));
            }
        }
        if queue.waiting.iter().all(VecDeque::is_empty) {
            self.busy.remove(&endpoint);
        }
        out
    }

    /// Notes that an endpoint was already failing when this process first saw it.
    pub(super) fn set_failing(&mut self, endpoint: i64) {
        self.queues.entry(endpoint).or_default().strike(STRIKES_MAX);
    }

    /// Resets an endpoint as if it had never failed.
    pub(super) fn resume(&mut self, endpoint: i64) {
        if let Some(queue) = self.queues.get_mut(&endpoint) {
            queue.strikes = 0;
            queue.limit = LIMIT_FIRST;
            queue.paused_until = Duration::ZERO;
            queue.away = 0;
        }
    }

    /// Whether an endpoint is failing, as far as this process knows.
    pub(super) fn is_failing(&self, endpoint: i64) -> bool {
        self.queues.get(&endpoint).is_some_and(EndpointQueue::is_failing)
    }

    /// Removes the endpoints that no longer exist.
    pub(super) fn retain(&mut self, exists: impl Fn(i64) -> bool) {
        let busy = &self.busy;
        self.queues.retain(|endpoint, queue| {
            queue.in_flight > 0 || busy.contains(endpoint) || exists(*endpoint)
        });
    }

    /// Takes all waiting deliveries out of their queues.
    pub(super) fn take_waiting(&mut self) -> Vec<(Class, T)> {
        self.busy.clear();
        let queues = self.queues.values_mut();
        queues.flat_map(|queue| queue.take_waiting()).collect()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.busy.is_empty()
    }
}

impl<T> Default for EndpointQueue<T> {
    fn default() -> Self {
        Self {
            waiting: [VecDeque::new(), VecDeque::new(), VecDeque::new()],
            in_flight: 0,
            limit: LIMIT_FIRST,
            strikes: 0,
            paused_until: Duration::ZERO,
            average: AVERAGE_FIRST,
            away: 0,
            back_at: Duration::ZERO,
        }
    }
}

impl<T> EndpointQueue<T> {
    fn is_failing(&self) -> bool {
        self.strikes >= STRIKES_MAX
    }

    fn strike(&mut self, strikes: u32) {
        self.strikes = self.strikes.saturating_add(strikes);
        self.limit = if self.is_failing() { 1 } else { (self.limit / 2).max(1) };
    }

    fn takes(&self, class: Class, now: Duration) -> bool {
        let waiting: usize = self.waiting.iter().map(VecDeque::len).sum();
        if now < self.paused_until || (self.is_failing() && class != Class::Retry) {
            return false;
        }
        if self.is_failing() {
            return waiting < FAILING_WAITING_MAX;
        }
        let rounds = u32::try_from(waiting / self.limit).unwrap_or(u32::MAX);
        waiting < WAITING_MIN || self.average.saturating_mul(rounds) <= PATIENCE
    }

    fn postpone(&mut self, class: Class, item: T, now: Duration) -> PostponedDelivery<T> {
        let to = if self.is_failing() { Class::Retry } else { class.max(Class::Overflow) };
        if now > self.back_at + PATIENCE {
            self.away = 0;
        }
        self.away = self.away.saturating_add(1);
        let paused = self.paused_until.saturating_sub(now);
        let limit = u32::try_from(self.limit).unwrap_or(1).max(1);
        let spacing = (self.average / limit).clamp(SPACING_MIN, SPACING_MAX);
        let in_turn = spacing.saturating_mul(self.away).min(POSTPONE_MAX);
        let has_room = to != class && paused.is_zero() && self.takes(to, now) && self.away == 1;
        let wait = if has_room { Duration::ZERO } else { paused + POSTPONE_MIN + in_turn };
        self.back_at = self.back_at.max(now + wait);
        PostponedDelivery { item, class: to, wait }
    }

    fn take_waiting(&mut self) -> Vec<(Class, T)> {
        let mut taken = Vec::new();
        for class in Class::ALL {
            let waiting = self.waiting[class.index()].drain(..);
            taken.extend(waiting.map(|(_, item)| (class, item)));
        }
        taken
    }
}

#[cfg(test)]
mod tests;
