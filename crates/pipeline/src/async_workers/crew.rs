//! `Crew`: all async workers of a chain, as a server runs them.
//!
//! Guarantees: what is switched off does not run, and what runs ends with [`Crew::run`]. Leaves to others: where the
//! settings come from, opening stores.

use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use logmill_chain::ChainSource;
use logmill_io::wire::{GuardedClient, GuardedSettings};

use super::nft_items::{Clients, ItemSettings, NftItems};
use super::reconcile::{ReconcileSettings, Reconciler};
use super::token_metadata::TokenMetadata;
use super::{AsyncSettings, AsyncWorker, RangeWork, Standing};
use crate::derive::Tables;
use crate::error::Result;
use crate::observe::{StateReader, StateSettings};

/// What runs, and how.
#[derive(Clone, Debug)]
pub struct CrewSettings {
    /// `ENABLE_TOKEN_METADATA_WORKER`. It belongs to the history derivers: without them it should be off.
    pub token_metadata: bool,
    /// `ENABLE_NFT_ITEM_METADATA_WORKER`.
    pub nft_items: bool,
    /// `ENABLE_NFT_RECONCILER`.
    pub reconciler: bool,
    /// How workers go over ranges.
    pub ranges: AsyncSettings,
    /// How nodes are asked.
    pub state: StateSettings,
    /// How items are asked for.
    pub items: ItemSettings,
    /// Which servers may be asked for documents.
    pub web: GuardedSettings,
    /// Which gateways may be asked; one of the operator's own may be allowed here, and is not for the web.
    pub gateways: GuardedSettings,
    /// How much is compared.
    pub reconcile: ReconcileSettings,
}

impl Default for CrewSettings {
    fn default() -> Self {
        Self {
            token_metadata: true,
            nft_items: true,
            reconciler: true,
            ranges: AsyncSettings::default(),
            state: StateSettings::default(),
            items: ItemSettings::default(),
            web: GuardedSettings::default(),
            gateways: GuardedSettings::default(),
            reconcile: ReconcileSettings::default(),
        }
    }
}

/// All async workers of a chain.
#[derive(Clone, Debug)]
pub struct Crew {
    workers: Vec<AsyncWorker>,
    tokens: Option<TokenMetadata>,
    items: Option<NftItems>,
}

impl Crew {
    /// The workers that are switched on; makes their tables if need be.
    pub async fn open(
        tables: &Tables,
        chain_id: u64,
        source: Arc<dyn ChainSource>,
        settings: &CrewSettings,
    ) -> Result<Self> {
        let clock = Arc::clone(tables.sql().clock());
        let state = StateReader::new(source, Arc::clone(&clock), settings.state.clone());
        let over = |work: Arc<dyn RangeWork>| {
            AsyncWorker::new(work, tables.clone(), chain_id, settings.ranges.clone())
        };
        let mut crew = Self { workers: Vec::new(), tokens: None, items: None };
        if settings.token_metadata {
            let work = TokenMetadata::open(tables.clone(), chain_id, state.clone()).await?;
            crew.workers.push(over(Arc::new(work.clone())));
            crew.tokens = Some(work);
        }
        if settings.nft_items {
            let client = |settings: &GuardedSettings| {
                GuardedClient::new(Arc::clone(&clock), settings.clone())
            };
            let clients =
                Clients { web: client(&settings.web)?, gateways: client(&settings.gateways)? };
            let (tables, settings) = (tables.clone(), settings.items.clone());
            let work = NftItems::open(tables, chain_id, state.clone(), clients, settings).await?;
            crew.workers.push(over(Arc::new(work.clone())));
            crew.items = Some(work);
        }
        if settings.reconciler {
            let settings = settings.reconcile.clone();
            let work = Reconciler::open(tables.clone(), chain_id, state, settings).await?;
            crew.workers.push(over(Arc::new(work)));
        }
        Ok(crew)
    }

    /// Runs all of them until `stop` completes. `owner` is different in every process and every run.
    pub async fn run(&self, owner: &str, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let stop = stop.shared();
        let mut parts: Vec<BoxFuture<'_, Result<()>>> = Vec::new();
        for worker in &self.workers {
            parts.push(worker.run(owner, stop.clone()).boxed());
        }
        if let Some(items) = &self.items {
            let (runner, stop) = (items.runner(owner)?, stop.clone());
            parts.push(async move { Ok(runner.run(stop).await?) }.boxed());
        }
        futures::future::try_join_all(parts).await?;
        Ok(())
    }

    /// How far each of them is.
    pub async fn standings(&self) -> Result<Vec<Standing>> {
        let mut standings = Vec::new();
        for worker in &self.workers {
            standings.push(worker.standing().await?);
        }
        Ok(standings)
    }

    /// Makes the rows of tokens and items anew, from observations alone; gives how many of each.
    pub async fn rebuild(&self) -> Result<(u64, u64)> {
        let tokens = match &self.tokens {
            Some(tokens) => tokens.rebuild().await?,
            None => 0,
        };
        let items = match &self.items {
            Some(items) => items.rebuild().await?,
            None => 0,
        };
        Ok((tokens, items))
    }
}
