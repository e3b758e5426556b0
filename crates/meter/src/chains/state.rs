//! Changes of a chain's state: pending usage, the applied log of replacements, and what remains to be applied.
//!
//! Guarantees: each change is one transaction under the head's lock, and does nothing if the state has changed since it
//! was read. Leaves to others: when to change it ([`super::relay`]).

use logmill_io::sql::Execute;
use logmill_io::{Sql, Timestamp, Tx, Value, params};
use logmill_work::{Coverage, Scope};

use super::ledger::{self, Rules};
use super::source::{BlockReplacement, UsageSource};
use super::usage::{UsageDelta, UsageId};
use crate::error::Result;
use crate::store::chain_state::{ChainState, sql_int};
use crate::store::head::Head;

/// The relay's consumer name in the coverage of the meter's database.
pub(crate) const CONSUMER: &str = "usage_ledger";
/// The consumer name before the ledger existed.
pub(crate) const EARLIER_CONSUMER: &str = "usage_relay";

/// Marks usage of a chain from a moment on as awaiting correction, because of the replacements up to one. Does
/// nothing if the state has changed since: then they may be applied.
pub(super) async fn mark_pending(
    sql: &Sql,
    chain: u64,
    version: u64,
    from: Timestamp,
    (seen, seen_mark): (u64, u64),
) -> Result<()> {
    let since = sql.now().await?;
    let mark = |tx: Tx| async move {
        Head::lock(&tx).await?;
        let state = ChainState::read(&tx, chain).await?;
        if state.version == version {
            let pending = Some(state.pending.map_or(from, |known| known.min(from)));
            let pending_since = state.pending_since.or(Some(since));
            let next = ChainState { pending, pending_since, seen, seen_mark, ..state };
            next.store(&tx, chain).await?;
        }
        Ok(())
    };
    sql.write(mark).await
}

/// Records that the log of replacements is not the applied one, or, with `adopted`, which one it is if that was
/// unknown. Returns the new state.
pub(super) async fn settle_log(
    sql: &Sql,
    chain: u64,
    before: ChainState,
    adopted: Option<u64>,
) -> Result<ChainState> {
    if adopted.is_none() {
        let applied = before.applied;
        tracing::warn!(chain, applied, "the stored blocks were restored or stored again");
    }
    let settle = |tx: Tx| async move {
        Head::lock(&tx).await?;
        let now = ChainState::read(&tx, chain).await?;
        if now.version != before.version {
            return Ok(now);
        }
        let next = match adopted {
            Some(mark) => ChainState { version: now.version + 1, mark, ..now },
            None => now.without_log(),
        };
        next.store(&tx, chain).await?;
        Ok(next)
    };
    sql.write(settle).await
}

/// Comparison of the applied log of replacements with the source's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogVerdict {
    Same,
    /// The applied log was unknown; it is taken to be the one with this mark.
    Adopted(u64),
    Other,
    /// It was found to differ earlier; the source's current log is being applied.
    Left,
}

/// Compares the applied log of replacements with the source's.
pub(super) async fn judge<S: UsageSource + ?Sized>(
    source: &S,
    state: &ChainState,
) -> Result<LogVerdict> {
    if state.seen_mark != 0 {
        // Usage of blocks stored after a replacement may be recorded before the replacement is applied.
        let mark = source.replacement_mark(state.seen).await?;
        if mark.is_none_or(|mark| mark != 0 && mark != state.seen_mark) {
            return Ok(LogVerdict::Other);
        }
    }
    if state.has_no_log() {
        return Ok(LogVerdict::Left);
    }
    // A replacement that is only partly applied counts too.
    Ok(match source.replacement_mark(state.begun).await? {
        None => LogVerdict::Other,
        Some(0) => LogVerdict::Same,
        Some(mark) if state.mark == 0 => LogVerdict::Adopted(mark),
        Some(mark) if mark == state.mark => LogVerdict::Same,
        Some(_) => LogVerdict::Other,
    })
}

/// The replacements up to `last` that recorded usage does not reflect. If another log was applied, all blocks below
/// `end` are one replacement.
pub async fn unapplied<S: UsageSource + ?Sized>(
    source: &S,
    state: &ChainState,
    last: u64,
    end: u64,
) -> Result<Vec<BlockReplacement>> {
    if !matches!(judge(source, state).await?, LogVerdict::Other | LogVerdict::Left) {
        return source.replacements_after(state.applied).await;
    }
    Ok(vec![BlockReplacement {
        seq: last,
        blocks: 0..end.max(1),
        reason: "the stored blocks were restored from a backup or stored again".to_owned(),
    }])
}

