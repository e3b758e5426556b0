//! `Lease`: one holder at a time, over a [`MetaStore`] record.
//!
//! The record holds the owner, the epoch and the moment it ends, in the store's time. Taking it over raises the epoch
//! and the store's fence of the same name, together; so everything that the old holder still has under way is
//! refused by the store itself, inside the transaction that writes.
//!
//! ```text
//!   acquire ──▶ held{epoch} ──renew──▶ held{epoch} ──release──▶ free
//!                  │                                             ▲
//!                  └── the lease ends, another acquires ─────────┘  (epoch + 1: the old holder is fenced)
//! ```
//!
//! A lease need not be waited for when its owner is known to be gone ([`MetaStore::is_gone`], [`end_leases`]), or
//! when it ends later than it could by the store's clock: that clock was ahead when it was taken.
//!
//! Guarantees:
//! - The epoch (`writer_epoch`) only grows.
//! - A holder trusts its lease until `attempt start + ttl − margin` on its own monotonic clock. The attempt
//!   starts before
//!   the store's clock is read, so that moment comes before the store would let anybody else in, whatever the two
//!   clocks show.
//! - [`Held::fence`] makes a [`logmill_io::Batch`] or a [`logmill_io::Tx`] fail for a holder that was replaced:
//!   that is
//!   what correctness rests on; time alone is only for knowing early.
//!
//! Leaves to others: what is done under the lease, and when to renew.
//!
//! Stored form: JSON `{"v":1,"owner":…,"epoch":…,"until_ms":…}`.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::{Batch, Clock, Condition, ErrorKind, Fence, Key, KeyRange, MetaStore, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const VERSION: u8 = 1;
/// What the keys of all leases begin with.
const PREFIX: &str = "lease/";
/// How many times its own length ahead of now a lease may end. It ends once that ahead, unless the clock was set back
/// or its owner has another setting.
const LENGTHS_AHEAD_MAX: u32 = 2;
/// The most leases of one store that are ended together.
const LEASES_MAX: usize = 10_000;

/// How a lease behaves.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// How long it lasts after each renewal.
    pub ttl: Duration,
    /// How much earlier its holder stops to trust it.
    pub margin: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), margin: Duration::from_secs(5) }
    }
}

/// A lease that can be acquired.
#[derive(Clone, Debug)]
pub struct Lease {
    store: Arc<dyn MetaStore>,
    clock: Arc<dyn Clock>,
    name: String,
    owner: String,
    settings: LeaseSettings,
}

/// A lease that was acquired.
#[derive(Clone, Debug)]
pub struct Held {
    name: String,
    epoch: i64,
    /// On the holder's monotonic clock.
    trusted_until: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    v: u8,
    owner: String,
    epoch: i64,
    until_ms: i64,
}

impl Lease {
    /// The lease of this name, for this owner, who is different in every process and every run.
    pub fn new(
        store: Arc<dyn MetaStore>,
        clock: Arc<dyn Clock>,
        name: &str,
        owner: &str,
        settings: LeaseSettings,
    ) -> Self {
        Self { store, clock, name: name.to_owned(), owner: owner.to_owned(), settings }
    }

    fn key(&self) -> Key {
        Key::from(format!("{PREFIX}{}", self.name))
    }

