//! Kinds of jobs that SQLite stores outside the database of all jobs, beside the data they change.
//!
//! Guarantees: a job and its effect are in one database, so that they can be one transaction. Leaves to others: opening
//! the databases ([`crate::stores`]).

use logmill_pipeline::async_workers::{contract_code, nft_items, reconcile, token_metadata};

/// Whether jobs of a kind are stored beside usage.
pub(crate) fn is_beside_usage(kind: &str) -> bool {
    kind.starts_with("meter.") || kind.starts_with("webhook.")
}

/// Whether jobs of a kind are stored beside tables: those of collectors and of async workers.
pub(crate) fn is_beside_tables(kind: &str) -> bool {
    let workers = [
        "collect",
        contract_code::NAME,
        token_metadata::NAME,
        nft_items::NAME,
        "nft_item_metadata",
        reconcile::NAME,
    ];
    workers.iter().any(|name| {
        kind.strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}
