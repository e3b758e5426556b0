//! Usage of chains: until when it is known.
//!
//! Blocks are recorded once they are final, which takes longer than any grace, and a chain that is being caught up with
//! brings usage of years ago. So whoever records usage of a chain says until when he has all of it.
//!
//! Guarantees: a period is not called final before usage of the chains that its types come from is complete up to its
//! end, or was waited for as long as is configured. Leaves to others: what is usage of which chain.

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, millis, params};

use crate::error::Result;
use crate::meter::Meter;

impl Meter {
    /// Says that all usage of a chain before a moment is recorded. Nothing yet is said with the beginning of time.
    pub async fn chain_is_complete(&self, chain_id: u64, before: Timestamp) -> Result<()> {
        let chain = i64::try_from(chain_id).unwrap_or(i64::MAX);
        let text = "INSERT INTO meter_chain (chain, complete_ms) VALUES ($1, $2)
                    ON CONFLICT (chain) DO UPDATE SET complete_ms = excluded.complete_ms
                        WHERE meter_chain.complete_ms < excluded.complete_ms";
        self.sql.write(|tx| async move { tx.execute(text, params![chain, before]).await }).await?;
        Ok(())
    }

    /// The moment before which a period with usage of these types must have ended to be final.
    pub(crate) async fn final_before(&self, types: &[String]) -> Result<Timestamp> {
        let ended = self.finished_before();
        let sources = &self.settings.chain_types;
        let sources: Vec<&Vec<u64>> = types.iter().filter_map(|name| sources.get(name)).collect();
        if sources.is_empty() {
            return Ok(ended);
        }
        let text = "SELECT chain, complete_ms FROM meter_chain";
        let mut complete = ended;
        for row in &self.sql.query(text, params![]).await?.rows {
            let chain = u64::try_from(row.int(0)?).unwrap_or(u64::MAX);
            if sources.iter().any(|chains| chains.is_empty() || chains.contains(&chain)) {
                complete = complete.min(Timestamp(row.int(1)?));
            }
        }
        let waited = self.settings.chain_wait.map(|wait| {
            let now = self.clock().now().millis();
            Timestamp(now.saturating_sub(millis(wait)))
        });
        Ok(ended.min(complete.max(waited.unwrap_or(Timestamp(i64::MIN)))))
    }

    /// The same for a customer: for all types that he has usage of.
    pub(crate) async fn final_before_of(&self, customer: i64) -> Result<Timestamp> {
        if self.settings.chain_types.is_empty() {
            return Ok(self.finished_before());
        }
        let text = "SELECT DISTINCT event_type FROM meter_series WHERE customer = $1";
        let found = self.sql.query(text, params![customer]).await?;
        let types: logmill_io::Result<Vec<String>> =
            found.rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect();
        self.final_before(&types?).await
    }
}
