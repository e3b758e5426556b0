//! Derived tables in the server, and `logmill rederive`.
//!
//! Guarantees: beside a server, `rederive` is a job that the server runs; without one it runs here, under the folder's
//! lock. Either way the old tables are served until the new ones are complete. Leaves to others: deriving
//! ([`logmill_pipeline::derive`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::ChainSource;
use logmill_io::{Entropy, OsEntropy, SystemClock};
use logmill_pipeline::derive::decoded::TokenSettings;
use logmill_pipeline::derive::deriver::CheckpointStatus;
use logmill_pipeline::derive::rederive::{self, RederiveHandler};
use logmill_pipeline::derive::store::Permit;
use logmill_pipeline::derive::{DeriveSettings, Deriver, Processor, Reader, Tables};
use logmill_pipeline::{Chain, processors};
use logmill_work::{Queue, Runner, RunnerSettings};

use crate::cli;
use crate::config::Settings;
use crate::control;
use crate::error::{Error, Result};
use crate::jobs;
use crate::output;
use crate::stores::index::IndexStores;
use crate::stores::{self, tables};
use crate::workers::Workers;

/// Interval between two progress checks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

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
        source: Option<&Arc<dyn ChainSource>>,
        runner: RunnerSettings,
    ) -> Result<Self> {
        let owner = runner.owner.clone();
        let known = processor_settings(settings, chain.chain_id());
        let enabled = |processor: &Arc<dyn Processor>| settings.derive.enables(processor.name());
        let processors: Vec<_> = processors::all(&known).into_iter().filter(enabled).collect();
        let assumed = settings.collect.assumed_fees(settings, chain.chain_id());
        if let Some(why) = assumed.filter(|_| settings.derive.enables("fees_worker")) {
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

fn derive_settings(settings: &Settings, tokens: TokenSettings) -> DeriveSettings {
    let is_embedded = settings.postgres().is_none();
    DeriveSettings {
        tokens: Arc::new(tokens),
        database_folder: is_embedded.then(|| Arc::from(settings.data.as_path())),
        ..settings.derive.settings()
    }
}

/// Processor settings of a chain: built-in knowledge combined with the configuration.
fn processor_settings(settings: &Settings, chain_id: u64) -> processors::Settings {
    let fees = settings.collect.fees(settings, chain_id);
    let (tokens, usage) = (settings.derive.tokens(chain_id), settings.meter.usage(chain_id));
    processors::Settings { fees, tokens, usage }
}

pub(crate) async fn rederive(args: &cli::Rederive, settings: &Settings) -> Result<()> {
    let stores = IndexStores::open_to_read(settings).await?.without_warm_up();
    let chain_id = stores.choose(args.chain).await?;
    let settings = &settings.of_chain(chain_id);
    let known = processors::all(&processor_settings(settings, chain_id));
    let Some(processor) = known.iter().find(|one| one.name() == args.processor) else {
        let known: Vec<&str> = known.iter().map(|processor| processor.name()).collect();
        return Err(Error::BadValue {
            origin: "the command line".to_owned(),
            key: "PROCESSOR".to_owned(),
            why: format!("unknown processor {:?}; known are {}", args.processor, known.join(", ")),
        });
    };
    let (drops_unstored, allows_empty) = (args.drop_unstored, args.allow_empty);
    let permit = Permit { drops_unstored, allows_empty };
    let is_served = settings.postgres().is_some() || control::is_served(&settings.data).await;
    if !is_served {
        return rederive_here(settings, chain_id, processor, permit).await;
    }
    let before = generation(&tables::open_to_read(settings).await?, chain_id, processor).await?;
    let mark = format!("{:x}", OsEntropy.mark());
    let job = rederive::job(chain_id, processor.name(), permit, &mark)?;
    if args.detach {
        let (kind, key) = jobs::enqueue(settings, job).await?;
        return output::line(&format!(
            "enqueued: the server will run it as a job; see logmill jobs show {kind} {key}"
        ));
    }
    // Until the job is done, the generation that is being built may be an earlier one that lacks the permission.
    jobs::run_on_server(settings, job, None).await?;
    watch(settings, chain_id, processor, before).await
}

/// Prints progress until another generation is served.
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
            return output::line(&format!("{} now serves the rebuilt tables", processor.name()));
        }
        if let Some(why) = tables.cannot_serve(chain_id, processor.name()).await? {
            return Err(Error::TablesKept { processor: processor.name(), why });
        }
        let built = tables.building(chain_id, processor.name()).await?;
        let text = built.map_or_else(
            || "waiting for the server".to_owned(),
            |built| format!("{built} blocks derived"),
        );
        output::progress(&format!("{}: {text}", processor.name()), false);
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

/// Rederives in this process, without a server.
async fn rederive_here(
    settings: &Settings,
    chain_id: u64,
    processor: &Arc<dyn Processor>,
    permit: Permit,
) -> Result<()> {
    let _folder = stores::take(&settings.data).await?;
    let chain = IndexStores::open_to_write(settings).await?.chain(chain_id).await?;
    let tables = tables::open_to_write(settings).await?;
    let known = processor_settings(settings, chain_id);
    let derive = derive_settings(settings, known.tokens);
    let (clock, one) = (SystemClock::shared(), vec![Arc::clone(processor)]);
    let deriver = Deriver::new(chain, tables.clone(), one, derive, "rederive", clock.clone());
    tables.rederive(chain_id, processor, permit).await?;
    let progress = async {
        loop {
            clock.sleep(LOOK_EVERY).await;
            let all = deriver.status().checkpoints;
            let building = |row: &&CheckpointStatus| row.state == "building";
            if let Some(row) = all.iter().find(building) {
                let text = format!("{}: {} blocks left", processor.name(), row.missing);
                output::progress(&text, false);
            }
        }
    };
    tokio::select! {
        biased;
        done = deriver.catch_up() => done?,
        () = progress => {}
    }
    if let Some(why) = tables.cannot_serve(chain_id, processor.name()).await? {
        return Err(Error::TablesKept { processor: processor.name(), why });
    }
    output::line(&format!("{} now serves the rebuilt tables", processor.name()))
}
