//! Usage of one chain computed from its stored blocks, for a recount.
//!
//! Guarantees: it is computed from the archive by the same pure function that fills `usage_events`, and from nothing
//! that was derived or recorded before. Leaves to others: comparing ([`logmill_meter::recount`]).

use std::sync::Arc;

use async_trait::async_trait;
use logmill_io::Timestamp;
use logmill_meter::chains::usage::{LogUsage, RuleVersion, UsageBlock, UsageId};
use logmill_meter::recount::chains::StoredUsage;
use logmill_meter::{Error, Meter, Result};
use logmill_pipeline::Chain;
use logmill_pipeline::processors::usage::UsageWorker;
use logmill_serve::usage::chain_usage::DerivedUsage;
use logmill_work::{Heights, IntervalSet};

use crate::stores::Databases;
use crate::stores::index::{self, IndexStores};

/// A stored chain with rules.
#[derive(Debug)]
pub(super) struct StoredChain {
    chain: Chain,
    worker: UsageWorker,
    meter: Meter,
}

/// The stored chains that have rules.
pub(super) async fn chains(
    databases: &Databases,
    meter: &Meter,
) -> crate::error::Result<Vec<StoredChain>> {
    let settings = &databases.settings;
    if index::expect_database(settings).is_err() {
        return Ok(Vec::new());
    }
    let stores = IndexStores::open(databases).await?.without_warm_up();
    let mut chains = Vec::new();
    for chain_id in stores.chains().await? {
        let Some(worker) = settings.meter.usage(chain_id) else { continue };
        let chain = stores.chain(chain_id).await?;
        chains.push(StoredChain { chain, worker, meter: meter.clone() });
    }
    Ok(chains)
}

#[async_trait]
impl StoredUsage for StoredChain {
    fn chain_id(&self) -> u64 {
        self.chain.chain_id()
    }

    fn rules(&self) -> Vec<RuleVersion> {
        let versions = self.worker.rule_versions().into_iter();
        versions.map(|(name, definition)| RuleVersion { name, definition }).collect()
    }

    fn stored(&self) -> IntervalSet {
        self.chain.index().coverage().into_iter().collect()
    }

    fn pruned_below(&self) -> u64 {
        self.chain.index().pruned_below()
    }

    async fn blocks(&self, range: &Heights) -> Result<Vec<(UsageBlock, i64)>> {
        let blocks = self.chain.archived_blocks(range.clone()).await.map_err(|error| {
            Error::unavailable(format!("stored blocks: {}", logmill_io::error_chain(&error)))
        })?;
        let (chain, worker, meter) = (self.chain_id(), self.worker.clone(), self.meter.clone());
        logmill_io::compute(move || {
            let blocks = blocks.iter().map(|block| usage_of(chain, &worker, &meter, block));
            blocks.collect()
        })
        .await
    }
}

fn usage_of(
    chain: u64,
    worker: &UsageWorker,
    meter: &Meter,
    block: &Arc<logmill_chain::Block>,
) -> Result<(UsageBlock, i64)> {
    let (height, hash) = (block.at.number, block.at.hash.0);
    let seconds = i64::try_from(block.at.timestamp).unwrap_or(i64::MAX);
    let time = Timestamp(seconds.saturating_mul(1_000));
    let mut usage = Vec::new();
    for found in worker.find(block) {
        let (log, rule) = (u64::try_from(found.log).unwrap_or(u64::MAX), found.rule.name.clone());
        let id = UsageId { chain, hash, log, rule: rule.clone(), revision: 1 };
        let row = DerivedUsage {
            time,
            event_type: &found.rule.event_type,
            customer: &found.customer,
            amount: &found.amount,
            metadata: &found.metadata,
        };
        usage.push(LogUsage { log, rule, event: row.event(meter, &id)? });
    }
    Ok((UsageBlock { height, hash, usage }, time.millis()))
}
