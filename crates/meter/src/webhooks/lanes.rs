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
        self.away = self.away.saturating_add(1);
        let paused = self.paused_until.saturating_sub(now);
        let limit = u32::try_from(self.limit).unwrap_or(1).max(1);
        let spacing = (self.average / limit).clamp(SPACING_MIN, SPACING_MAX);
        let in_turn = spacing.saturating_mul(self.away).min(PUT_OFF_MAX);
        let has_room = to != class && paused.is_zero() && self.takes(to, now) && self.away == 1;
        let wait = if has_room { Duration::ZERO } else { paused + PUT_OFF_MIN + in_turn };
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
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(1_000);

    fn lanes() -> Lanes<u32> {
        Lanes::new([8, 4, 4], 4)
    }

    fn endpoints(started: &[Start<u32>]) -> Vec<i64> {
        started.iter().map(|start| start.endpoint).collect()
    }

    #[test]
    fn lanes_take_turns_and_begin_with_few_requests() {
        let mut lanes = lanes();
        for (endpoint, item) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30)] {
            assert_eq!(lanes.admit(endpoint, Class::First, item, NOW), None);
        }
        assert_eq!(endpoints(&lanes.start()), [1, 2, 3, 1], "the third of 1 has to wait");
        assert!(lanes.is_waiting());
        assert_eq!(lanes.end(1, Class::First, Ended::Well, MS, NOW), []);
        assert_eq!(endpoints(&lanes.start()), [1]);
        assert!(!lanes.is_waiting());
    }

    #[test]
    fn an_endpoint_that_answers_gets_more_and_one_that_fails_gets_one() {
        let mut lanes = lanes();
        for item in 0..20 {
            assert_eq!(lanes.admit(1, Class::First, item, NOW), None);
        }
        assert_eq!(lanes.start().len(), LIMIT_FIRST);
        for _ in 0..4 {
            lanes.end(1, Class::First, Ended::Well, MS, NOW);
            lanes.start();
        }
        let under_way = lanes.in_flight[0];
        assert_eq!(under_way, 4, "its maximum");
        let bad = Ended::Badly { pause: None };
        assert_eq!(lanes.end(1, Class::First, bad, MS, NOW), [], "one failure says little");
        let out = lanes.end(1, Class::First, Ended::Silent, MS, NOW);
        assert!(!out.is_empty() && out.iter().all(|out| out.class == Class::Retry), "{out:?}");
        assert!(!lanes.is_waiting(), "first attempts have left the lane");
        assert_eq!(lanes.admit(1, Class::Retry, 1, NOW), None);
        assert_eq!(lanes.start(), [], "there are two under way, and it may have one");
    }

    #[test]
    fn a_failing_endpoint_takes_no_slot_of_first_attempts() {
        let mut lanes = lanes();
        lanes.set_failing(1);
        let out = lanes.admit(1, Class::First, 7, NOW).expect("put off");
        assert_eq!((out.class, out.wait), (Class::Retry, Duration::ZERO), "it may go at once");
        let out = lanes.admit(1, Class::First, 8, NOW).expect("put off");
        assert!(out.class == Class::Retry && out.wait > PUT_OFF_MIN, "{out:?}");
    }

    #[test]
    fn slots_of_one_class_are_of_no_use_to_another() {
        let mut lanes = lanes();
        for endpoint in 1..=10 {
            lanes.set_failing(endpoint);
            assert_eq!(lanes.admit(endpoint, Class::Retry, 0, NOW), None);
        }
        assert_eq!(lanes.start().len(), 4, "as many as there are slots for retries");
        assert_eq!(lanes.admit(11, Class::First, 1, NOW), None);
        let started = lanes.start();
        assert_eq!((endpoints(&started), started[0].class), (vec![11], Class::First));
    }

    #[test]
    fn what_is_put_off_comes_back_as_fast_as_the_endpoint_is() {
        let mut lanes = lanes();
        lanes.set_failing(1);
        let stalled = 15 * SECOND;
        for _ in 0..50 {
            lanes.end(1, Class::Retry, Ended::Silent, stalled, NOW);
        }
        for item in 0..2 {
            assert_eq!(lanes.admit(1, Class::Retry, item, NOW), None);
        }
        let waits: Vec<Duration> = (0..100)
            .map(|item| lanes.admit(1, Class::Retry, item, NOW).expect("its lane is full").wait)
            .collect();
        // Each comes back and is put off again: it takes the place of one that was away.
        assert!(waits.iter().all(|wait| *wait > 10 * SECOND), "{waits:?}");
        let first: Vec<Duration> = (0..100)
            .map(|item| lanes.admit(1, Class::First, item, NOW).expect("failing").wait)
            .collect();
        assert!(first.is_sorted() && first[99] == PUT_OFF_MIN + PUT_OFF_MAX, "{first:?}");
    }

    #[test]
    fn a_pause_holds_for_the_whole_endpoint() {
        let mut lanes = lanes();
        let pause = Some(60 * SECOND);
        for _ in 0..STRIKES_MAX {
            lanes.end(1, Class::First, Ended::Badly { pause }, MS, NOW);
        }
        let out = lanes.admit(1, Class::Retry, 1, NOW + 20 * SECOND).expect("paused");
        assert!(out.wait > 40 * SECOND && out.wait < 45 * SECOND, "{out:?}");
        assert_eq!(lanes.admit(1, Class::Retry, 1, NOW + 60 * SECOND), None);
    }

    #[test]
    fn a_slow_endpoint_overflows_and_a_fast_one_does_not() {
        for (took, overflows) in [(MS, false), (500 * MS, true)] {
            let mut lanes = lanes();
            for _ in 0..50 {
                lanes.end(1, Class::First, Ended::Well, took, NOW);
            }
            let out: Vec<PutOff<u32>> =
                (0..300).filter_map(|item| lanes.admit(1, Class::First, item, NOW)).collect();
            assert_eq!(!out.is_empty(), overflows, "{took:?}");
            assert!(out.iter().all(|out| out.class == Class::Overflow && out.wait > SECOND));
        }
    }

    #[test]
    fn nothing_waits_for_longer_than_patience() {
        let mut lanes = lanes();
        for item in 0..10 {
            assert_eq!(lanes.admit(1, Class::First, item, NOW), None);
        }
        assert_eq!(lanes.start().len(), LIMIT_FIRST);
        assert_eq!(lanes.put_off_late(NOW + PATIENCE), []);
        let late = lanes.put_off_late(NOW + PATIENCE + MS);
        assert_eq!(late.len(), 10 - LIMIT_FIRST);
        assert!(late.iter().all(|late| late.class == Class::Overflow), "{late:?}");
        assert!(!lanes.is_waiting());
    }

    #[test]
    fn endpoints_that_are_gone_are_forgotten_and_the_rest_is_kept() {
        let mut lanes = lanes();
        lanes.set_failing(1);
        lanes.set_failing(2);
        lanes.retain(|endpoint| endpoint == 2);
        assert_eq!((lanes.is_failing(1), lanes.is_failing(2)), (false, true));
        assert_eq!(lanes.admit(2, Class::Retry, 5, NOW), None);
        assert_eq!(lanes.take_waiting(), [(Class::Retry, 5)]);
        assert_eq!(lanes.start(), []);
    }
}
