//! The server's work for the derived tables of one chain: derivers, async workers, and requested rebuilds.
//!
//! Guarantees: if one of them fails, all end. Leaves to others: deriving ([`logmill_pipeline::derive`]).

use std::sync::Arc;

use logmill_chain::NodeSource;
use logmill_io::SystemClock;
use logmill_pipeline::derive::decoded::TokenSettings;
use logmill_pipeline::derive::rederive::{self, RederiveHandler};
use logmill_pipeline::derive::{DeriveSettings, Deriver, Processor, Reader, Tables};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::{Chain, processors};
use logmill_work::{Queue, Runner, RunnerSettings};

use super::workers::Workers;
use crate::config::Settings;
use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct DeriveTasks {
    pub(crate) deriver: Deriver,
    pub(crate) reader: Reader,
    processors: Vec<Arc<dyn Processor>>,
    /// `None` if there is no node to ask.
    workers: Option<Workers>,
    queue: Queue,
    runner: RunnerSettings,
}

impl DeriveTasks {
    /// Opens the configured derivers.
    pub(crate) async fn open(
        settings: &Settings,
        chain: &Chain,
        tables: &Tables,
        queue: &Queue,
        source: Option<&Arc<dyn NodeSource>>,
        runner: RunnerSettings,
    ) -> Result<Self> {
        let owner = runner.owner.clone();
        let known = processor_settings(settings, chain.chain_id());
        let enabled = |processor: &Arc<dyn Processor>| settings.derive.enables(processor.name());
        let processors: Vec<_> = processors::all(&known).into_iter().filter(enabled).collect();
        let assumed = settings.collect.assumed_fees(settings, chain.chain_id());
        if let Some(why) = assumed.filter(|_| settings.derive.enables(ProcessorName::Fees.as_str()))
        {
            tracing::info!(chain = chain.chain_id(), why, "fees of this chain may be missing");
        }
        let derive = derive_settings(settings, known.tokens);
        let (clock, all) = (SystemClock::shared(), processors.clone());
        let workers = match source {
            Some(source) => {
                let chain_id = chain.chain_id();
                Some(Workers::open(settings, tables, chain_id, source, &owner).await?)
            }
            None => None,
        };
        let deriver = Deriver::new(chain.clone(), tables.clone(), all, derive, owner, clock);
        let reader = Reader::new(tables.clone(), chain.chain_id());
        Ok(Self { deriver, reader, processors, workers, queue: queue.clone(), runner })
    }

    /// Derives until `stop` completes.
    pub(crate) async fn run<S>(&self, stop: impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let handler = RederiveHandler {
            chain_id: self.reader.chain_id(),
            tables: self.deriver.tables().clone(),
            processors: self.processors.clone(),
        };
        let kind = rederive::kind(self.reader.chain_id());
        let settings = RunnerSettings { kind, slots: 1, ..self.runner.clone() };
        let requested = Runner::new(self.queue.clone(), Arc::new(handler), settings)?;
        let workers = async {
            match &self.workers {
                Some(workers) => workers.run(&stop).await,
                None => Ok(()),
            }
        };
        let deriving = Box::pin(self.deriver.run(stop()));
        let deriving = async { deriving.await.map_err(Error::from) };
        let requested = async { requested.run(stop()).await.map_err(Error::from) };
        // If one of them fails, all end: the others must not linger.
        futures::future::try_join3(deriving, requested, Box::pin(workers)).await.map(|_| ())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.processors.iter().map(|processor| processor.name())
    }

    /// The checkpoints of all processors and the progress of async workers, for operators.
    pub(crate) fn status_json(&self) -> serde_json::Value {
        let workers = self.workers.as_ref().map(Workers::progress);
        serde_json::json!({ "derivers": self.deriver.status(), "async_workers": workers })
    }
}

pub(crate) fn derive_settings(settings: &Settings, tokens: TokenSettings) -> DeriveSettings {
    let is_embedded = settings.postgres().is_none();
    DeriveSettings {
        tokens: Arc::new(tokens),
        database_folder: is_embedded.then(|| Arc::from(settings.data.as_path())),
        ..settings.derive.settings()
    }
}

/// Processor settings of a chain: built-in knowledge combined with the configuration.
pub(crate) fn processor_settings(settings: &Settings, chain_id: u64) -> processors::Settings {
    let fees = settings.collect.fees(settings, chain_id);
    let (tokens, usage) = (settings.derive.tokens(chain_id), settings.meter.usage(chain_id));
    processors::Settings { fees, tokens, usage }
}
