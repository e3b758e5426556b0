//! Admission: which connections are kept when there are too many.
//!
//! A connection is in one of these phases:
//!
//! ```text
//!   accepted ──▶ waiting ──whole head──▶ receiving ──whole body──▶ working ──answered──▶ waiting
//!                                            └── 101 ──▶ upgraded, until its end
//! ```
//!
//! While it waits or receives, it is up to the client to go on, and the connection can be closed without losing work.
//! So when there is no place for a new connection, the one that has waited longest makes room; and an address that has
//! too many waiting ones loses its own oldest. A flood of connections that send nothing therefore pushes itself out,
//! and a client that sends its request is served. Clients that do not take their answer make room last.
//!
//! Guarantees: never more connections than `max_connections`; of one address (an IPv6 network of 64 bits) never more
//! than `max_waiting_per_address` that wait, except of `trusted_proxies`, which speak for many; WebSockets never take
//! all places; no connection waits or receives for longer than its time, give or take as much again. A connection
//! that is being answered is never closed for another, unless its client does not read.
//!
//! Leaves to others: accepting, and reading and writing ([`super::connection`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::HeaderMap;
use logmill_io::Clock;
use logmill_io::wire::guarded::Net;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How often it is looked again for a connection that can make room.
const ROOM_WAIT: Duration = Duration::from_millis(20);
/// The header in which a proxy names the client it speaks for.
const FORWARDED: &str = "x-forwarded-for";

/// How many connections there may be, and for how long they may keep us waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// The most connections.
    pub(crate) max_connections: usize,
    /// The most connections that are WebSockets.
    pub(crate) max_websockets: usize,
    /// The most connections of one address that wait for their client.
    pub(crate) max_waiting_per_address: usize,
    /// How long a client may take to send the head of a request.
    pub(crate) header_timeout: Duration,
    /// How long a client may take to send the body of a request.
    pub(crate) body_timeout: Duration,
    /// Proxies: exempt from the limit per address, and believed when they name a client.
    pub(crate) trusted_proxies: Vec<Net>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: 1_024,
            max_websockets: 768,
            max_waiting_per_address: 256,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            trusted_proxies: Vec::new(),
        }
    }
}

impl ConnectionLimits {
    fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|net| net.contains(address.to_canonical()))
    }

    /// Who asks: the peer, or, if that is a trusted proxy, the last address that it names and that is none itself.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.is_trusted(peer) {
            return peer;
        }
        let named = headers.get_all(FORWARDED).into_iter().filter_map(|value| value.to_str().ok());
        let named: Vec<&str> = named.flat_map(|value| value.split(',')).collect();
        let mut client = peer;
        for name in named.iter().rev() {
            let Ok(address) = name.trim().parse::<IpAddr>() else { break };
            client = address.to_canonical();
            if !self.is_trusted(client) {
                break;
            }
        }
        client
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Receiving,
    Working,
    Upgraded,
}

/// Whose connections are counted together.
type Origin = IpAddr;

/// One network of 64 bits is one customer's.
fn origin(address: IpAddr) -> Origin {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

/// Who makes room first: lower numbers before higher ones.
fn rank(connection: &Connection) -> Option<u8> {
    match connection.phase {
        _ if connection.is_dropped => None,
        Phase::Upgraded => None,
        _ if connection.is_stalled => Some(2),
        Phase::Waiting | Phase::Receiving => Some(u8::from(connection.origin.is_none())),
        Phase::Working => None,
    }
}

#[derive(Debug)]
struct Connection {
    /// None for a trusted proxy.
    origin: Option<Origin>,
    phase: Phase,
    /// When the phase began, on the monotonic clock.
    since: Duration,
    /// Whether the client does not take what is sent.
    is_stalled: bool,
    /// Whether it was told to end.
    is_dropped: bool,
    drop: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    connections: BTreeMap<u64, Connection>,
    /// Those that can make room, first those who do so first.
    order: BTreeSet<(u8, Duration, u64)>,
    /// Those of an address that wait, oldest first.
    waiting: BTreeMap<Origin, BTreeSet<(Duration, u64)>>,
    websockets: usize,
    /// Those that were told to end and have not yet.
    ending: usize,
}

impl Book {
    /// Changes a connection, and keeps every list in step.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Connection)) {
        self.unlist(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            change(connection);
        }
        self.list(id);
    }

    fn unlist(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(rank) = rank(connection) {
            self.order.remove(&(rank, connection.since, id));
            if let (0, Some(origin)) = (rank, connection.origin)
                && let Some(waiting) = self.waiting.get_mut(&origin)
            {
                waiting.remove(&(connection.since, id));
                if waiting.is_empty() {
                    self.waiting.remove(&origin);
                }
            }
        }
        self.websockets -= usize::from(connection.phase == Phase::Upgraded);
        self.ending -= usize::from(connection.is_dropped);
    }

    fn list(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(rank) = rank(connection) {
            self.order.insert((rank, connection.since, id));
            if let (0, Some(origin)) = (rank, connection.origin) {
                self.waiting.entry(origin).or_default().insert((connection.since, id));
            }
        }
        self.websockets += usize::from(connection.phase == Phase::Upgraded);
        self.ending += usize::from(connection.is_dropped);
    }

    fn remove(&mut self, id: u64) {
        self.unlist(id);
        self.connections.remove(&id);
    }

    /// Tells a connection to end.
    fn drop_one(&mut self, id: u64, reason: &'static str) {
        self.change(id, |connection| {
            connection.is_dropped = true;
            connection.drop.notify_one();
        });
        count_dropped(reason);
    }
}

