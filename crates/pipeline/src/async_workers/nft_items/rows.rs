//! The table `nft_items`: the metadata of an NFT, and the last failure to fetch it.
//!
//! Guarantees: metadata is only replaced by metadata from the same or a newer block; a failure changes only the columns
//! about failures. Times are in milliseconds since 1970, by the database's clock. Leaves to others: where rows come
//! from.

use alloy_primitives::{Address, U256};
use logmill_io::sql::{Execute, Migration, Migrations};
use logmill_io::{Sql, Timestamp, params};

use super::document::{self, Document};
use crate::derive::rows::amount;
use crate::derive::store::chain_param;
use crate::error::Result;
use crate::observe::plain::{NAME_CHARS_MAX, plain};
use crate::observe::{AnswerStatus, StateAnswer, height};

/// Maximum length of a stored URI; longer ones are `data:` URIs, from which the rest of the row was read.
const URI_LENGTH_MAX: usize = 4_096;

pub(crate) static MIGRATIONS: Migrations = Migrations {
    component: "nft_items",
    list: &[Migration {
        name: "nft_items",
        statements: "
            CREATE TABLE nft_items (
                chain_id BIGINT NOT NULL,
                contract_address {bytes} NOT NULL,
                nft_id {amount} NOT NULL,
                uri TEXT,
                name TEXT,
                description TEXT,
                image TEXT,
                animation_url TEXT,
                external_url TEXT,
                traits TEXT,
                metadata_error TEXT,
                retries BIGINT NOT NULL,
                refetch_after BIGINT,
                observed_height BIGINT,
                PRIMARY KEY (chain_id, contract_address, nft_id)
            );",
        postgres_only: "",
    }],
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ItemRow {
    /// Where the document is.
    pub uri: Option<String>,
    pub document: Document,
    /// Why there is no document, or why it cannot be read.
    pub error: Option<String>,
    /// Block at which the contract was called.
    pub block: u64,
}

impl ItemRow {
    /// An item that permanently has no readable document.
    pub(super) fn of_error(uri: &str, block: u64, why: &str) -> Self {
        let uri = Some(uri).filter(|uri| uri.len() <= URI_LENGTH_MAX);
        let error = plain(why, NAME_CHARS_MAX);
        let uri = uri.and_then(|uri| plain(uri, URI_LENGTH_MAX));
        Self { uri, document: Document::default(), error, block }
    }

    /// An item with the bytes of its document.
    pub(super) fn of_bytes(uri: &str, block: u64, bytes: &[u8]) -> Self {
        match document::read(bytes) {
            Ok(document) => Self { document, error: None, ..Self::of_error(uri, block, "") },
            Err(why) => Self::of_error(uri, block, &why),
        }
    }

    /// An item with a stored observation of its document.
    pub(super) fn of_document(uri: &str, document: &StateAnswer) -> Self {
        match document.status {
            AnswerStatus::TooLarge => {
                Self::of_error(uri, document.block, "the document is too large")
            }
            _ => Self::of_bytes(uri, document.block, &document.value),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ItemTable {
    sql: Sql,
    chain_id: i64,
}

impl ItemTable {
    /// Creates the table if it does not exist.
    pub(crate) async fn open(sql: Sql, chain_id: u64) -> Result<Self> {
        sql.migrate(&MIGRATIONS).await?;
        Ok(Self { sql, chain_id: chain_param(chain_id)? })
    }

    pub(super) async fn put_in(
        &self,
        on: &impl Execute,
        contract: Address,
        id: U256,
        row: &ItemRow,
    ) -> logmill_io::Result<()> {
        let text = "
            INSERT INTO nft_items (chain_id, contract_address, nft_id, uri, name, description, image,
                animation_url, external_url, traits, metadata_error, retries, observed_height)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 0, $12)
            ON CONFLICT (chain_id, contract_address, nft_id) DO UPDATE SET
                uri = excluded.uri, name = excluded.name, description = excluded.description,
                image = excluded.image, animation_url = excluded.animation_url,
                external_url = excluded.external_url, traits = excluded.traits,
                metadata_error = excluded.metadata_error, retries = 0, refetch_after = NULL,
                observed_height = excluded.observed_height
            WHERE nft_items.observed_height IS NULL
                OR nft_items.observed_height <= excluded.observed_height";
        let Document { name, description, image, animation_url, external_url, traits } =
            row.document.clone();
        let params = params![
            self.chain_id,
            contract.as_slice(),
            amount(id),
            row.uri.clone(),
            name,
            description,
            image,
            animation_url,
            external_url,
            traits,
            row.error.clone(),
            height(row.block)?,
        ];
        on.execute(text, params).await?;
        Ok(())
    }

    pub(super) async fn put_failure(
        &self,
        contract: Address,
        id: U256,
        why: &str,
        attempt: i64,
        again: Option<Timestamp>,
    ) -> logmill_io::Result<()> {
        let text = "
            INSERT INTO nft_items
                (chain_id, contract_address, nft_id, metadata_error, retries, refetch_after)
            VALUES ($1, $2, $3, $4, $5, $6)
            ON CONFLICT (chain_id, contract_address, nft_id) DO UPDATE SET
                metadata_error = excluded.metadata_error, retries = excluded.retries,
                refetch_after = excluded.refetch_after";
        let contract = contract.as_slice();
        let params = params![self.chain_id, contract, amount(id), why, attempt, again];
        self.sql.execute(text, params).await?;
        Ok(())
    }
}
