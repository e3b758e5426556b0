//! Which connections are kept, and which make room.

use std::net::IpAddr;

use hyper::HeaderMap;
use logmill_io::SystemClock;
use logmill_io::wire::guarded::Net;

use super::limits::FORWARDED;
use super::*;

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn admission(change: impl FnOnce(&mut ConnectionLimits)) -> Arc<Admission> {
    let mut limits = ConnectionLimits { max_connections: 4, ..ConnectionLimits::default() };
    change(&mut limits);
    Admission::new(limits, SystemClock::shared())
}

async fn admit(admission: &Arc<Admission>, from: IpAddr) -> ConnectionPermit {
    admission.admit(admission.room().await.expect("it is open"), from)
}

fn is_dropped(place: &ConnectionPermit) -> bool {
    place.slot.admission.book().connections[&place.slot.id].ends.is_some()
}

#[tokio::test]
async fn the_connection_that_has_waited_longest_makes_room() {
    let admission = admission(|_| {});
    let mut places = Vec::new();
    for last in 0..4 {
        places.push(admit(&admission, address(last)).await);
    }
    // The oldest connection is being answered.
    places[0].slot().receives();
    places[0].slot().works();
    let second = places.remove(1);
    let (dropped, room) = (second.dropped(), admission.room());
    let room = async {
        let next = async {
            dropped.await;
            drop(second);
        };
        tokio::join!(room, next).0
    };
    assert!(room.await.is_some());
    assert!(places.iter().all(|place| !is_dropped(place)), "and no other");
}

#[tokio::test]
async fn a_connection_whose_client_does_not_read_makes_room_as_a_last_resort() {
    let admission = admission(|limits| limits.max_connections = 2);
    let (first, second) =
        (admit(&admission, address(1)).await, admit(&admission, address(2)).await);
    for place in [&first, &second] {
        place.slot().receives();
        place.slot().works();
    }
    admission.make_room();
    assert!(!is_dropped(&first) && !is_dropped(&second), "both are being answered");
    second.slot().stalled(true);
    admission.make_room();
    assert!(!is_dropped(&first) && is_dropped(&second));
}

/// A connection is asked to end while it waits, but becomes a WebSocket or is being answered before it notices.
#[tokio::test]
async fn a_connection_that_progressed_in_the_same_poll_is_kept_and_another_makes_room() {
    for becomes_websocket in [true, false] {
        let admission = admission(|limits| limits.max_connections = 2);
        let (first, second) =
            (admit(&admission, address(1)).await, admit(&admission, address(2)).await);
        admission.make_room();
        assert!(is_dropped(&first) && !is_dropped(&second), "the oldest");
        first.slot().receives();
        first.slot().works();
        if becomes_websocket {
            first.slot().upgraded();
        }
        assert!(!is_dropped(&first));
        let mut ends = std::pin::pin!(first.dropped());
        assert!(futures::poll!(ends.as_mut()).is_pending(), "{becomes_websocket}");
        admission.make_room();
        assert!(is_dropped(&second), "the one that waits");
        let mut ends = std::pin::pin!(second.dropped());
        assert!(futures::poll!(ends.as_mut()).is_ready());
    }
}

#[tokio::test]
async fn an_address_with_too_many_waiting_connections_loses_its_own_oldest() {
    let admission = admission(|limits| {
        limits.max_waiting_per_address = 2;
        limits.max_connections = 100;
        limits.trusted_proxies = vec![Net::parse("10.0.0.9").expect("a net")];
    });
    let other = admit(&admission, address(1)).await;
    let one = admit(&admission, address(2)).await;
    one.slot().receives();
    one.slot().works();
    let mut places = Vec::new();
    for _ in 0..4 {
        places.push(admit(&admission, address(2)).await);
    }
    let dropped: Vec<bool> = places.iter().map(is_dropped).collect();
    assert_eq!(dropped, [true, true, false, false]);
    assert!(!is_dropped(&other) && !is_dropped(&one), "others, and what is being answered");
    let mut proxied = Vec::new();
    for _ in 0..10 {
        proxied.push(admit(&admission, address(9)).await);
    }
    assert!(!proxied.iter().any(is_dropped), "a proxy speaks for many");
}

#[tokio::test]
async fn a_connection_that_ends_leaves_nothing_in_the_book() {
    let admission = admission(|_| {});
    for last in 0..20 {
        let place = admit(&admission, address(last)).await;
        place.slot().receives();
        place.slot().upgraded();
        assert_eq!(admission.book().websockets, 1);
        place.slot().stalled(true);
    }
    let book = admission.book();
    assert!(book.connections.is_empty() && book.order.is_empty() && book.waiting.is_empty());
    assert_eq!((book.websockets, book.ending), (0, 0));
}

#[test]
fn addresses_of_one_ipv6_64_network_count_together() {
    let at = |text: &str| origin(text.parse().expect("an address"));
    assert_eq!(at("2001:db8:1:2::1"), at("2001:db8:1:2:ffff::9"));
    assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
    assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
}

#[test]
fn a_forwarded_client_address_is_accepted_only_from_a_trusted_proxy() {
    let limits = ConnectionLimits {
        trusted_proxies: vec![Net::parse("10.0.0.0/8").expect("a net")],
        ..ConnectionLimits::default()
    };
    let client = |peer: &str, named: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in named {
            headers.append(FORWARDED, value.parse().expect("a value"));
        }
        limits.client(peer.parse().expect("an address"), &headers).to_string()
    };
    assert_eq!(client("192.0.2.1", &["198.51.100.7"]), "192.0.2.1", "anybody can say so");
    assert_eq!(client("10.0.0.1", &["198.51.100.7"]), "198.51.100.7");
    assert_eq!(client("10.0.0.1", &["6.6.6.6, 198.51.100.7, 10.0.0.2"]), "198.51.100.7");
    assert_eq!(client("10.0.0.1", &["6.6.6.6", "198.51.100.7"]), "198.51.100.7");
    assert_eq!(client("10.0.0.1", &["nonsense"]), "10.0.0.1");
    assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
}

#[tokio::test]
async fn a_connection_is_working_while_any_of_its_requests_is() {
    let admission = admission(|_| {});
    let place = admit(&admission, address(1)).await;
    let slot = place.slot();
    let phase = || admission.book().connections[&slot.id].phase;
    slot.receives();
    slot.receives();
    assert_eq!(phase(), Phase::Receiving);
    slot.works();
    assert_eq!(phase(), Phase::Working);
    slot.answered();
    assert_eq!(phase(), Phase::Receiving, "the other one still comes");
    // The request is abandoned before its body arrived.
    slot.answered();
    assert_eq!(phase(), Phase::Waiting);
    slot.answered();
    assert_eq!(phase(), Phase::Waiting);
}
