//! Derived tables in the server, and `logmill rederive`.
//!
//! Guarantees: `rederive` beside a server is a job that the server does; without one it is done here, under the
//! folder's lock. Either way the tables serve what they had until the new ones are complete. Leaves to others: deriving
//! ([`logmill_pipeline::derive`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::ChainSource;
use logmill_io::{Entropy, OsEntropy, SystemClock};
use logmill_pipeline::derive::decoded::TokenSettings;
use logmill_pipeline::derive::deriver::CheckpointStatus;
use logmill_pipeline::derive::rederive::{self, RederiveHandler};
use logmill_pipeline::derive::{DeriveSettings, Deriver, Processor, Reader, Tables};
use logmill_pipeline::{Chain, processors};
use logmill_work::{Queue, Runner, RunnerSettings};

use crate::cli;
use crate::config::Settings;
use crate::control;
use crate::error::{Error, Result};
use crate::jobs::Jobs;
use crate::jobs::change::Enqueue;
use crate::output;
use crate::stores::index::IndexStores;
use crate::stores::{self, tables};
use crate::workers::Workers;

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The derivers of one chain.
#[derive(Debug)]
pub(crate) struct Derive {
    pub(crate) deriver: Deriver,
    pub(crate) reader: Reader,
    processors: Vec<Arc<dyn Processor>>,
    /// None where there is no node to ask.
    workers: Option<Workers>,
    queue: Queue,
    runner: RunnerSettings,
}

impl Derive {
    /// Those that are configured.
    pub(crate) async fn open(
        settings: &Settings,
        chain: &Chain,
        tables: &Tables,
        queue: &Queue,
        source: Option<&Arc<dyn ChainSource>>,
        runner: RunnerSettings,
    ) -> Result<Self> {
        let owner = runner.owner.clone();
        let known = known(settings, chain.chain_id());
        let enabled = |processor: &Arc<dyn Processor>| settings.derive.enables(processor.name());
        let processors: Vec<_> = processors::all(&known).into_iter().filter(enabled).collect();
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
        let asked = Runner::new(self.queue.clone(), Arc::new(handler), settings)?;
        let workers = async {
            match &self.workers {
                Some(workers) => workers.run(&stop).await,
                None => Ok(()),
            }
        };
        let deriving = Box::pin(self.deriver.run(stop()));
        let (derived, asked, worked) =
            futures::future::join3(deriving, asked.run(stop()), Box::pin(workers)).await;
        derived?;
        asked?;
        worked
    }

    /// Every checkpoint, for operators.
    pub(crate) fn shown(&self) -> serde_json::Value {
        let workers = self.workers.as_ref().map(Workers::standing);
        serde_json::json!({ "derivers": self.deriver.status(), "async_workers": workers })
    }
}

/// How tables are derived.
fn derive_settings(settings: &Settings, tokens: TokenSettings) -> DeriveSettings {
    let is_embedded = settings.postgres().is_none();
    DeriveSettings {
        tokens: Arc::new(tokens),
        database_folder: is_embedded.then(|| Arc::from(settings.data.as_path())),
        ..settings.derive.settings()
    }
}

/// What is known of a chain, and what is set.
fn known(settings: &Settings, chain_id: u64) -> processors::Settings {
    let fees = settings.collect.fees(settings, chain_id);
    let (tokens, usage) = (settings.derive.tokens(chain_id), settings.meter.usage(chain_id));
    processors::Settings { fees, tokens, usage }
}

/// `logmill rederive`.
pub(crate) async fn rederive(asked: &cli::Rederive, settings: &Settings) -> Result<()> {
    let stores = IndexStores::open_to_read(settings).await?.without_warm_up();
    let chain_id = stores.choose(asked.chain).await?;
    let known = processors::all(&known(settings, chain_id));
    let Some(processor) = known.iter().find(|one| one.name() == asked.processor) else {
        let known: Vec<&str> = known.iter().map(|processor| processor.name()).collect();
        return Err(Error::BadValue {
            origin: "the command line".to_owned(),
            key: "PROCESSOR".to_owned(),
            why: format!("there is no {:?}; there are {}", asked.processor, known.join(", ")),
        });
    };
    let is_served = settings.postgres().is_some() || control::is_served(&settings.data).await;
    if !is_served {
        return rederive_here(settings, chain_id, processor).await;
    }
    let before = generation(&tables::open_to_read(settings).await?, chain_id, processor).await?;
    let job = rederive::job(chain_id, processor.name(), &format!("{:x}", OsEntropy.mark()))?;
    let (kind, key) = (job.kind.clone(), job.key.clone());
    let enqueue = Enqueue::new(job.kind, job.key, job.payload, 0)?;
    Jobs::open(settings, &kind).await?.change(&enqueue).await?;
    if asked.detach {
        return output::line(&format!(
            "asked for; the server does it as soon as it runs: logmill jobs show {kind} {key}"
        ));
    }
    watch(settings, chain_id, processor, before).await
}

/// Watches until another generation serves.
async fn watch(
    settings: &Settings,
    chain_id: u64,
    processor: &Arc<dyn Processor>,
    before: Option<u32>,
) -> Result<()> {
    let (tables, clock) = (tables::open_to_read(settings).await?, SystemClock::shared());
    loop {
        let now = generation(&tables, chain_id, processor).await?;
        if now != before {
            return output::line(&format!("{} serves what was derived anew", processor.name()));
        }
        let built = tables.building(chain_id, processor.name()).await?;
        let said = built.map_or_else(
            || "waits for the server".to_owned(),
            |built| format!("{built} blocks derived"),
        );
        output::progress(&format!("{}: {said}", processor.name()), false);
        clock.sleep(LOOK_EVERY).await;
    }
}

async fn generation(
    tables: &Tables,
    chain_id: u64,
    processor: &Arc<dyn Processor>,
) -> Result<Option<u32>> {
    Ok(tables.serving(chain_id, processor.name()).await?)
}

/// Without a server: all of it, now.
async fn rederive_here(
    settings: &Settings,
    chain_id: u64,
    processor: &Arc<dyn Processor>,
) -> Result<()> {
    let _folder = stores::take(&settings.data).await?;
    let chain = IndexStores::open_to_write(settings).await?.chain(chain_id).await?;
    let tables = tables::open_to_write(settings).await?;
    let known = known(settings, chain_id);
    let derive = derive_settings(settings, known.tokens);
    let (clock, one) = (SystemClock::shared(), vec![Arc::clone(processor)]);
    let deriver = Deriver::new(chain, tables.clone(), one, derive, "rederive", clock.clone());
    tables.rederive(chain_id, processor).await?;
    let shown = async {
        loop {
            clock.sleep(LOOK_EVERY).await;
            let all = deriver.status().checkpoints;
            let building = |row: &&CheckpointStatus| row.state == "building";
            if let Some(row) = all.iter().find(building) {
                let said = format!("{}: {} blocks left", processor.name(), row.missing);
                output::progress(&said, false);
            }
        }
    };
    tokio::select! {
        biased;
        done = deriver.catch_up() => done?,
        () = shown => {}
    }
    output::line(&format!("{} serves what was derived anew", processor.name()))
}
