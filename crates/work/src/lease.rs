//! `Lease`: one holder at a time, over a [`MetaStore`] record.
//!
//! The record holds the owner, the epoch and the end of the lease in the store's time. A take-over raises the
//! epoch and the store's fence of the same name in one commit, so the store refuses all pending writes of the
//! old holder, inside their transactions.
//!
//! ```text
//!   acquire ──▶ held{epoch} ──renew──▶ held{epoch} ──release──▶ free
//!                  │                                             ▲
//!                  └── the lease ends, another acquires ─────────┘  (epoch + 1: the old holder is fenced)
//! ```
//!
//! A new owner need not wait for a lease to end if its holder is known to be gone ([`MetaStore::is_gone`],
//! [`end_leases`]), or if the lease ends later than the store's clock permits: that clock was ahead when it was
//! taken.
//!
//! Guarantees:
//! - The epoch (`writer_epoch`) only grows.
//! - A holder trusts its lease until `attempt start + ttl − margin` on its own monotonic clock. The attempt
//!   starts before the store's clock is read, so the trust ends before the store lets another owner in,
//!   regardless of clock skew.
//! - [`HeldLease::fence`] makes a [`logmill_io::Batch`] or a [`logmill_io::Tx`] of a replaced holder fail.
//!   Correctness depends on the fence; the time only lets a holder know early.
//!
//! Leaves to others: what is done under the lease, and when to renew ([`LeaseKeeper`]).
//!
//! Stored form: JSON `{"v":1,"owner":…,"epoch":…,"until_ms":…}`.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::{Batch, Clock, Condition, ErrorKind, Fence, Key, KeyRange, MetaStore, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

mod keeper;

pub use keeper::LeaseKeeper;

const VERSION: u8 = 1;
/// Key prefix of all leases.
const PREFIX: &str = "lease/";
/// Maximum distance between now and the end of a lease, in multiples of the ttl. A lease ends one ttl after its
/// renewal, unless the clock was set back or its owner uses another ttl.
const LENGTHS_AHEAD_MAX: u32 = 2;
/// Maximum number of leases that [`end_leases`] ends.
const LEASES_MAX: usize = 10_000;

#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// Duration of the lease after each renewal.
    pub ttl: Duration,
    /// How much earlier the holder stops trusting it.
    pub margin: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), margin: Duration::from_secs(5) }
    }
}

/// A lease as one owner sees it, held or not.
#[derive(Clone, Debug)]
pub struct Lease {
    store: Arc<dyn MetaStore>,
    clock: Arc<dyn Clock>,
    name: String,
    owner: String,
    settings: LeaseSettings,
}

/// Proof that the lease was acquired, with its epoch.
#[derive(Clone, Debug)]
pub struct HeldLease {
    name: String,
    epoch: i64,
    /// Start of the last renewal, on the holder's monotonic clock.
    since: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseRecord {
    v: u8,
    owner: String,
    epoch: i64,
    until_ms: i64,
}

impl Lease {
    /// `owner` must be unique to this process and this run.
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

