//! Rebuilding a processor's tables: a job run by the process that derives.
//!
//! Guarantees: requests made while a rebuild is under way begin no other. Leaves to others: building and serving the
//! new generation ([`super::deriver`]).

use std::sync::Arc;

use async_trait::async_trait;
use logmill_work::{Failure, Handler, NewJob, Outcome, RunningJob};
use serde::{Deserialize, Serialize};

use super::processor::Processor;
use super::store::{Permit, Tables};
use crate::error::{Error, Result};

const REDERIVE_JOB: &str = "rederive";

#[derive(Debug, Serialize, Deserialize)]
struct RederivePayload {
    processor: String,
    #[serde(default)]
    drops_unstored: bool,
    #[serde(default)]
    allows_empty: bool,
}

/// Job kind for a chain.
pub fn kind(chain_id: u64) -> String {
    format!("{REDERIVE_JOB}-{chain_id}")
}

/// `mark` distinguishes the job from earlier ones.
pub fn job(chain_id: u64, processor: &str, permit: Permit, mark: &str) -> Result<NewJob> {
    let Permit { drops_unstored, allows_empty } = permit;
    let payload = RederivePayload { processor: processor.to_owned(), drops_unstored, allows_empty };
    let payload = serde_json::to_string(&payload);
    let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
    Ok(NewJob::new(kind(chain_id), format!("{processor}-{mark}"), payload))
}

/// Begins new generations for the rederive jobs of one chain.
#[derive(Debug)]
pub struct RederiveHandler {
    pub chain_id: u64,
    pub tables: Tables,
    pub processors: Vec<Arc<dyn Processor>>,
}

#[async_trait]
impl Handler for RederiveHandler {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let payload: RederivePayload = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload is invalid: {error}")))?;
        let named = |processor: &&Arc<dyn Processor>| processor.name() == payload.processor;
        let Some(processor) = self.processors.iter().find(named) else {
            let what = format!("processor {} does not run in this process", payload.processor);
            return Err(Failure::for_good(what));
        };
        let RederivePayload { drops_unstored, allows_empty, .. } = payload;
        let permit = Permit { drops_unstored, allows_empty };
        match self.tables.rederive(self.chain_id, processor, permit).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => Err(Failure::again(logmill_io::error_chain(&error))),
        }
    }
}