fn count_dropped(reason: &'static str) {
    metrics::counter!("logmill_http_connections_dropped_total", "reason" => reason).increment(1);
}

/// The places for connections, and who has them.
#[derive(Debug)]
pub(super) struct Admission {
    limits: ConnectionLimits,
    clock: Arc<dyn Clock>,
    places: Arc<Semaphore>,
    book: Mutex<Book>,
}

impl Admission {
    pub(super) fn new(limits: ConnectionLimits, clock: Arc<dyn Clock>) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(limits.max_connections));
        Arc::new(Self { limits, clock, places, book: Mutex::default() })
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the next connection, which another makes room for if there is none; none once nobody is admitted.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
                return Some(permit);
            }
            self.make_room();
            tokio::select! {
                biased;
                permit = Arc::clone(&self.places).acquire_owned() => return permit.ok(),
                // Whoever is being answered now may wait for its client then.
                () = self.clock.sleep(ROOM_WAIT) => {}
            }
        }
    }

    fn make_room(&self) {
        let mut book = self.book();
        if book.ending == 0
            && let Some((_, _, id)) = book.order.first().copied()
        {
            book.drop_one(id, "no_room");
        }
    }

    /// Takes a connection in.
    pub(super) fn admit(self: &Arc<Self>, permit: OwnedSemaphorePermit, address: IpAddr) -> Place {
        let origin = (!self.limits.is_trusted(address)).then(|| origin(address));
        let since = self.clock.monotonic();
        let mut book = self.book();
        if let Some(origin) = origin {
            let waiting = book.waiting.get(&origin).map_or(0, BTreeSet::len);
            let oldest = book.waiting.get(&origin).and_then(|waiting| waiting.first().copied());
            if waiting >= self.limits.max_waiting_per_address
                && let Some((_, id)) = oldest
            {
                book.drop_one(id, "address_limit");
            }
        }
        let id = book.next;
        book.next += 1;
        let drop = Arc::new(Notify::new());
        let connection = Connection {
            origin,
            phase: Phase::Waiting,
            since,
            is_stalled: false,
            is_dropped: false,
            drop: Arc::clone(&drop),
        };
        book.connections.insert(id, connection);
        book.list(id);
        metrics::gauge!("logmill_http_connections").increment(1);
        let slot = Slot { admission: Arc::clone(self), id };
        Place { slot, drop, _permit: permit }
    }

    /// Completes when all connections have ended.
    pub(super) async fn empty(&self) {
        let all = u32::try_from(self.limits.max_connections).unwrap_or(u32::MAX);
        // It is never closed.
        let _ = self.places.acquire_many(all).await;
    }
}

/// The place of one connection, which it has until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    slot: Slot,
    drop: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    pub(super) fn slot(&self) -> Slot {
        self.slot.clone()
    }

    /// What completes when the connection must end.
    pub(super) fn dropped(&self) -> impl Future<Output = ()> + Send + use<> {
        let (drop, slot) = (Arc::clone(&self.drop), self.slot.clone());
        async move {
            tokio::select! {
                biased;
                () = drop.notified() => {}
                reason = slot.overdue() => count_dropped(reason),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.slot.admission.book().remove(self.slot.id);
        metrics::gauge!("logmill_http_connections").decrement(1);
    }
}

/// What the parts of a connection say of it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    admission: Arc<Admission>,
    id: u64,
}

