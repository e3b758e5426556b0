//! Usage of chains: final rows of `usage_events` are recorded by the meter, once each; those of the tip are shown
//! beside.
//!
//! ```text
//!   usage_worker ─▶ usage_events, final ─▶ relay ─▶ meter     (source eip155:CHAIN, id CHAIN:BLOCK:LOG:RULE)
//!                   usage_events, tip   ─▶ provisional figures
//! ```
//!
//! Guarantees: what was recorded and not marked as relayed is found again and counts once; nothing that a reorg may
//! take back is recorded. What the meter refuses stops the relay with a warning that says why, and is tried again:
//! nothing is left out. An event that contradicts one recorded before (a rule was changed) is left as it was recorded,
//! and counted in a metric. Leaves to others: what is usage ([`logmill_pipeline::processors::usage`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_io::sql::Row;
use logmill_io::{Clock, Timestamp, params};
use logmill_meter::Meter;
use logmill_meter::event::{Event, Incoming, Sender};
use logmill_meter::record::{Arrived, Outcome};
use logmill_pipeline::derive::{Reader, Select, Table};
use logmill_pipeline::processors::usage::USAGE_EVENTS;
use logmill_work::{Coverage, Heights, IntervalSet, Scope};
use serde_json::json;

use crate::error::{Error, Result};

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
/// The most rows of the tip that are shown.
const TIP_ROWS_MAX: usize = 100_000;

/// Carries usage of one chain to the meter.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    reader: Reader,
    meter: Meter,
    clock: Arc<dyn Clock>,
}

impl Relay {
    pub(crate) fn new(reader: Reader, meter: Meter) -> Self {
        let clock = Arc::clone(meter.sql().clock());
        Self { reader, meter, clock }
    }

    /// Relays until `stop` completes.
    pub(crate) async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let relaying = async {
            loop {
                let wait = match Box::pin(self.step()).await {
                    Ok(true) => continue,
                    Ok(false) => LOOK_EVERY,
                    Err(error) => {
                        let error = crate::output::brief(&logmill_io::chain(&error));
                        let chain = self.reader.chain_id();
                        tracing::warn!(chain, error, "usage of a chain is not recorded");
                        AFTER_FAILURE
                    }
                };
                self.clock.sleep(wait).await;
            }
        };
        tokio::select! {
            biased;
            () = stop => Ok(()),
            () = relaying => Ok(()),
        }
    }

    /// Relays some blocks; false if there are none.
    async fn step(&self) -> Result<bool> {
        let standings = self.reader.standings(&[PROCESSOR]).await?;
        let Some(standing) = standings.into_iter().next() else { return Ok(false) };
        let scope = Scope {
            chain_id: self.reader.chain_id(),
            consumer: CONSUMER.to_owned(),
            version: standing.generation,
        };
        let relayed = Coverage::read(self.meter.sql(), &scope).await?.done;
        let Some(range) = first_missing(&standing.done, &relayed) else { return Ok(false) };
        let events = self.events(&range).await?;
        self.record(events).await?;
        let (scope, range) = (&scope, &range);
        self.meter
            .sql()
            .write(|tx| async move { Ok(Coverage::cover(&tx, scope, range).await?) })
            .await?;
        Ok(true)
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
        self.rows("block_height >= $1 AND block_height < $2", range, None).await
    }

    /// The usage of the tip, which may still be taken back.
    pub(crate) async fn provisional(&self) -> Result<Vec<(Event, Timestamp)>> {
        if !self.reader.serves(&USAGE_EVENTS).await? {
            return Ok(Vec::new());
        }
        let tip = self.reader.covered(PROCESSOR).await?.tip;
        let (Some(first), Some(last)) = (tip.first(), tip.last()) else { return Ok(Vec::new()) };
        let key = "block_height >= $1 AND block_height < $2";
        let range = *first..last.saturating_add(1);
        let events = self.rows(key, &range, Some(TIP_ROWS_MAX)).await?;
        let placed = events.into_iter().map(|event| {
            let time = event.time.unwrap_or(Timestamp(0));
            (event, time)
        });
        Ok(placed.collect())
    }

    async fn rows(&self, key: &str, range: &Heights, limit: Option<usize>) -> Result<Vec<Event>> {
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

/// The first blocks that are derived and not relayed.
fn first_missing(derived: &IntervalSet, relayed: &IntervalSet) -> Option<Heights> {
    derived.ranges().find_map(|range| {
        let missing = relayed.gaps(&range).into_iter().next()?;
        let end = missing.end.min(missing.start.saturating_add(BLOCKS_PER_STEP));
        Some(missing.start..end)
    })
}