pub(super) fn scope(chain_id: u64, generation: u32) -> Scope {
    Scope { chain_id, consumer: CONSUMER.to_owned(), version: generation }
}

/// The scopes of all generations that were ever relayed.
pub(super) async fn scopes(on: &impl Execute, chain: u64) -> Result<Vec<Scope>> {
    let text =
        "SELECT consumer, version FROM coverage WHERE chain_id = $1 AND consumer IN ($2, $3)";
    let params = params![sql_int(chain), CONSUMER, EARLIER_CONSUMER];
    let found = on.execute(text, params).await?;
    let scopes = found.rows.iter().map(|row| {
        let version = u32::try_from(row.count(1)?).unwrap_or(u32::MAX);
        Ok(Scope { chain_id: chain, consumer: row.text(0)?.to_owned(), version })
    });
    scopes.collect()
}

/// The corrections of a chain after one replacement and up to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorrectionRange {
    chain: u64,
    log: u64,
    after: i64,
    last: u64,
}

impl CorrectionRange {
    /// The corrections in progress up to a replacement.
    pub(super) fn new(chain: u64, state: &ChainState, last: u64) -> Self {
        // Without a log, the applied replacement may itself have number 0.
        let after = if state.has_no_log() { -1 } else { sql_int(state.applied) };
        Self { chain, log: state.log, after, last }
    }

    pub(super) fn params(&self) -> Vec<Value> {
        let (chain, log) = (sql_int(self.chain), sql_int(self.log));
        params![chain, log, self.after, sql_int(self.last)]
    }
}

/// Sum of the changes that corrections made.
pub(super) async fn corrected(tx: &Tx, corrections: &CorrectionRange) -> Result<UsageDelta> {
    let text = "SELECT blocks, cancelled, recorded FROM meter_chain_correction
                WHERE chain = $1 AND log = $2 AND seq > $3 AND seq <= $4";
    let mut all = UsageDelta::default();
    for row in &tx.execute(text, corrections.params()).await?.rows {
        let (blocks, cancelled, recorded) = (row.count(0)?, row.count(1)?, row.count(2)?);
        all.add(&UsageDelta { blocks, cancelled, recorded, conflicts: 0 });
    }
    Ok(all)
}

/// Removes a lost event from the ledger of its block, and has the block compared again: the relay records its usage as
/// the next revision. Does nothing if the id cannot be parsed or the ledger lacks the block.
pub(crate) async fn forget_usage(tx: &Tx, id: &str) -> Result<()> {
    let Some(chain) = UsageId::parse(id, |_| false).map(|id| id.chain) else { return Ok(()) };
    let rules = Rules::read(tx, chain).await?;
    let is_rule = |name: &str| rules.known.values().any(|rule| rule.name == name);
    let Some(id) = UsageId::parse(id, is_rule) else { return Ok(()) };
    let text = "SELECT height FROM meter_chain_block WHERE chain = $1 AND hash = $2";
    let found = tx.execute(text, params![sql_int(chain), id.hash.as_slice()]).await?;
    let Some(height) = found.rows.first().map(|row| row.count(0)).transpose()? else {
        return Ok(());
    };
    let range = height..height.saturating_add(1);
    let mut recorded = ledger::read(tx, chain, &range).await?;
    let entries = recorded.get_mut(&height).and_then(|blocks| blocks.get_mut(&id.hash));
    let Some(entries) = entries else { return Ok(()) };
    for entry in entries.iter_mut() {
        let is_it = entry.log == id.log && rules.name(entry.rule) == id.rule;
        entry.live &= !(is_it && entry.revision == id.revision);
    }
    tx.execute(ledger::PUT_ROW, ledger::row(chain, height, &id.hash, entries)?).await?;
    for scope in scopes(tx, chain).await? {
        Coverage::release(tx, &scope, &range).await?;
    }
    // A relay that read the block before must not write what it read.
    let state = ChainState::read(tx, chain).await?;
    let next = ChainState { version: state.version + 1, ..state };
    next.store(tx, chain).await
}
