//! Changes of a chain's state: usage that is pending, and replacements that are forgotten or counted.
//!
//! Guarantees: each is one transaction under the head's lock, and changes nothing if the state has moved on. Leaves to
//! others: when ([`super::relay`]).

use std::ops::Range;

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, Tx, params};
use logmill_work::Scope;

use super::ledger::{self, ChainState};
use super::reconcile::UsageDelta;
use super::relay::{CONSUMER, EARLIER_CONSUMER};
use crate::error::Result;
use crate::meter::{Head, Meter};

impl Meter {
    /// Marks usage of a chain from a moment on as not corrected yet, unless the state has changed since: then the
    /// replacement may be applied.
    pub(super) async fn mark_pending(
        &self,
        chain: u64,
        version: u64,
        from: Timestamp,
    ) -> Result<()> {
        let since = self.sql.now().await?;
        let mark = |tx: Tx| async move {
            Head::lock(&tx).await?;
            let mut state = ChainState::read(&tx, chain).await?;
            if state.version == version && state.pending.is_none_or(|known| from < known) {
                state.pending = Some(from);
                state.pending_since = state.pending_since.or(Some(since));
                state.store(&tx, chain).await?;
            }
            Ok(())
        };
        Ok(self.sql.write(mark).await?)
    }

    /// Forgets what was applied of a chain that was stored again from nothing; all its blocks are looked at again.
    pub(super) async fn forget_replacements(
        &self,
        chain: u64,
        before: ChainState,
    ) -> Result<ChainState> {
        tracing::warn!(chain, applied = before.applied, "the replacements of this chain are gone");
        let forget = |tx: Tx| async move {
            Head::lock(&tx).await?;
            let now = ChainState::read(&tx, chain).await?;
            if now.version != before.version {
                return Ok(now);
            }
            let text = "DELETE FROM coverage WHERE chain_id = $1 AND consumer IN ($2, $3)";
            let params = params![ledger::stored(chain), CONSUMER, EARLIER_CONSUMER];
            tx.execute(text, params).await?;
            let next = ChainState { version: now.version + 1, ..ChainState::default() };
            next.store(&tx, chain).await?;
            Ok(next)
        };
        Ok(self.sql.write(forget).await?)
    }
}

pub(super) fn scope(chain_id: u64, generation: u32) -> Scope {
    Scope { chain_id, consumer: CONSUMER.to_owned(), version: generation }
}

/// The scopes of all generations that were relayed, earlier ones too.
pub(super) async fn scopes(on: &impl Execute, chain: u64) -> Result<Vec<Scope>> {
    let text =
        "SELECT consumer, version FROM coverage WHERE chain_id = $1 AND consumer IN ($2, $3)";
    let params = params![ledger::stored(chain), CONSUMER, EARLIER_CONSUMER];
    let found = on.execute(text, params).await?;
    let scopes = found.rows.iter().map(|row| {
        let version = u32::try_from(row.count(1)?).unwrap_or(u32::MAX);
        Ok(Scope { chain_id: chain, consumer: row.text(0)?.to_owned(), version })
    });
    scopes.collect()
}

/// What the corrections after one replacement and up to another have changed.
pub(super) async fn corrected(tx: &Tx, chain: u64, after: Range<u64>) -> Result<UsageDelta> {
    let text = "SELECT blocks, cancelled, recorded FROM meter_chain_correction
                WHERE chain = $1 AND seq > $2 AND seq <= $3";
    let (start, end) = (ledger::stored(after.start), ledger::stored(after.end));
    let mut all = UsageDelta::default();
    for row in &tx.execute(text, params![ledger::stored(chain), start, end]).await?.rows {
        let (blocks, cancelled, recorded) = (row.count(0)?, row.count(1)?, row.count(2)?);
        all.add(&UsageDelta { blocks, cancelled, recorded, conflicts: 0 });
    }
    Ok(all)
}
