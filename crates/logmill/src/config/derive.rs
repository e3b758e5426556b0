//! The section `[derive]`: which tables are derived, and how.
//!
//! Guarantees: what passes [`Derive::fault`] can be started. Leaves to others: deriving ([`logmill_pipeline::derive`]).

use std::time::Duration;

use logmill_pipeline::async_workers::nft_items::ItemSettings;
use logmill_pipeline::async_workers::nft_items::uri::Gateways;
use logmill_pipeline::derive::DeriveSettings;
use serde::Deserialize;

use super::{Fault, TIME_MS_MAX, within};

/// The most blocks of one chunk.
const CHUNK_MAX: u64 = 100_000;
/// The most rows of one transaction: they are held in memory.
const ROWS_MAX: u64 = 10_000_000;

/// Which tables are derived, and how.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Derive {
    live: bool,
    live_chunk: u64,
    head_backfill_blocks: u64,
    history: bool,
    history_chunk: u64,
    history_sleep_ms: u64,
    max_rows: u64,
    ipfs_gateways: String,
    arweave_gateways: String,
    processors: Processors,
}

/// Which processors run.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Processors {
    token_worker: bool,
    evm_worker: bool,
    meta_worker: bool,
    accounts_worker: bool,
    ft_holdings_worker: bool,
    nft_ownership_worker: bool,
    token_metadata_worker: bool,
    tx_contracts_worker: bool,
    tx_metrics_worker: bool,
    staking_worker: bool,
    defi_worker: bool,
    daily_balance_worker: bool,
    fees_worker: bool,
    nft_item_metadata_worker: bool,
    nft_reconciler: bool,
}

impl Derive {
    /// How tables are derived.
    pub(crate) fn settings(&self) -> DeriveSettings {
        DeriveSettings {
            live: self.live,
            live_chunk: self.live_chunk,
            head_backfill: self.head_backfill_blocks,
            history: self.history,
            history_chunk: self.history_chunk,
            history_sleep: Duration::from_millis(self.history_sleep_ms),
            rows_max: usize::try_from(self.max_rows).unwrap_or(usize::MAX),
            ..DeriveSettings::default()
        }
    }

    /// Whether anything is derived, if the process derives at all.
    pub(super) fn is_on(&self) -> bool {
        self.live || self.history
    }

    /// Whether a processor runs.
    pub(crate) fn enables(&self, processor: &str) -> bool {
        let on = &self.processors;
        match processor {
            "token_worker" => on.token_worker,
            "evm_worker" => on.evm_worker,
            "meta_worker" => on.meta_worker,
            "accounts_worker" => on.accounts_worker,
            "ft_holdings_worker" => on.ft_holdings_worker,
            "nft_ownership_worker" => on.nft_ownership_worker,
            "token_metadata_worker" => on.token_metadata_worker,
            "tx_contracts_worker" => on.tx_contracts_worker,
            "tx_metrics_worker" => on.tx_metrics_worker,
            "staking_worker" => on.staking_worker,
            "defi_worker" => on.defi_worker,
            "daily_balance_worker" => on.daily_balance_worker,
            "fees_worker" => on.fees_worker,
            "nft_item_metadata_worker" => on.nft_item_metadata_worker,
            "nft_ownership_reconciler" => on.nft_reconciler,
            _ => true,
        }
    }

    /// How the items of collections are asked for.
    pub(crate) fn items(&self) -> ItemSettings {
        let list = |text: &str| {
            let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
            urls.map(|url| url.trim_end_matches('/').to_owned()).collect()
        };
        let gateways =
            Gateways { ipfs: list(&self.ipfs_gateways), arweave: list(&self.arweave_gateways) };
        ItemSettings { gateways, ..ItemSettings::default() }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let faults = [
            within("derive.live_chunk", self.live_chunk, 1, CHUNK_MAX),
            within("derive.head_backfill_blocks", self.head_backfill_blocks, 0, CHUNK_MAX),
            within("derive.history_chunk", self.history_chunk, 1, CHUNK_MAX),
            within("derive.history_sleep_ms", self.history_sleep_ms, 0, TIME_MS_MAX),
            within("derive.max_rows", self.max_rows, 1, ROWS_MAX),
        ];
        faults.into_iter().flatten().next()
    }
}
