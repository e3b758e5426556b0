//! The section `[derive]`: which tables are derived, and how.
//!
//! Guarantees: settings that pass [`Derive::fault`] can be used. Leaves to others: deriving
//! ([`logmill_pipeline::derive`]).

use std::collections::BTreeSet;
use std::time::Duration;

use alloy_primitives::Address;
use logmill_pipeline::async_workers::nft_items::ItemSettings;
use logmill_pipeline::async_workers::nft_items::uri::Gateways;
use logmill_pipeline::derive::DeriveSettings;
use logmill_pipeline::derive::decoded::TokenSettings;
use serde::Deserialize;

use super::{InvalidKey, TIME_MS_MAX, within};

/// Maximum blocks per transaction.
const CHUNK_MAX: u64 = 100_000;
/// Maximum rows per transaction: they are held in memory.
const ROWS_MAX: u64 = 10_000_000;

/// Placeholder for all built-in contracts.
const KNOWN: &str = "known";

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
    disk_reserve_bytes: u64,
    ipfs_gateways: String,
    arweave_gateways: String,
    wrapped_native_tokens: String,
    early_nfts: String,
    processors: Processors,
}

/// Whether each processor and async worker runs.
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
    pub(crate) fn settings(&self) -> DeriveSettings {
        DeriveSettings {
            live: self.live,
            live_chunk: self.live_chunk,
            head_backfill: self.head_backfill_blocks,
            history: self.history,
            history_chunk: self.history_chunk,
            history_sleep: Duration::from_millis(self.history_sleep_ms),
            rows_max: usize::try_from(self.max_rows).unwrap_or(usize::MAX),
            disk_reserve_bytes: self.disk_reserve_bytes,
            ..DeriveSettings::default()
        }
    }

    /// Whether this process derives tables, unless it is `raw_only`.
    pub(super) fn is_on(&self) -> bool {
        self.live || self.history
    }

    /// Whether a processor or async worker runs, by its name.
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

    /// Settings for fetching the metadata of NFT items.
    pub(crate) fn items(&self) -> ItemSettings {
        let list = |text: &str| {
            let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
            urls.map(|url| url.trim_end_matches('/').to_owned()).collect()
        };
        let gateways =
            Gateways { ipfs: list(&self.ipfs_gateways), arweave: list(&self.arweave_gateways) };
        ItemSettings { gateways, ..ItemSettings::default() }
    }

    /// Settings for decoding the token transfers of a chain.
    pub(crate) fn tokens(&self, chain_id: u64) -> TokenSettings {
        let known = TokenSettings::known();
        let of = |text: &str, known: &BTreeSet<Address>| {
            let named = contracts(text).unwrap_or_default().into_iter();
            let meant = named.filter(|named| named.chain_id.is_none_or(|id| id == chain_id));
            let meant = meant.flat_map(|named| match named.contract {
                Some(contract) => BTreeSet::from([contract]),
                None => known.clone(),
            });
            meant.collect()
        };
        TokenSettings {
            wrapped_native: of(&self.wrapped_native_tokens, &known.wrapped_native),
            early_nfts: of(&self.early_nfts, &known.early_nfts),
        }
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let faults = [
            within("derive.live_chunk", self.live_chunk, 1, CHUNK_MAX),
            within("derive.head_backfill_blocks", self.head_backfill_blocks, 0, CHUNK_MAX),
            within("derive.history_chunk", self.history_chunk, 1, CHUNK_MAX),
            within("derive.history_sleep_ms", self.history_sleep_ms, 0, TIME_MS_MAX),
            within("derive.max_rows", self.max_rows, 1, ROWS_MAX),
            contracts(&self.wrapped_native_tokens)
                .err()
                .map(|why| ("derive.wrapped_native_tokens", why)),
            contracts(&self.early_nfts).err().map(|why| ("derive.early_nfts", why)),
        ];
        faults.into_iter().flatten().next()
    }
}

/// A contract, or all built-in ones (`None`); on one chain, or on all (`None`).
#[derive(Clone, Copy)]
struct ContractSelector {
    chain_id: Option<u64>,
    contract: Option<Address>,
}

/// Parses a comma-separated list of contracts.
fn contracts(text: &str) -> Result<Vec<ContractSelector>, String> {
    let all = text.split(',').map(str::trim).filter(|one| !one.is_empty());
    let named = |one: &str| {
        let (chain_id, contract) = match one.split_once(':') {
            None => (None, one),
            Some((chain, contract)) => {
                let id = chain.trim().parse::<u64>();
                let id = id.map_err(|_| format!("{chain:?} is not a chain id"))?;
                (Some(id), contract.trim())
            }
        };
        if contract == KNOWN {
            return Ok(ContractSelector { chain_id, contract: None });
        }
        let why = |_| format!("{contract:?} is neither an address nor {KNOWN:?}");
        Ok(ContractSelector { chain_id, contract: Some(contract.parse::<Address>().map_err(why)?) })
    };
    all.map(named).collect()
}
