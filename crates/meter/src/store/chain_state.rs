//! The state of each chain's usage: up to which time it is complete, and which replacements of blocks it reflects.
//!
//! Guarantees: the time of completeness only rises, except from [`COMPLETE`]. Leaves to others: when a state changes
//! ([`crate::chains`]), and what follows for periods (`crate::aggregate`).

use logmill_io::sql::Execute;
use logmill_io::{Sql, Timestamp, Tx, params};

use crate::error::Result;

/// Completeness of a chain to which no blocks will ever be added.
pub(crate) const COMPLETE: Timestamp = Timestamp(i64::MAX);
/// Mark of a chain's state whose log of replacements no longer exists.
const NO_LOG: u64 = u64::MAX;

/// Progress of applying block replacements to a chain's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainState {
    /// Changes with every other field; usage read under an older version may be outdated.
    pub version: u64,
    /// The replacement that is being applied or was applied last.
    pub begun: u64,
    /// The replacement that was applied last; 0 if none was.
    pub applied: u64,
    /// Number of earlier logs of replacements.
    pub log: u64,
    /// The mark of the begun replacement ([`crate::chains::source::UsageSource::replacement_mark`]); 0 if unknown.
    pub mark: u64,
    /// The newest known replacement, applied or not. Usage of blocks stored after it may be recorded.
    pub seen: u64,
    /// The mark of the newest known replacement; 0 if unknown.
    pub seen_mark: u64,
    /// Usage from this moment on is not corrected yet; `None` if all is.
    pub pending: Option<Timestamp>,
    pub pending_since: Option<Timestamp>,
}

impl ChainState {
    /// The state of a chain whose stored blocks were restored or stored again: all of its usage counts as replaced.
    #[must_use]
    pub(crate) fn without_log(self) -> Self {
        let (version, log) = (self.version + 1, self.log + 1);
        Self { version, log, begun: 0, applied: 0, mark: NO_LOG, seen: 0, seen_mark: 0, ..self }
    }

    /// Whether the applied log of replacements no longer exists and the current one is not applied yet.
    pub(crate) fn has_no_log(&self) -> bool {
        self.mark == NO_LOG
    }

    /// Whether a replacement is being applied or was applied.
    pub(crate) fn has_begun(&self, seq: u64) -> bool {
        // Without a log, applying all stored blocks may end with number 0.
        if self.has_no_log() { self.begun == seq + 1 } else { self.begun >= seq }
    }

    /// The state once a replacement is being applied.
    #[must_use]
    pub(crate) fn beginning(self, seq: u64, mark: u64) -> Self {
        let (begun, mark) = if self.has_no_log() { (seq + 1, NO_LOG) } else { (seq, mark) };
        Self { version: self.version + 1, begun, mark, ..self }
    }

    pub(crate) async fn read(on: &impl Execute, chain: u64) -> Result<Self> {
        let text = "SELECT version, begun, applied, pending_ms, pending_since_ms, log, mark,
                        seen, seen_mark
                    FROM meter_chain_state WHERE chain = $1";
        let found = on.execute(text, params![sql_int(chain)]).await?;
        let Some(row) = found.rows.first() else { return Ok(Self::default()) };
        Ok(Self {
            version: row.count(0)?,
            begun: row.count(1)?,
            applied: row.count(2)?,
            pending: row.opt_int(3)?.map(Timestamp),
            pending_since: row.opt_int(4)?.map(Timestamp),
            log: row.count(5)?,
            mark: row.opt_int(6)?.map_or(0, i64::cast_unsigned),
            seen: row.count(7)?,
            seen_mark: row.opt_int(8)?.map_or(0, i64::cast_unsigned),
        })
    }

    /// Writes the state; the caller holds the head's lock.
    pub(crate) async fn store(&self, tx: &Tx, chain: u64) -> Result<()> {
        let text = "INSERT INTO meter_chain_state
                        (chain, version, begun, applied, pending_ms, pending_since_ms, log, mark,
                         seen, seen_mark)
                    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                    ON CONFLICT (chain) DO UPDATE SET version = excluded.version,
                        begun = excluded.begun, applied = excluded.applied,
                        pending_ms = excluded.pending_ms,
                        pending_since_ms = excluded.pending_since_ms,
                        log = excluded.log, mark = excluded.mark,
                        seen = excluded.seen, seen_mark = excluded.seen_mark";
        let params = params![
            sql_int(chain),
            sql_int(self.version),
            sql_int(self.begun),
            sql_int(self.applied),
            self.pending,
            self.pending_since,
            sql_int(self.log),
            (self.mark != 0).then(|| self.mark.cast_signed()),
            sql_int(self.seen),
            (self.seen_mark != 0).then(|| self.seen_mark.cast_signed()),
        ];
        tx.execute(text, params).await?;
        Ok(())
    }
}

/// Records that all usage of a chain before a moment is recorded.
pub(crate) async fn store_complete(sql: &Sql, chain_id: u64, before: Timestamp) -> Result<()> {
    let chain = sql_int(chain_id);
    let text = "INSERT INTO meter_chain (chain, complete_ms) VALUES ($1, $2)
                ON CONFLICT (chain) DO UPDATE SET complete_ms = excluded.complete_ms
                    WHERE meter_chain.complete_ms < excluded.complete_ms
                       OR meter_chain.complete_ms = $3";
    let write = |tx: Tx| async move { tx.execute(text, params![chain, before, COMPLETE]).await };
    sql.write(write).await?;
    Ok(())
}

/// The time up to which usage of each chain is complete.
pub(crate) async fn complete_times(sql: &Sql) -> Result<Vec<(u64, Timestamp)>> {
    let text = "SELECT chain, complete_ms FROM meter_chain";
    let found = sql.query(text, params![]).await?;
    let times = found.rows.iter().map(|row| {
        let chain = u64::try_from(row.int(0)?).unwrap_or(u64::MAX);
        Ok((chain, Timestamp(row.int(1)?)))
    });
    times.collect()
}

/// A chain with usage that awaits correction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingChain {
    pub(crate) chain: u64,
    /// Usage from this moment on may change.
    pub(crate) from: Timestamp,
    pub(crate) since: Option<Timestamp>,
}

pub(crate) async fn pending_chains(sql: &Sql) -> Result<Vec<PendingChain>> {
    let text = "SELECT chain, pending_ms, pending_since_ms FROM meter_chain_state
                WHERE pending_ms IS NOT NULL";
    let found = sql.query(text, params![]).await?;
    let pending = found.rows.iter().map(|row| {
        let since = row.opt_int(2)?.map(Timestamp);
        Ok(PendingChain { chain: row.count(0)?, from: row.time(1)?, since })
    });
    pending.collect()
}

/// A chain id or block number as the database stores it.
pub(crate) fn sql_int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
