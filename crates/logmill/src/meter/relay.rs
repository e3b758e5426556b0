//! Usage of chains: final rows of `usage_events` are recorded by the meter, once each; those of the tip are shown
//! beside.
//!
//! ```text
//!   usage_worker ─▶ usage_events, final ─▶ relay ─▶ meter     (source eip155:CHAIN, id CHAIN:BLOCK:LOG:RULE)
//!                   usage_events, tip, and final ones that are not relayed yet ─▶ provisional figures
//! ```
//!
//! Guarantees: what was recorded and not marked as relayed is found again and counts once; nothing that a reorg may
//! take back is recorded. What the meter refuses stops the relay with a warning that says why, and is tried again:
//! nothing is left out. An event that contradicts one recorded before (a rule was changed) is left as it was recorded,
//! and counted in a metric. The meter is told until when usage is complete, so that no period is called final before
//! it is. Leaves to others: what is usage ([`logmill_pipeline::processors::usage`]).

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use logmill_io::sql::Row;
use logmill_io::{Clock, Timestamp, params};
use logmill_meter::Meter;
use logmill_meter::event::{Event, Incoming, Sender};
use logmill_meter::record::{Arrived, Outcome};
use logmill_pipeline::Chain;
use logmill_pipeline::derive::{Reader, Select, Table};
use logmill_pipeline::processors::usage::USAGE_EVENTS;
use logmill_work::{Coverage, Heights, IntervalSet, Scope};
use serde_json::json;

use crate::error::{Error, Result};
use crate::readiness::{Cause, Finding, Readiness};

/// Who relays, in the coverage of the meter's database.
const CONSUMER: &str = "usage_relay";
/// Who makes the rows.
const PROCESSOR: &str = "usage_worker";
/// The most blocks of one step.
const BLOCKS_PER_STEP: u64 = 500;
/// The most events of one transaction.
const EVENTS_PER_COMMIT: usize = 2_000;
/// How often it is looked for more, and how long after a failure.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// The most rows that are not recorded yet and are shown, and in how many ranges of blocks.
const ROWS_MAX: usize = 100_000;
const GAPS_MAX: usize = 16;

/// The blocks that usage is of.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) chain: Chain,
    /// Whether more are to come.
    pub(crate) follows: bool,
    /// The lowest one that is to come; the lowest that is there if none is named.
    pub(crate) lowest: Option<u64>,
}

/// Carries usage of one chain to the meter.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    reader: Reader,
    blocks: Blocks,
    meter: Meter,
    clock: Arc<dyn Clock>,
    readiness: Arc<Readiness>,
}

/// What was relayed of which generation of rows, and what was derived.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    scope: Scope,
    relayed: IntervalSet,
    derived: IntervalSet,
    tip: Option<Heights>,
}

/// Usage that is not recorded yet, as of a moment.
#[derive(Debug, Default)]
pub(crate) struct Unrecorded {
    pub(crate) events: Vec<(Event, Timestamp)>,
    /// Whether these are all.
    pub(crate) complete: bool,
    /// How far every relay was.
    progress: Vec<Option<Progress>>,
}

impl Relay {
    pub(crate) fn new(
        reader: Reader,
        blocks: Blocks,
        meter: Meter,
        readiness: Arc<Readiness>,
    ) -> Self {
        let clock = Arc::clone(meter.sql().clock());
        Self { reader, blocks, meter, clock, readiness }
    }

