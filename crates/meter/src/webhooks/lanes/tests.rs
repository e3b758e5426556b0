//! Tests of lanes: who is sent to when, and who is put off.

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

/// They are cancelled, or another process takes them.
#[test]
fn what_is_put_off_and_never_comes_back_is_not_waited_for() {
    let mut lanes = lanes();
    lanes.set_failing(1);
    let mut put_off = |item, now| {
        let out = lanes.admit(1, Class::First, item, now).expect("it is failing");
        out.wait
    };
    let longest = (0..100).map(|item| put_off(item, NOW)).max().expect("a hundred");
    assert!(longest > PUT_OFF_MIN, "{longest:?}");
    let soon = put_off(100, NOW + longest);
    assert!(soon >= longest, "those that are due just now may come: {soon:?}");
    let later = NOW + longest + soon + PATIENCE + MS;
    assert_eq!(put_off(101, later), Duration::ZERO, "it may go at once");
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