    /// Takes the lease if it is free or has ended, or if its owner is gone; none while somebody else holds it. Whoever
    /// waits for it asks every few seconds ([`logmill_io::sql::PRESENCE_LOOK`]).
    pub async fn acquire(&self) -> Result<Option<Held>> {
        let start = self.clock.monotonic();
        let now = self.store.now().await?;
        let found = self.store.get(&self.key()).await?;
        let (stored, condition) = match &found {
            Some(record) => (Some(decode(&record.value)?), Condition::Version(record.version)),
            None => (None, Condition::Absent),
        };
        // Our own name means that an acquire's answer was lost: to take it over from ourselves is safe.
        if let Some(stored) = &stored
            && stored.owner != self.owner
            && self.lasts(stored, now)
        {
            if !self.store.is_gone(&stored.owner).await? {
                return Ok(None);
            }
            let (lease, owner) = (&self.name, &stored.owner);
            tracing::info!(lease, owner, "takes over the lease of a process that has ended");
        }
        let epoch = stored.map_or(0, |stored| stored.epoch) + 1;
        let fence = Fence { name: self.name.clone(), counter: epoch };
        // The visibility barrier: record and fence change together, or somebody else was first.
        let batch = Batch::new().put(self.key(), self.record(epoch, now)?, condition).raise(fence);
        match self.store.commit(batch).await {
            Ok(_) => Ok(Some(self.held(epoch, start))),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Prolongs the lease. An error of kind `Fenced` means that it is lost; any other that it is unknown: the
    /// holder may go on until its trust ends, and try again.
    pub async fn renew(&self, held: &Held) -> Result<Held> {
        let start = self.clock.monotonic();
        let now = self.store.now().await?;
        let record = self.record(held.epoch, now)?;
        // The epoch is ours as long as the fence holds, so a renewal whose answer was lost does no harm.
        let batch = Batch::new().put(self.key(), record, Condition::Any).fenced(held.fence());
        match self.store.commit(batch).await {
            Ok(_) => Ok(self.held(held.epoch, start)),
            Err(error) if error.kind() == ErrorKind::Fenced => Err(held.lost()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the lease back, so that the next holder need not wait. The epoch stays.
    pub async fn release(&self, held: &Held) -> Result<()> {
        // Ended long ago.
        let record = self.record(held.epoch, Timestamp(-logmill_io::millis(self.settings.ttl)))?;
        let batch = Batch::new().put(self.key(), record, Condition::Any).fenced(held.fence());
        match self.store.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Fenced => Err(held.lost()),
            outcome => outcome.map(|_| ()).map_err(Error::from),
        }
    }

    /// Whether somebody else's lease has not ended, as far as its time can be believed.
    fn lasts(&self, stored: &Stored, now: Timestamp) -> bool {
        let until = Timestamp(stored.until_ms);
        let most = self.settings.ttl.saturating_mul(LENGTHS_AHEAD_MAX);
        if until > now.after(most) {
            let (lease, owner) = (&self.name, &stored.owner);
            let ahead_ms = logmill_io::millis(until.since(now));
            tracing::warn!(
                lease,
                owner,
                ahead_ms,
                "a lease ends later than it could: it has ended"
            );
            return false;
        }
        now < until
    }

    /// Whether the holder may still trust the lease without asking.
    pub fn is_trusted(&self, held: &Held) -> bool {
        self.clock.monotonic() < held.trusted_until
    }

    fn record(&self, epoch: i64, now: Timestamp) -> Result<Vec<u8>> {
        let until_ms = now.after(self.settings.ttl).millis();
        encode(&Stored { v: VERSION, owner: self.owner.clone(), epoch, until_ms })
    }

    fn held(&self, epoch: i64, start: Duration) -> Held {
        let trusted_until = start + self.settings.ttl.saturating_sub(self.settings.margin);
        Held { name: self.name.clone(), epoch, trusted_until }
    }
}

impl Held {
    /// The `writer_epoch`: it only grows from holder to holder.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// What makes another commit fail once the lease was taken over.
    pub fn fence(&self) -> Fence {
        Fence { name: self.name.clone(), counter: self.epoch }
    }

    fn lost(&self) -> Error {
        Error::LeaseLost { name: self.name.clone(), epoch: self.epoch }
    }
}

/// Ends all leases of a store, so that the next to want one need not wait; returns how many there were. Their epochs
/// stay, so that the next holder's is higher and fences whoever held one before. Only for a caller that has proven that
/// no other process uses the store, before it acquires any itself.
pub async fn end_leases(store: &dyn MetaStore) -> Result<usize> {
    let mut ended = 0;
    let now = store.now().await?;
    for (key, record) in store.scan(&KeyRange::prefix(PREFIX), LEASES_MAX).await? {
        let stored = decode(&record.value)?;
        if Timestamp(stored.until_ms) <= now {
            continue;
        }
        let value = encode(&Stored { until_ms: 0, ..stored })?;
        store.commit(Batch::new().put(key, value, Condition::Version(record.version))).await?;
        ended += 1;
    }
    Ok(ended)
}

fn encode(stored: &Stored) -> Result<Vec<u8>> {
    serde_json::to_vec(stored).map_err(|error| Error::invalid(error.to_string()))
}

fn decode(bytes: &[u8]) -> Result<Stored> {
    let stored: Stored = serde_json::from_slice(bytes)
        .map_err(|error| Error::corrupt(format!("a lease record: {error}")))?;
    if stored.v != VERSION || stored.epoch < 1 {
        return Err(Error::corrupt(format!("a lease record of version {}", stored.v)));
    }
    Ok(stored)
}
