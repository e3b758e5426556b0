//! Lanes: which of the deliveries in hand is sent next, so that no endpoint stands in the way of another.
//!
//! Every endpoint has a lane. What waits in it is sent as fast as the endpoint takes it, with few requests at a time
//! until it has shown that it answers. There are three classes, each with slots of its own:
//!
//! | class | what |
//! |---|---|
//! | first | first attempts |
//! | overflow | first attempts of endpoints that are too slow for all they get, and replays |
//! | retry | further attempts, and all attempts on endpoints that are failing |
//!
//! What a lane can not take soon is put off: it goes back to the queue, for a later time, in the class where it belongs
//! now. So a dead endpoint holds slots for retries alone, and a slow one those for overflow.
//!
//! Guarantees: pure, time comes in; nothing stays in a lane for longer than [`PATIENCE`] without being sent; no more
//! requests are begun than an endpoint's limit, which is one once it fails. Leaves to others: sending, and the queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long a delivery may wait in its lane.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How many deliveries may wait in the lane of an endpoint that answers, however slow it is.
const WAITING_MIN: usize = 64;
/// How many may wait in the lane of one that does not.
const FAILING_WAITING_MAX: usize = 2;
/// So many failures in a row, and an endpoint is failing. One that is not reached, or does not answer, is so at once.
const STRIKES_MAX: u32 = 3;
/// How many requests an endpoint gets at a time before it has answered any.
const LIMIT_FIRST: usize = 2;
/// How long an answer takes, as long as none was measured.
const AVERAGE_FIRST: Duration = Duration::from_millis(20);
/// How long what is put off stays away at least.
const PUT_OFF_MIN: Duration = Duration::from_secs(1);
/// How far apart deliveries that are put off come back.
const SPACING_MIN: Duration = Duration::from_millis(1);
const SPACING_MAX: Duration = Duration::from_secs(15);
/// How long the last of them stays away at most, beyond a pause of its endpoint.
pub(super) const PUT_OFF_MAX: Duration = Duration::from_secs(600);

/// Whose slots a delivery takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    First,
    Overflow,
    Retry,
}

impl Class {
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Overflow, Self::Retry];

    /// The kind of its jobs.
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

/// What is put off, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PutOff<T> {
    pub(super) item: T,
    pub(super) class: Class,
    pub(super) wait: Duration,
}

/// What is to be sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start<T> {
    pub(super) endpoint: i64,
    pub(super) class: Class,
    pub(super) item: T,
}

/// How a request ended, as far as its lane is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Well,
    /// There was an answer, and it was not what it should be.
    Badly {
        pause: Option<Duration>,
    },
    /// There was none.
    Silent,
}

/// All lanes.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    lanes: BTreeMap<i64, Lane<T>>,
    /// The lanes in which something waits.
    busy: BTreeSet<i64>,
    /// The lane that had its turn last.
    turn: i64,
    in_flight: [usize; 3],
    slots: [usize; 3],
    endpoint_slots: usize,
}

#[derive(Debug)]
struct Lane<T> {
    waiting: [VecDeque<(Duration, T)>; 3],
    in_flight: usize,
    /// How many requests it may have at a time: more with every success, up to a maximum.
    limit: usize,
    /// How many failures there were since the last success.
    strikes: u32,
    /// When it may be asked again, on the monotonic clock.
    paused_until: Duration,
    /// How long an answer takes, as a moving average.
    average: Duration,
    /// How many deliveries were put off and have not come back.
    away: u32,
    /// When the last of them should be back. Who is not was settled elsewhere, or went to another process.
    back_at: Duration,
}

impl<T> Lanes<T> {
    /// No lanes yet, with so many slots per class and per endpoint.
    pub(super) fn new(slots: [usize; 3], endpoint_slots: usize) -> Self {
        Self {
            lanes: BTreeMap::new(),
            busy: BTreeSet::new(),
            turn: 0,
            in_flight: [0; 3],
            slots,
            endpoint_slots,
        }
    }

    /// Takes a delivery in, or puts it off.
    pub(super) fn admit(
        &mut self,
        endpoint: i64,
        class: Class,
        item: T,
        now: Duration,
    ) -> Option<PutOff<T>> {
        let lane = self.lanes.entry(endpoint).or_default();
        if class != Class::First {
            lane.away = lane.away.saturating_sub(1);
        }
        if !lane.takes(class, now) {
            return Some(lane.put_off(class, item, now));
        }
        lane.waiting[class.index()].push_back((now, item));
        self.busy.insert(endpoint);
        None
    }

    /// What is to be sent now: one of each lane in turn, as long as there are slots.
    pub(super) fn start(&mut self) -> Vec<Start<T>> {
        let mut started = Vec::new();
        loop {
            let after = self.busy.range(self.turn + 1..).copied();
            let order: Vec<i64> = after.chain(self.busy.range(..=self.turn).copied()).collect();
            let before = started.len();
            for endpoint in order {
                started.extend(self.start_one(endpoint));
            }
            if started.len() == before {
                return started;
            }
        }
    }

