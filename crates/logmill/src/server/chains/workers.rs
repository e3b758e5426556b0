//! The async workers of the server, which fetch what tables need from nodes and from the web.
//!
//! Guarantees: they run beside the derivers and do not delay them; web servers that contracts name are reached only at
//! public addresses. Leaves to others: what they fetch ([`logmill_pipeline::async_workers`]).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use logmill_chain::NodeSource;
use logmill_io::SystemClock;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_pipeline::async_workers::contract_code::ContractCode;
use logmill_pipeline::async_workers::nft_items::{self, Clients, NftItems};
use logmill_pipeline::async_workers::reconcile::{self, ReconcileSettings, Reconciler};
use logmill_pipeline::async_workers::token_metadata::{self, TokenMetadata};
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, RangeWork, WorkerProgress};
use logmill_pipeline::derive::Tables;
use logmill_pipeline::observe::state::{StateReader, StateSettings};
use logmill_pipeline::processors::ProcessorName;

use crate::config::Settings;
use crate::error::{Error, Result};

/// Interval between two updates of their progress.
const REFRESH_EVERY: Duration = Duration::from_secs(3);

/// The async workers of one chain.
#[derive(Debug)]
pub(crate) struct Workers {
    workers: Vec<AsyncWorker>,
    items: Option<Arc<NftItems>>,
    owner: String,
    /// Progress of each worker at the last update.
    progress: Mutex<Vec<WorkerProgress>>,
}

impl Workers {
    /// Opens the configured workers.
    pub(crate) async fn open(
        settings: &Settings,
        tables: &Tables,
        chain_id: u64,
        source: &Arc<dyn NodeSource>,
        owner: &str,
    ) -> Result<Self> {
        let clock = SystemClock::shared();
        let state_settings = StateSettings::default();
        let state = StateReader::new(Arc::clone(source), Arc::clone(&clock), state_settings);
        let is_on = |name: &str| settings.derive.enables(name);
        let mut works: Vec<Arc<dyn RangeWork>> = Vec::new();
        if is_on(token_metadata::NAME) {
            let worker = TokenMetadata::open(tables.clone(), chain_id, state.clone()).await?;
            works.push(Arc::new(worker));
        }
        if is_on(ProcessorName::Meta.as_str()) && is_on(ProcessorName::Evm.as_str()) {
            let worker = ContractCode::open(tables.clone(), chain_id, state.clone()).await?;
            works.push(Arc::new(worker));
        }
        let mut items = None;
        if is_on(nft_items::NAME) {
            let web = GuardedClient::new(Arc::clone(&clock), GuardedSettings::default())?;
            let clients = Clients { gateways: web.clone(), web };
            let item_settings = settings.derive.items();
            let tables = tables.clone();
            let worker = NftItems::open(tables, chain_id, state.clone(), clients, item_settings);
            let worker = Arc::new(worker.await?);
            works.push(Arc::clone(&worker) as Arc<dyn RangeWork>);
            items = Some(worker);
        }
        if is_on(reconcile::NAME) {
            let settings = ReconcileSettings::default();
            let worker = Reconciler::open(tables.clone(), chain_id, state, settings).await?;
            works.push(Arc::new(worker));
        }
        let worker =
            |work| AsyncWorker::new(work, tables.clone(), chain_id, AsyncSettings::default());
        let workers = works.into_iter().map(worker).collect();
        Ok(Self { workers, items, owner: owner.to_owned(), progress: Mutex::default() })
    }

    /// Runs all workers until `stop` completes.
    pub(crate) async fn run<S>(&self, stop: impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let ranges = self.workers.iter().map(|worker| worker.run(&self.owner, stop()));
        let ranges =
            async { futures::future::try_join_all(ranges).await.map(|_| ()).map_err(Error::from) };
        let items = async {
            match &self.items {
                Some(items) => Ok(items.runner(&self.owner)?.run(stop()).await?),
                None => Ok(()),
            }
        };
        tokio::select! {
            biased;
            ended = futures::future::try_join(ranges, items) => ended.map(|_| ()),
            never = self.refresh_forever() => match never {},
        }
    }

    /// Progress of each worker at the last update.
    pub(crate) fn progress(&self) -> Vec<WorkerProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn refresh_forever(&self) -> Infallible {
        let clock = SystemClock::shared();
        loop {
            let now = self.read_progress().await;
            *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = now;
            clock.sleep(REFRESH_EVERY).await;
        }
    }

    async fn read_progress(&self) -> Vec<WorkerProgress> {
        let mut all = Vec::new();
        for worker in &self.workers {
            match worker.progress().await {
                Ok(progress) => all.push(progress),
                Err(error) => {
                    let error = logmill_io::error_chain(&error);
                    tracing::warn!(
                        worker = worker.name(),
                        error,
                        "cannot read the progress of an async worker"
                    );
                }
            }
        }
        all
    }
}
