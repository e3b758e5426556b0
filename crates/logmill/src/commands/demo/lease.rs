//! Leases: a holder that was replaced cannot write, even if it does not know that it was replaced.
//!
//! Guarantees: the refusal comes from the store, inside the write. Leaves to others: what is written under a lease.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::meta::SqlMeta;
use logmill_io::{Batch, Condition, ErrorKind, MetaStore};
use logmill_work::{HeldLease, Lease, LeaseSettings, Queue};

use super::check;
use crate::error::{Error, Result};
use crate::output;

const TTL: Duration = Duration::from_millis(300);
const MARGIN: Duration = Duration::from_millis(100);
const TAKE_WAIT: Duration = Duration::from_millis(50);
const TAKES_MAX: u32 = 200;

pub(super) async fn show(queue: &Queue) -> Result<String> {
    let store = SqlMeta::shared(queue.sql().clone());
    let lease = |owner| {
        let settings = LeaseSettings { ttl: TTL, margin: MARGIN };
        Lease::new(Arc::clone(&store), Arc::clone(queue.sql().clock()), "demo", owner, settings)
    };
    let (old, new) = (lease("old"), lease("new"));
    let held = old.acquire().await?.ok_or_else(|| not_acquired("at first"))?;
    check(new.acquire().await?.is_none(), || "a held lease was given away".to_owned())?;
    let taken = take_over(queue, &new).await?;
    check(taken.epoch() == held.epoch() + 1, || {
        format!("epoch {} follows {}", taken.epoch(), held.epoch())
    })?;
    check(!old.is_trusted(&held), || {
        "the old holder still trusts a lease that has ended".to_owned()
    })?;
    let stale = write(&*store, &held).await;
    let fenced = stale.is_err_and(|error| error.kind() == ErrorKind::Fenced);
    check(fenced, || "the old holder could write".to_owned())?;
    write(&*store, &taken).await?;
    output::note(&format!(
        "demo: lease: epoch {} took over, epoch {} is fenced",
        taken.epoch(),
        held.epoch()
    ));
    Ok(format!(
        "lease: taken over after {} without renewal; a write of the old holder (epoch {}) is refused by the store, \
         one of the new (epoch {}) is not",
        output::duration(TTL),
        held.epoch(),
        taken.epoch()
    ))
}

/// Retries until the lease has ended.
async fn take_over(queue: &Queue, lease: &Lease) -> Result<HeldLease> {
    for _ in 0..TAKES_MAX {
        if let Some(held) = lease.acquire().await? {
            return Ok(held);
        }
        queue.sql().clock().sleep(TAKE_WAIT).await;
    }
    Err(not_acquired("after its end"))
}

async fn write(store: &dyn MetaStore, held: &HeldLease) -> logmill_io::Result<()> {
    let batch = Batch::new().put("demo/record", "value", Condition::Any).fenced(held.fence());
    store.commit(batch).await.map(|_| ())
}

fn not_acquired(when: &str) -> Error {
    Error::Demo { what: format!("the lease could not be acquired {when}") }
}