    fn start_one(&mut self, endpoint: i64) -> Option<Start<T>> {
        let lane = self.lanes.get_mut(&endpoint)?;
        if lane.in_flight >= lane.limit.min(self.endpoint_slots) {
            return None;
        }
        let is_free = |class: &Class| {
            let index = class.index();
            self.in_flight[index] < self.slots[index] && !lane.waiting[index].is_empty()
        };
        let class = Class::ALL.into_iter().find(is_free)?;
        let (_, item) = lane.waiting[class.index()].pop_front()?;
        lane.in_flight += 1;
        self.in_flight[class.index()] += 1;
        self.turn = endpoint;
        if lane.waiting.iter().all(VecDeque::is_empty) {
            self.busy.remove(&endpoint);
        }
        Some(Start { endpoint, class, item })
    }

    /// Takes note of how a request ended; gives what its lane does not want any longer.
    pub(super) fn end(
        &mut self,
        endpoint: i64,
        class: Class,
        ended: Ended,
        took: Duration,
        now: Duration,
    ) -> Vec<PutOff<T>> {
        self.in_flight[class.index()] = self.in_flight[class.index()].saturating_sub(1);
        let lane = self.lanes.entry(endpoint).or_default();
        lane.in_flight = lane.in_flight.saturating_sub(1);
        lane.average = (lane.average * 7 + took) / 8;
        match ended {
            Ended::Well => {
                lane.strikes = 0;
                lane.limit = (lane.limit + 1).min(self.endpoint_slots);
                return Vec::new();
            }
            Ended::Badly { pause } => {
                lane.strike(1);
                let pause = now + pause.unwrap_or_default();
                lane.paused_until = lane.paused_until.max(pause);
            }
            Ended::Silent => lane.strike(STRIKES_MAX),
        }
        if !lane.is_failing() && now >= lane.paused_until {
            return Vec::new();
        }
        self.clear(endpoint, now, |lane, class, _| !lane.takes(class, now))
    }

    /// Puts off what has waited for too long.
    pub(super) fn put_off_late(&mut self, now: Duration) -> Vec<PutOff<T>> {
        let late = |_: &Lane<T>, _, since: Duration| now.saturating_sub(since) > PATIENCE;
        let busy: Vec<i64> = self.busy.iter().copied().collect();
        busy.into_iter().flat_map(|endpoint| self.clear(endpoint, now, late)).collect()
    }

    /// Puts off what is not wanted, oldest first and up to the first that is.
    fn clear(
        &mut self,
        endpoint: i64,
        now: Duration,
        unwanted: impl Fn(&Lane<T>, Class, Duration) -> bool,
    ) -> Vec<PutOff<T>> {
        let mut out = Vec::new();
        let Some(lane) = self.lanes.get_mut(&endpoint) else {
            return out;
        };
        for class in Class::ALL {
            while let Some((since, _)) = lane.waiting[class.index()].front()
                && unwanted(lane, class, *since)
                && let Some((_, item)) = lane.waiting[class.index()].pop_front()
            {
                out.push(lane.put_off(class, item, now));
            }
        }
        if lane.waiting.iter().all(VecDeque::is_empty) {
            self.busy.remove(&endpoint);
        }
        out
    }

    /// Says that an endpoint was failing before we came.
    pub(super) fn set_failing(&mut self, endpoint: i64) {
        self.lanes.entry(endpoint).or_default().strike(STRIKES_MAX);
    }

    /// Says that an endpoint is to be asked again as if it had never failed.
    pub(super) fn resume(&mut self, endpoint: i64) {
        if let Some(lane) = self.lanes.get_mut(&endpoint) {
            lane.strikes = 0;
            lane.limit = LIMIT_FIRST;
            lane.paused_until = Duration::ZERO;
            lane.away = 0;
        }
    }

    /// Whether an endpoint is failing, as far as is known here.
    pub(super) fn is_failing(&self, endpoint: i64) -> bool {
        self.lanes.get(&endpoint).is_some_and(Lane::is_failing)
    }

    /// Forgets the endpoints that are gone.
    pub(super) fn retain(&mut self, exists: impl Fn(i64) -> bool) {
        let busy = &self.busy;
        self.lanes.retain(|endpoint, lane| {
            lane.in_flight > 0 || busy.contains(endpoint) || exists(*endpoint)
        });
    }

    /// Takes everything out that is not under way.
    pub(super) fn take_waiting(&mut self) -> Vec<(Class, T)> {
        self.busy.clear();
        let lanes = self.lanes.values_mut();
        lanes.flat_map(|lane| lane.take_waiting()).collect()
    }

    /// Whether anything waits for its turn.
    pub(super) fn is_waiting(&self) -> bool {
        !self.busy.is_empty()
    }
}

impl<T> Default for Lane<T> {
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

impl<T> Lane<T> {
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

    fn put_off(&mut self, class: Class, item: T, now: Duration) -> PutOff<T> {
        let to = if self.is_failing() { Class::Retry } else { class.max(Class::Overflow) };
        if now > self.back_at + PATIENCE {
            self.away = 0;
        }
        self.away = self.away.saturating_add(1);
        let paused = self.paused_until.saturating_sub(now);
        let limit = u32::try_from(self.limit).unwrap_or(1).max(1);
        let spacing = (self.average / limit).clamp(SPACING_MIN, SPACING_MAX);
        let in_turn = spacing.saturating_mul(self.away).min(PUT_OFF_MAX);
        let has_room = to != class && paused.is_zero() && self.takes(to, now) && self.away == 1;
        let wait = if has_room { Duration::ZERO } else { paused + PUT_OFF_MIN + in_turn };
        self.back_at = self.back_at.max(now + wait);
        PutOff { item, class: to, wait }
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
