//! `logmill rederive`: builds the tables of a processor again.
//!
//! Guarantees: beside a server it is a job that the server runs; without one it runs here, under the folder's lock.
//! Either way the old tables are served until the new ones are complete. Leaves to others: deriving
//! ([`logmill_pipeline::derive`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_io::{Entropy, OsEntropy, SystemClock};
use logmill_pipeline::derive::deriver::CheckpointStatus;
use logmill_pipeline::derive::rederive;
use logmill_pipeline::derive::store::Permit;
use logmill_pipeline::derive::{Deriver, Processor, Tables};
use logmill_pipeline::processors;

use crate::cli;
use crate::config::Settings;
use crate::control;
use crate::error::{Error, Result};
use crate::output;
use crate::server::chains::derive::{derive_settings, processor_settings};
use crate::stores::index::IndexStores;
use crate::stores::{self, Databases, OpenMode, tables};

use super::jobs;

/// Interval between two progress checks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: &cli::Rederive, settings: &Settings) -> Result<()> {
    let databases = Databases::open(settings, OpenMode::Read).await?;
    let stores = IndexStores::open(&databases).await?.without_warm_up();
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
    let before = generation(&tables::open(&databases).await?, chain_id, processor).await?;
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
    watch(&databases, chain_id, processor, before).await
}

/// Prints progress until another generation is served.
async fn watch(
    databases: &Databases,
    chain_id: u64,
    processor: &Arc<dyn Processor>,
    before: Option<u32>,
) -> Result<()> {
    let (tables, clock) = (tables::open(databases).await?, SystemClock::shared());
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
    let databases = Databases::open(settings, OpenMode::Write).await?;
    let chain = IndexStores::open(&databases).await?.chain(chain_id).await?;
    let tables = tables::open(&databases).await?;
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
