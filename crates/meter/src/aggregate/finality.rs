//! When a period is final.
//!
//! Guarantees: a period does not become final before its grace has passed and the usage of all chains behind its event
//! types is complete up to its end and none of it is pending, or the configured wait has passed. Leaves to others: what
//! makes usage of a chain complete ([`crate::chains`]).

use std::collections::BTreeSet;

use logmill_io::{Timestamp, millis};

use crate::Meter;
use crate::error::Result;
use crate::store::chain_state::{self, PendingChain};
use crate::store::series;

impl Meter {
    /// A period must have ended before this moment to be final.
    pub(crate) fn finished_before(&self) -> Timestamp {
        let now = self.clock().now();
        Timestamp(now.millis().saturating_sub(millis(self.settings.grace)))
    }

    /// A period with usage of these types is final if it ended before this moment.
    pub(crate) async fn final_before(&self, types: &[String]) -> Result<Timestamp> {
        let ended = self.finished_before();
        let sources = self.chains_of(types);
        if sources.is_empty() {
            return Ok(ended);
        }
        let mut complete = ended;
        for (chain, before) in chain_state::complete_times(&self.sql).await? {
            if sources.iter().any(|chains| chains.is_empty() || chains.contains(&chain)) {
                complete = complete.min(before);
            }
        }
        let waited = self.waited_before().unwrap_or(Timestamp(i64::MIN));
        let corrected = self.corrected_before(&sources).await?;
        Ok(ended.min(complete.max(waited)).min(corrected))
    }

    /// The moment before which no usage of these chains awaits a correction. A correction that is pending for longer
    /// than `chain_wait` no longer counts.
    async fn corrected_before(&self, sources: &[&Vec<u64>]) -> Result<Timestamp> {
        let mut corrected = Timestamp(i64::MAX);
        for PendingChain { chain, from, since } in chain_state::pending_chains(&self.sql).await? {
            let since = since.unwrap_or(Timestamp(i64::MAX));
            let is_of = sources.iter().any(|chains| chains.is_empty() || chains.contains(&chain));
            if is_of && self.waited_before().is_none_or(|waited| since > waited) {
                corrected = corrected.min(from);
            }
        }
        Ok(corrected)
    }

    /// Periods that ended before this moment have waited long enough for chains; `None` if the wait is unbounded.
    fn waited_before(&self) -> Option<Timestamp> {
        let now = self.clock().now().millis();
        self.settings.chain_wait.map(|wait| Timestamp(now.saturating_sub(millis(wait))))
    }

    /// The chains of each of these types; types that come from no chain are left out.
    fn chains_of(&self, types: &[String]) -> Vec<&Vec<u64>> {
        let sources = &self.settings.chain_types;
        types.iter().filter_map(|name| sources.get(name)).collect()
    }

    /// Like [`Meter::final_before`], for all types that the customer has usage of.
    pub(crate) async fn final_before_of(&self, customer: i64) -> Result<Timestamp> {
        if self.settings.chain_types.is_empty() {
            return Ok(self.finished_before());
        }
        self.final_before(&self.types_of(customer).await?).await
    }

    /// The moment before which no usage of a customer awaits a correction.
    pub(crate) async fn corrected_before_of(&self, customer: i64) -> Result<Timestamp> {
        if self.settings.chain_types.is_empty() {
            return Ok(Timestamp(i64::MAX));
        }
        let types = self.types_of(customer).await?;
        self.corrected_before(&self.chains_of(&types)).await
    }

    async fn types_of(&self, customer: i64) -> Result<Vec<String>> {
        let series = series::of_customer(&self.sql, customer).await?;
        let types: BTreeSet<String> =
            series.into_iter().map(|(_, event_type)| event_type).collect();
        Ok(types.into_iter().collect())
    }
}