    /// Relays until `stop` completes; the error is one after which nothing can be relayed.
    pub(crate) async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        tokio::select! {
            biased;
            () = stop => Ok(()),
            error = self.relay_always() => Err(error),
        }
    }

    async fn relay_always(&self) -> Error {
        let chain = self.reader.chain_id();
        let mut complete = None;
        loop {
            let wait = match Box::pin(self.step(&mut complete)).await {
                Err(error) if error.is_fatal() => return error,
                Err(error) => {
                    let error = crate::output::brief(&logmill_io::chain(&error));
                    tracing::warn!(chain, error, "usage of a chain is not recorded");
                    let finding = Finding::new(Cause::UsageNotRelayed, Some(chain), error);
                    self.readiness.report(finding);
                    AFTER_FAILURE
                }
                Ok(more) => {
                    self.readiness.clear(Cause::UsageNotRelayed, Some(chain));
                    if more {
                        continue;
                    }
                    LOOK_EVERY
                }
            };
            self.clock.sleep(wait).await;
        }
    }

    /// Relays some blocks; false if there are none. `complete` is what the meter was told last.
    async fn step(&self, complete: &mut Option<Timestamp>) -> Result<bool> {
        let Some(progress) = self.progress().await? else {
            return self.tell(complete, Timestamp(0)).await.map(|()| false);
        };
        self.tell(complete, self.complete_before(&progress).await?).await?;
        let Some(range) = first_missing(&progress.derived, &progress.relayed) else {
            return Ok(false);
        };
        let events = self.events(&range).await?;
        self.record(events).await?;
        let (scope, range) = (&progress.scope, &range);
        self.meter
            .sql()
            .write(|tx| async move { Ok(Coverage::cover(&tx, scope, range).await?) })
            .await?;
        Ok(true)
    }

    /// How far it is; none if nothing is derived yet.
    async fn progress(&self) -> Result<Option<Progress>> {
        let standings = self.reader.standings(&[PROCESSOR]).await?;
        let Some(standing) = standings.into_iter().next() else { return Ok(None) };
        let scope = Scope {
            chain_id: self.reader.chain_id(),
            consumer: CONSUMER.to_owned(),
            version: standing.generation,
        };
        let relayed = Coverage::read(self.meter.sql(), &scope).await?.done;
        let tip = match (standing.tip.0.first(), standing.tip.0.last()) {
            (Some((first, _)), Some((last, _))) => Some(*first..last.saturating_add(1)),
            _ => None,
        };
        Ok(Some(Progress { scope, relayed, derived: standing.done, tip }))
    }

    /// The moment before which all usage is recorded.
    async fn complete_before(&self, progress: &Progress) -> Result<Timestamp> {
        let all = first_missing(&progress.derived, &progress.relayed).is_none();
        if !self.blocks.follows && all {
            return Ok(Timestamp(i64::MAX));
        }
        let ranges = || progress.relayed.ranges();
        let lowest =
            self.blocks.lowest.or_else(|| progress.derived.ranges().next().map(|r| r.start));
        let unbroken = ranges().find(|range| lowest.is_some_and(|lowest| range.contains(&lowest)));
        let Some(last) = unbroken.and_then(|range| range.end.checked_sub(1)) else {
            return Ok(Timestamp(0));
        };
        // Blocks above it have no earlier time, but may have the same.
        let block = self.blocks.chain.view().await?.block_ref(last).await?;
        let seconds = block.map_or(0, |block| i64::try_from(block.timestamp).unwrap_or(i64::MAX));
        Ok(Timestamp(seconds.saturating_mul(1_000)))
    }

    async fn tell(&self, told: &mut Option<Timestamp>, complete: Timestamp) -> Result<()> {
        if *told != Some(complete) {
            self.meter.chain_is_complete(self.reader.chain_id(), complete).await?;
            *told = Some(complete);
        }
        Ok(())
    }

    async fn record(&self, events: Vec<Event>) -> Result<()> {
        let received = self.clock.now();
        for some in events.chunks(EVENTS_PER_COMMIT) {
            let arrived: Vec<Arrived> =
                some.iter().map(|event| Arrived { event: event.clone(), received }).collect();
            let outcomes = self.meter.record(arrived).await?;
            let conflicts = outcomes.iter().filter(|outcome| **outcome == Outcome::Conflict);
            let conflicts = u64::try_from(conflicts.count()).unwrap_or(u64::MAX);
            if conflicts > 0 {
                metrics::counter!("logmill_meter_chain_conflicts_total").increment(conflicts);
                tracing::warn!(conflicts, "usage that was recorded before is said otherwise now");
            }
        }
        Ok(())
    }

    /// The usage of some blocks that are final.
    async fn events(&self, range: &Heights) -> Result<Vec<Event>> {
        self.rows(range, None).await
    }

    /// The usage of blocks that are not final, which may still be taken back, and of those that are not relayed yet.
    async fn unrecorded(&self, into: &mut Unrecorded) -> Result<()> {
        let progress = match self.reader.serves(&USAGE_EVENTS).await? {
            true => self.progress().await?,
            false => None,
        };
        if let Some(progress) = &progress {
            let missing = progress.derived.ranges().flat_map(|range| progress.relayed.gaps(&range));
            let mut ranges: Vec<Heights> = missing.take(GAPS_MAX + 1).collect();
            into.complete &= ranges.len() <= GAPS_MAX;
            // The newest first: what is shown of a long backlog is its end.
            ranges.extend(progress.tip.clone());
            for range in ranges.iter().rev() {
                let left = ROWS_MAX.saturating_sub(into.events.len());
                let events = self.rows(range, Some(left + 1)).await?;
                into.complete &= events.len() <= left;
                into.events.extend(events.into_iter().take(left).map(|event| {
                    let time = event.time.unwrap_or(Timestamp(0));
                    (event, time)
                }));
            }
        }
        into.progress.push(progress);
        Ok(())
    }

    async fn rows(&self, range: &Heights, limit: Option<usize>) -> Result<Vec<Event>> {
        let key = "block_height >= $1 AND block_height < $2";
        let order = "block_height, event_index, rule_index";
        let what = Select { key, order, limit, ..Select::default() };
        let text = |source: &dyn Fn(&'static Table, &Select<'_>) -> String| {
            format!(
                "SELECT block_hash, event_index, rule, timestamp, event_type, customer, amount, metadata
                 FROM {} AS u ORDER BY {order}",
                source(&USAGE_EVENTS, &what)
            )
        };
        let height = |height: u64| i64::try_from(height).unwrap_or(i64::MAX);
        let params = params![height(range.start), height(range.end)];
        let found = self.reader.query(text, params).await?;
        found.rows.iter().map(|row| self.event(row)).collect()
    }

    /// A row as the meter takes it: as if somebody had sent it.
    fn event(&self, row: &Row) -> Result<Event> {
        let chain = self.reader.chain_id();
        let hash = alloy_primitives::hex::encode_prefixed(row.blob(0)?);
        let time = Timestamp(row.int(3)?.saturating_mul(1_000));
        let metadata: serde_json::Value = serde_json::from_str(row.text(7)?)
            .map_err(|error| Error::Internal { what: format!("metadata of usage: {error}") })?;
        let sent = json!({
            "eventType": row.text(4)?,
            "customerId": row.text(5)?,
            "value": row.text(6)?,
            "metadata": metadata,
            "id": format!("{chain}:{hash}:{}:{}", row.int(1)?, row.text(2)?),
            "source": format!("eip155:{chain}"),
            "timestamp": time.millis().to_string(),
        });
        let text = sent.to_string();
        let incoming: Incoming<'_> = serde_json::from_str(&text)
            .map_err(|error| Error::Internal { what: format!("usage of a chain: {error}") })?;
        // However old a block is, its usage counts.
        let entropy = &**self.meter.sql().entropy();
        let sender = Sender { source: "chain", now: time, entropy };
        incoming.check(self.meter.settings(), None, &sender).map_err(|wrongs| {
            let error = logmill_meter::Error::invalid(format!("{sent}: {}", wrongs.join("; ")));
            Error::from(error)
        })
    }
}

