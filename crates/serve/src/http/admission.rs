//! Admission: which connections are kept when there are too many.
//!
//! A connection is in one of these phases:
//!
//! ```text
//!   accepted ──▶ waiting ──whole head──▶ receiving ──whole body──▶ working ──answered──▶ waiting
//!                                            └── 101 ──▶ upgraded, until its end
//! ```
//!
//! An HTTP/2 connection carries several requests: it is working while any of them is, and receiving only while none is
//! working.
//!
//! A waiting or receiving connection depends on its client and can be closed without losing work. When there is no
//! place for a new connection, the one that has waited longest is closed; an address with too many waiting connections
//! loses its own oldest. A flood of connections that send nothing therefore pushes itself out, while a client that
//! sends its request is served. Connections whose client does not read its response are closed last.
//!
//! Guarantees: never more connections than `max_connections`; per address (for IPv6, per /64 network) at most
//! `max_waiting_per_address` waiting ones, except for `trusted_proxies`, which act for many clients; WebSockets never
//! take all places; no connection waits or receives for more than about twice its timeout. A connection that is working
//! or upgraded is never closed in favour of another unless its client does not read, even if it was asked to end just
//! before.
//!
//! Leaves to others: accepting, reading and writing ([`super::connection`]).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logmill_io::Clock;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use book::{Book, Connection, Phase, origin};
pub use limits::ConnectionLimits;

mod book;
mod limits;

/// Interval between two attempts to find a connection that can be closed.
const ROOM_WAIT: Duration = Duration::from_millis(20);

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

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for the next connection, closing another if necessary; `None` once admission has ended.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
                return Some(permit);
            }
            self.make_room();
            tokio::select! {
                biased;
                permit = Arc::clone(&self.places).acquire_owned() => return permit.ok(),
                // A connection that is working now may be waiting by then.
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

    pub(super) fn admit(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        address: IpAddr,
    ) -> ConnectionPermit {
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
        let end_signal = Arc::new(Notify::new());
        let connection = Connection {
            origin,
            phase: Phase::Waiting,
            receiving: 0,
            working: 0,
            since,
            is_stalled: false,
            ends: None,
            end_signal: Arc::clone(&end_signal),
        };
        book.connections.insert(id, connection);
        book.list(id);
        metrics::gauge!("logmill_http_connections").increment(1);
        let slot = Slot { admission: Arc::clone(self), id };
        ConnectionPermit { slot, end_signal, _permit: permit }
    }

    pub(super) async fn empty(&self) {
        let all = u32::try_from(self.limits.max_connections).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.places.acquire_many(all).await;
    }
}

/// The place of one connection, held until dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    slot: Slot,
    end_signal: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionPermit {
    pub(super) fn slot(&self) -> Slot {
        self.slot.clone()
    }

    /// Completes when the connection must end.
    pub(super) fn dropped(&self) -> impl Future<Output = ()> + Send + use<> {
        let (end_signal, slot) = (Arc::clone(&self.end_signal), self.slot.clone());
        async move {
            let reason = loop {
                tokio::select! {
                    biased;
                    () = end_signal.notified() => {
                        // The connection may have made progress since it was notified.
                        if let Some(reason) = slot.ends() {
                            break reason;
                        }
                    }
                    reason = slot.overdue() => break reason,
                }
            };
            metrics::counter!("logmill_http_connections_dropped_total", "reason" => reason)
                .increment(1);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.slot.admission.book().remove(self.slot.id);
        metrics::gauge!("logmill_http_connections").decrement(1);
    }
}

/// Handle through which the parts of a connection report its state.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    admission: Arc<Admission>,
    id: u64,
}

impl Slot {
    fn change(&self, change: impl FnOnce(&mut Connection)) {
        self.admission.book().change(self.id, change);
    }

    /// Changes the request counts of the connection and updates its phase.
    fn count(&self, change: impl FnOnce(&mut Connection)) {
        let now = self.admission.clock.monotonic();
        self.change(|connection| {
            change(connection);
            let phase = match connection.phase {
                Phase::Upgraded => Phase::Upgraded,
                _ if connection.working > 0 => Phase::Working,
                _ if connection.receiving > 0 => Phase::Receiving,
                _ => Phase::Waiting,
            };
            if phase != connection.phase {
                (connection.phase, connection.since) = (phase, now);
            }
            if phase == Phase::Working {
                // It was asked to end while it waited and has not noticed yet. Another connection can be closed
                // instead.
                connection.ends = None;
            }
        });
    }

    fn ends(&self) -> Option<&'static str> {
        self.admission.book().connections.get(&self.id).and_then(|connection| connection.ends)
    }

    /// Reports that the head of a request has arrived.
    pub(super) fn receives(&self) {
        self.count(|connection| connection.receiving += 1);
    }

    /// Reports that a request has arrived completely, or that the rest of it is not needed. Called once per request.
    pub(super) fn works(&self) {
        self.count(|connection| {
            if let Some(left) = connection.receiving.checked_sub(1) {
                connection.receiving = left;
                connection.working += 1;
            }
        });
    }

    /// Reports that a response was sent or abandoned.
    pub(super) fn answered(&self) {
        self.count(|connection| match connection.working.checked_sub(1) {
            Some(left) => connection.working = left,
            None => connection.receiving = connection.receiving.saturating_sub(1),
        });
    }

    /// Reports that the connection became a WebSocket.
    pub(super) fn upgraded(&self) {
        let since = self.admission.clock.monotonic();
        self.change(|connection| {
            (connection.phase, connection.since) = (Phase::Upgraded, since);
            // It may have been asked to end while it waited.
            connection.ends = None;
        });
    }

    /// Whether the limit allows one more WebSocket.
    pub(super) fn may_upgrade(&self) -> bool {
        self.admission.book().websockets < self.admission.limits.max_websockets
    }

    /// Reports that the client stopped reading, or reads again.
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

    /// Time until the next check, or the reason why the client is too slow.
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
mod tests;
