//! The book of connections: the phase of each, and the order in which they are closed to make room.
//!
//! Guarantees: its lists and counts always match its connections. Leaves to others: when a connection changes phase or
//! ends ([`super`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Receiving,
    Working,
    Upgraded,
}

/// Unit in which connections are counted: an IPv4 address or an IPv6 /64 network.
pub(super) type Origin = IpAddr;

/// An IPv6 /64 network counts as one client, because it belongs to one customer.
pub(super) fn origin(address: IpAddr) -> Origin {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

/// Order in which connections are closed to make room, lowest first; `None` if it must not be closed.
fn rank(connection: &Connection) -> Option<u8> {
    match connection.phase {
        _ if connection.ends.is_some() => None,
        Phase::Upgraded => None,
        _ if connection.is_stalled => Some(2),
        Phase::Waiting | Phase::Receiving => Some(u8::from(connection.origin.is_none())),
        Phase::Working => None,
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    /// None for a trusted proxy.
    pub(super) origin: Option<Origin>,
    pub(super) phase: Phase,
    /// Requests whose body is incomplete, and requests being processed.
    pub(super) receiving: usize,
    pub(super) working: usize,
    /// When the phase began, on the monotonic clock.
    pub(super) since: Duration,
    /// Whether the client does not read what is sent.
    pub(super) is_stalled: bool,
    /// Reason why it was asked to end, if it was.
    pub(super) ends: Option<&'static str>,
    /// Notified when the connection must end.
    pub(super) end_signal: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) next: u64,
    pub(super) connections: BTreeMap<u64, Connection>,
    /// Connections that can be closed, in the order of closing.
    pub(super) order: BTreeSet<(u8, Duration, u64)>,
    /// Waiting connections of each origin, oldest first.
    pub(super) waiting: BTreeMap<Origin, BTreeSet<(Duration, u64)>>,
    pub(super) websockets: usize,
    /// Connections that were asked to end and still exist.
    pub(super) ending: usize,
}

impl Book {
    /// Changes a connection and updates all lists.
    pub(super) fn change(&mut self, id: u64, change: impl FnOnce(&mut Connection)) {
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
        self.ending -= usize::from(connection.ends.is_some());
    }

    pub(super) fn list(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(rank) = rank(connection) {
            self.order.insert((rank, connection.since, id));
            if let (0, Some(origin)) = (rank, connection.origin) {
                self.waiting.entry(origin).or_default().insert((connection.since, id));
            }
        }
        self.websockets += usize::from(connection.phase == Phase::Upgraded);
        self.ending += usize::from(connection.ends.is_some());
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.unlist(id);
        self.connections.remove(&id);
    }

    /// Asks a connection to end.
    pub(super) fn drop_one(&mut self, id: u64, reason: &'static str) {
        self.change(id, |connection| {
            connection.ends = Some(reason);
            connection.end_signal.notify_one();
        });
    }
}