impl Slot {
    fn change(&self, change: impl FnOnce(&mut Connection)) {
        self.admission.book().change(self.id, change);
    }

    fn enter(&self, phase: Phase, from: &[Phase]) {
        let since = self.admission.clock.monotonic();
        self.change(|connection| {
            if from.contains(&connection.phase) {
                (connection.phase, connection.since) = (phase, since);
            }
        });
    }

    /// The head of a request is there.
    pub(super) fn receives(&self) {
        self.enter(Phase::Receiving, &[Phase::Waiting]);
    }

    /// The whole request is there, or no more of it is wanted.
    pub(super) fn works(&self) {
        self.enter(Phase::Working, &[Phase::Receiving]);
    }

    /// The answer is given.
    pub(super) fn answered(&self) {
        self.enter(Phase::Waiting, &[Phase::Receiving, Phase::Working]);
    }

    /// It is a WebSocket from here on.
    pub(super) fn upgraded(&self) {
        self.enter(Phase::Upgraded, &[Phase::Waiting, Phase::Receiving, Phase::Working]);
    }

    /// Whether there may be one more WebSocket.
    pub(super) fn may_upgrade(&self) -> bool {
        self.admission.book().websockets < self.admission.limits.max_websockets
    }

    /// The client takes nothing of what is sent, or does again.
    pub(super) fn stalled(&self, is_stalled: bool) {
        let since = self.admission.clock.monotonic();
        self.change(|connection| {
            if connection.is_stalled != is_stalled {
                (connection.is_stalled, connection.since) = (is_stalled, since);
            }
        });
    }

    /// Completes with the reason when the client has taken too long to send.
    async fn overdue(&self) -> &'static str {
        loop {
            match self.time_left() {
                Ok(left) => self.admission.clock.sleep(left).await,
                Err(reason) => return reason,
            }
        }
    }

    /// How long until it is to be looked again whether the client takes too long, or why it does.
    fn time_left(&self) -> Result<Duration, &'static str> {
        let (limits, now) = (&self.admission.limits, self.admission.clock.monotonic());
        let book = self.admission.book();
        let found = book.connections.get(&self.id).filter(|found| !found.is_stalled);
        let (limit, reason) = match found.map(|found| found.phase) {
            Some(Phase::Waiting) => (limits.header_timeout, "header_timeout"),
            Some(Phase::Receiving) => (limits.body_timeout, "body_timeout"),
            _ => return Ok(limits.header_timeout),
        };
        let waited = found.map_or(Duration::ZERO, |found| now.saturating_sub(found.since));
        let left = limit.saturating_sub(waited);
        if left.is_zero() { Err(reason) } else { Ok(left) }
    }
}

#[cfg(test)]
mod tests {
    use logmill_io::SystemClock;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn admission(change: impl FnOnce(&mut ConnectionLimits)) -> Arc<Admission> {
        let mut limits = ConnectionLimits { max_connections: 4, ..ConnectionLimits::default() };
        change(&mut limits);
        Admission::new(limits, SystemClock::shared())
    }

    async fn admit(admission: &Arc<Admission>, from: IpAddr) -> Place {
        admission.admit(admission.room().await.expect("it is open"), from)
    }

    fn is_dropped(place: &Place) -> bool {
        place.slot.admission.book().connections[&place.slot.id].is_dropped
    }

    #[tokio::test]
    async fn the_connection_that_has_waited_longest_makes_room() {
        let admission = admission(|_| {});
        let mut places = Vec::new();
        for last in 0..4 {
            places.push(admit(&admission, address(last)).await);
        }
        // The oldest of all is being answered.
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
    async fn one_whose_client_does_not_read_makes_room_before_nobody_does() {
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
    async fn what_ends_leaves_nothing_behind() {
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
    fn addresses_of_one_network_of_64_bits_count_together() {
        let at = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(at("2001:db8:1:2::1"), at("2001:db8:1:2:ffff::9"));
        assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_when_it_names_a_client() {
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
}