/// What carries usage of chains to the meter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relays(Arc<RwLock<Vec<Relay>>>);

impl Relays {
    pub(crate) fn add(&self, relay: Relay) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(relay);
    }

    /// Usage of all chains that is not recorded.
    pub(crate) async fn unrecorded(&self) -> Result<Unrecorded> {
        let relays = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all = Unrecorded { complete: true, ..Unrecorded::default() };
        for relay in relays {
            relay.unrecorded(&mut all).await?;
        }
        Ok(all)
    }

    /// Whether nothing was recorded since, nor has come or gone.
    pub(crate) async fn is_current(&self, unrecorded: &Unrecorded) -> Result<bool> {
        let relays = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        for (relay, before) in relays.iter().zip(&unrecorded.progress) {
            let now = relay.progress().await?;
            let place = |progress: &Option<Progress>| {
                progress.as_ref().map(|now| (now.scope.version, now.relayed.clone()))
            };
            if place(&now) != place(before) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The first blocks that are derived and not relayed.
fn first_missing(derived: &IntervalSet, relayed: &IntervalSet) -> Option<Heights> {
    derived.ranges().find_map(|range| {
        let missing = relayed.gaps(&range).into_iter().next()?;
        let end = missing.end.min(missing.start.saturating_add(BLOCKS_PER_STEP));
        Some(missing.start..end)
    })
}
