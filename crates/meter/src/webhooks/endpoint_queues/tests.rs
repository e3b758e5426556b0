//! Tests of the endpoint queues: which endpoint is served when, and which deliveries are postponed.

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NOW: Duration = Duration::from_secs(1_000);

fn queues() -> EndpointQueues<u32> {
    EndpointQueues::new([8, 4, 4], 4)
}

fn endpoints(started: &[StartedDelivery<u32>]) -> Vec<i64> {
    started.iter().map(|started| started.endpoint).collect()
}

#[test]
fn endpoint_queues_take_turns_and_begin_with_few_requests() {
    let mut queues = queues();
    for (endpoint, item) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30)] {
        assert_eq!(queues.admit(endpoint, Class::First, item, NOW), None);
    }
    assert_eq!(endpoints(&queues.start()), [1, 2, 3, 1], "the third of 1 has to wait");
    assert!(queues.is_waiting());
    assert_eq!(queues.end(1, Class::First, RequestResult::Success, MS, NOW), []);
    assert_eq!(endpoints(&queues.start()), [1]);
    assert!(!queues.is_waiting());
}

#[test]
fn an_endpoint_that_answers_gets_more_and_one_that_fails_gets_one() {
    let mut queues = queues();
    for item in 0..20 {
        assert_eq!(queues.admit(1, Class::First, item, NOW), None);
    }
    assert_eq!(queues.start().len(), LIMIT_FIRST);
    for _ in 0..4 {
        queues.end(1, Class::First, RequestResult::Success, MS, NOW);
        queues.start();
    }
    let under_way = queues.in_flight[0];
    assert_eq!(under_way, 4, "its maximum");
    let bad = RequestResult::Failure { pause: None };
    assert_eq!(queues.end(1, Class::First, bad, MS, NOW), [], "one failure says little");
    let out = queues.end(1, Class::First, RequestResult::NoResponse, MS, NOW);
    assert!(!out.is_empty() && out.iter().all(|out| out.class == Class::Retry), "{out:?}");
    assert!(!queues.is_waiting(), "first attempts have left the queue");
    assert_eq!(queues.admit(1, Class::Retry, 1, NOW), None);
    assert_eq!(queues.start(), [], "there are two under way, and it may have one");
}

#[test]
fn a_failing_endpoint_takes_no_slot_of_first_attempts() {
    let mut queues = queues();
    queues.set_failing(1);
    let out = queues.admit(1, Class::First, 7, NOW).expect("postponed");
    assert_eq!((out.class, out.wait), (Class::Retry, Duration::ZERO), "it may go at once");
    let out = queues.admit(1, Class::First, 8, NOW).expect("postponed");
    assert!(out.class == Class::Retry && out.wait > POSTPONE_MIN, "{out:?}");
}

#[test]
fn slots_of_one_class_are_not_used_by_another() {
    let mut queues = queues();
    for endpoint in 1..=10 {
        queues.set_failing(endpoint);
        assert_eq!(queues.admit(endpoint, Class::Retry, 0, NOW), None);
    }
    assert_eq!(queues.start().len(), 4, "as many as there are slots for retries");
    assert_eq!(queues.admit(11, Class::First, 1, NOW), None);
    let started = queues.start();
    assert_eq!((endpoints(&started), started[0].class), (vec![11], Class::First));
}

#[test]
fn postponed_deliveries_come_back_as_fast_as_the_endpoint_responds() {
    let mut queues = queues();
    queues.set_failing(1);
    let stalled = 15 * SECOND;
    for _ in 0..50 {
        queues.end(1, Class::Retry, RequestResult::NoResponse, stalled, NOW);
    }
    for item in 0..2 {
        assert_eq!(queues.admit(1, Class::Retry, item, NOW), None);
    }
    let waits: Vec<Duration> = (0..100)
        .map(|item| queues.admit(1, Class::Retry, item, NOW).expect("its queue is full").wait)
        .collect();
    // Each comes back and is postponed again, in the place of one that was away.
    assert!(waits.iter().all(|wait| *wait > 10 * SECOND), "{waits:?}");
    let first: Vec<Duration> = (0..100)
        .map(|item| queues.admit(1, Class::First, item, NOW).expect("failing").wait)
        .collect();
    assert!(first.is_sorted() && first[99] == POSTPONE_MIN + POSTPONE_MAX, "{first:?}");
}

/// They are cancelled, or another process takes them.
#[test]
fn postponed_deliveries_that_never_come_back_are_not_waited_for() {
    let mut queues = queues();
    queues.set_failing(1);
    let mut postpone = |item, now| {
        let out = queues.admit(1, Class::First, item, now).expect("it is failing");
        out.wait
    };
    let longest = (0..100).map(|item| postpone(item, NOW)).max().expect("a hundred");
    assert!(longest > POSTPONE_MIN, "{longest:?}");
    let soon = postpone(100, NOW + longest);
    assert!(soon >= longest, "those that are due just now may come: {soon:?}");
    let later = NOW + longest + soon + PATIENCE + MS;
    assert_eq!(postpone(101, later), Duration::ZERO, "it may go at once");
}

#[test]
fn a_pause_holds_for_the_whole_endpoint() {
    let mut queues = queues();
    let pause = Some(60 * SECOND);
    for _ in 0..STRIKES_MAX {
        queues.end(1, Class::First, RequestResult::Failure { pause }, MS, NOW);
    }
    let out = queues.admit(1, Class::Retry, 1, NOW + 20 * SECOND).expect("paused");
    assert!(out.wait > 40 * SECOND && out.wait < 45 * SECOND, "{out:?}");
    assert_eq!(queues.admit(1, Class::Retry, 1, NOW + 60 * SECOND), None);
}

#[test]
fn a_slow_endpoint_overflows_and_a_fast_one_does_not() {
    for (took, overflows) in [(MS, false), (500 * MS, true)] {
        let mut queues = queues();
        for _ in 0..50 {
            queues.end(1, Class::First, RequestResult::Success, took, NOW);
        }
        let out: Vec<PostponedDelivery<u32>> =
            (0..300).filter_map(|item| queues.admit(1, Class::First, item, NOW)).collect();
        assert_eq!(!out.is_empty(), overflows, "{took:?}");
        assert!(out.iter().all(|out| out.class == Class::Overflow && out.wait > SECOND));
    }
}

#[test]
fn no_delivery_waits_longer_than_patience() {
    let mut queues = queues();
    for item in 0..10 {
        assert_eq!(queues.admit(1, Class::First, item, NOW), None);
    }
    assert_eq!(queues.start().len(), LIMIT_FIRST);
    assert_eq!(queues.postpone_late(NOW + PATIENCE), []);
    let late = queues.postpone_late(NOW + PATIENCE + MS);
    assert_eq!(late.len(), 10 - LIMIT_FIRST);
    assert!(late.iter().all(|late| late.class == Class::Overflow), "{late:?}");
    assert!(!queues.is_waiting());
}

#[test]
fn endpoints_that_are_gone_are_forgotten_and_the_rest_is_kept() {
    let mut queues = queues();
    queues.set_failing(1);
    queues.set_failing(2);
    queues.retain(|endpoint| endpoint == 2);
    assert_eq!((queues.is_failing(1), queues.is_failing(2)), (false, true));
    assert_eq!(queues.admit(2, Class::Retry, 5, NOW), None);
    assert_eq!(queues.take_waiting(), [(Class::Retry, 5)]);
    assert_eq!(queues.start(), []);
}
