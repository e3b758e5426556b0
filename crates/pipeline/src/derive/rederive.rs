//! To derive anew: a job, done by the process that derives.
//!
//! Guarantees: asking twice while one is under way begins one. Leaves to others: building and serving the new
//! generation ([`super::deriver`]).

use std::sync::Arc;

use async_trait::async_trait;
use logmill_work::{Failure, Handler, NewJob, Outcome, Running};
use serde::{Deserialize, Serialize};

use super::processor::Processor;
use super::store::Tables;
use crate::error::{Error, Result};

const REDERIVE_JOB: &str = "rederive";

#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    processor: String,
}

/// The kind of these jobs of a chain.
pub fn kind(chain_id: u64) -> String {
    format!("{REDERIVE_JOB}-{chain_id}")
}

/// The job; `mark` makes it another than those before.
pub fn job(chain_id: u64, processor: &str, mark: &str) -> Result<NewJob> {
    let payload = serde_json::to_string(&Asked { processor: processor.to_owned() });
    let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
    Ok(NewJob::new(kind(chain_id), format!("{processor}-{mark}"), payload))
}

/// Begins new generations, for the jobs of one chain.
#[derive(Debug)]
pub struct RederiveHandler {
    /// Of which chain.
    pub chain_id: u64,
    /// The tables.
    pub tables: Tables,
    /// The processors that there are.
    pub processors: Vec<Arc<dyn Processor>>,
}

#[async_trait]
impl Handler for RederiveHandler {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        let asked: Asked = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload: {error}")))?;
        let named = |processor: &&Arc<dyn Processor>| processor.name() == asked.processor;
        let Some(processor) = self.processors.iter().find(named) else {
            let said = format!("no processor {} runs here", asked.processor);
            return Err(Failure::for_good(said));
        };
        match self.tables.rederive(self.chain_id, processor).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => Err(Failure::again(logmill_io::chain(&error))),
        }
    }
}