    /// Takes the lease if it is free, has ended, or belonged to an owner that is gone; returns `None` while
    /// another owner holds it. Callers that wait for it retry every few seconds
    /// ([`logmill_io::sql::PRESENCE_LOOK`]).
    pub async fn acquire(&self) -> Result<Option<HeldLease>> {
        let start = self.clock.monotonic();
        let now = self.store.now().await?;
        let found = self.store.get(&self.key()).await?;
        let (stored, condition) = match &found {
            Some(record) => (Some(decode(&record.value)?), Condition::Version(record.version)),
            None => (None, Condition::Absent),
        };
        // Our own name means that the answer to an earlier acquire was lost; taking over from ourselves is
        // safe.
        if let Some(stored) = &stored
            && stored.owner != self.owner
            && self.lasts(stored, now)
        {
            if !self.store.is_gone(&stored.owner).await? {
                return Ok(None);
            }
            let (lease, owner) = (&self.name, &stored.owner);
            tracing::info!(lease, owner, "taking over the lease of a process that has ended");
        }
        let epoch = stored.map_or(0, |stored| stored.epoch) + 1;
        let fence = Fence { name: self.name.clone(), counter: epoch };
        // The visibility barrier: record and fence change together, or another owner was first.
        let batch = Batch::new().put(self.key(), self.record(epoch, now)?, condition).raise(fence);
        match self.store.commit(batch).await {
            Ok(_) => Ok(Some(self.held(epoch, start))),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Prolongs the lease. An error of kind `Fenced` means that it is lost. After any other error its state is
    /// unknown: the holder may go on until its trust ends, and retry.
    pub async fn renew(&self, held: &HeldLease) -> Result<HeldLease> {
        let start = self.clock.monotonic();
        let now = self.store.now().await?;
        let record = self.record(held.epoch, now)?;
        // The epoch is ours as long as the fence holds, so repeating a renewal whose answer was lost is
        // harmless.
        let batch = Batch::new().put(self.key(), record, Condition::Any).fenced(held.fence());
        match self.store.commit(batch).await {
            Ok(_) => Ok(self.held(held.epoch, start)),
            Err(error) if error.kind() == ErrorKind::Fenced => Err(held.lost()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the lease, so that the next holder need not wait. Keeps the epoch.
    pub async fn release(&self, held: &HeldLease) -> Result<()> {
        // Ends the lease at time 0.
        let record = self.record(held.epoch, Timestamp(-logmill_io::millis(self.settings.ttl)))?;
        let batch = Batch::new().put(self.key(), record, Condition::Any).fenced(held.fence());
        match self.store.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Fenced => Err(held.lost()),
            outcome => outcome.map(|_| ()).map_err(Error::from),
        }
    }

    /// Whether another owner's lease is still valid; an end that is impossibly late does not count.
    fn lasts(&self, stored: &LeaseRecord, now: Timestamp) -> bool {
        let until = Timestamp(stored.until_ms);
        let most = self.settings.ttl.saturating_mul(LENGTHS_AHEAD_MAX);
        if until > now.after(most) {
            let (lease, owner) = (&self.name, &stored.owner);
            let ahead_ms = logmill_io::millis(until.since(now));
            tracing::warn!(
                lease,
                owner,
                ahead_ms,
                "the end of a lease is too far in the future: treating the lease as ended"
            );
            return false;
        }
        now < until
    }

    /// Whether the holder may rely on the lease without asking the store.
    pub fn is_trusted(&self, held: &HeldLease) -> bool {
        let trusted = self.settings.ttl.saturating_sub(self.settings.margin);
        self.clock.monotonic() < held.since + trusted
    }

    fn record(&self, epoch: i64, now: Timestamp) -> Result<Vec<u8>> {
        let until_ms = now.after(self.settings.ttl).millis();
        encode(&LeaseRecord { v: VERSION, owner: self.owner.clone(), epoch, until_ms })
    }

    fn held(&self, epoch: i64, since: Duration) -> HeldLease {
        HeldLease { name: self.name.clone(), epoch, since }
    }
}

impl HeldLease {
    /// The `writer_epoch`: grows with every holder.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The fence that makes a commit fail once the lease was taken over.
    pub fn fence(&self) -> Fence {
        Fence { name: self.name.clone(), counter: self.epoch }
    }

    fn lost(&self) -> Error {
        Error::LeaseLost { name: self.name.clone(), epoch: self.epoch }
    }
}

/// Ends all leases of a store, so that new owners need not wait; returns how many. The epochs stay, so the next
/// holder's epoch is higher and fences the previous holder. Call it only after proving that no other process
/// uses the store, and before acquiring any lease.
pub async fn end_leases(store: &dyn MetaStore) -> Result<usize> {
    let mut ended = 0;
    let now = store.now().await?;
    for (key, record) in store.scan(&KeyRange::prefix(PREFIX), LEASES_MAX).await? {
        let stored = decode(&record.value)?;
        if Timestamp(stored.until_ms) <= now {
            continue;
        }
        let value = encode(&LeaseRecord { until_ms: 0, ..stored })?;
        store.commit(Batch::new().put(key, value, Condition::Version(record.version))).await?;
        ended += 1;
    }
    Ok(ended)
}

fn encode(stored: &LeaseRecord) -> Result<Vec<u8>> {
    serde_json::to_vec(stored).map_err(|error| Error::invalid(error.to_string()))
}

fn decode(bytes: &[u8]) -> Result<LeaseRecord> {
    let stored: LeaseRecord = serde_json::from_slice(bytes)
        .map_err(|error| Error::corrupt(format!("cannot parse a lease record: {error}")))?;
    if stored.v != VERSION || stored.epoch < 1 {
        return Err(Error::corrupt(format!(
            "a lease record has version {} and epoch {}",
            stored.v, stored.epoch
        )));
    }
    Ok(stored)
}
