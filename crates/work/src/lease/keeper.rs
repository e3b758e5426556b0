//! `LeaseKeeper`: a lease that this process holds, renewed before it ends.
//!
//! Guarantees: [`LeaseKeeper::keep`] renews every third of the lease's duration, retries renewals that fail, and ends
//! only when the lease is lost or the store has failed for good. Leaves to others: the lease itself ([`Lease`]), and
//! stopping what is done under it when `keep` ends.

use std::sync::{Mutex, MutexGuard, PoisonError};

use logmill_io::{ErrorKind, Fence};

use super::{HeldLease, Lease};
use crate::error::{Error, Result};

/// Part of a lease's duration after which it is renewed: two more attempts fit into the rest.
const RENEWALS_PER_LEASE: u32 = 3;

#[derive(Debug)]
pub struct LeaseKeeper {
    lease: Lease,
    /// As of the last renewal.
    held: Mutex<HeldLease>,
}

impl LeaseKeeper {
    /// Takes the lease ([`Lease::acquire`]); returns `None` while another owner holds it.
    pub async fn acquire(lease: Lease) -> Result<Option<Self>> {
        let held = lease.acquire().await?;
        Ok(held.map(|held| Self { lease, held: Mutex::new(held) }))
    }

    /// The `writer_epoch`: grows with every holder.
    pub fn epoch(&self) -> i64 {
        self.held().epoch()
    }

    /// The fence that makes a commit fail once the lease was taken over.
    pub fn fence(&self) -> Fence {
        self.held().fence()
    }

    /// Renews the lease until it is lost or the store has failed for good; returns that error. Passes any other
    /// error to `note`: the lease is still valid for a while, and its loss is detected by the fence.
    pub async fn keep(&self, note: impl Fn(Error)) -> Error {
        loop {
            self.lease.clock.sleep(self.lease.settings.ttl / RENEWALS_PER_LEASE).await;
            match self.renew().await {
                Err(error) if error.kind() == ErrorKind::Fenced || error.is_fatal() => {
                    return error;
                }
                Err(error) => note(error),
                Ok(()) => {}
            }
        }
    }

    /// Renews the lease now ([`Lease::renew`]).
    pub async fn renew(&self) -> Result<()> {
        let held = self.held().clone();
        let renewed = self.lease.renew(&held).await?;
        *self.held() = renewed;
        Ok(())
    }

    /// Renews the lease if that is due. It is no error if this fails while the lease can still be trusted.
    pub async fn renew_if_due(&self) -> Result<()> {
        let held = self.held().clone();
        let age = self.lease.clock.monotonic().saturating_sub(held.since);
        if age < self.lease.settings.ttl / RENEWALS_PER_LEASE {
            return Ok(());
        }
        match self.renew().await {
            Err(error) if error.kind() == ErrorKind::Fenced => Err(error),
            Err(_) if self.lease.is_trusted(&held) => Ok(()),
            outcome => outcome,
        }
    }

    /// Ends the lease, so that the next holder need not wait.
    pub async fn release(&self) -> Result<()> {
        let held = self.held().clone();
        self.lease.release(&held).await
    }

    fn held(&self) -> MutexGuard<'_, HeldLease> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
