//! Blocks, headers, receipts and transactions as the bytes that the chain hashes, and the uncles of blocks.
//!
//! A stored block has only the hashes of its uncles. Their headers are fetched from a node on request and accepted only
//! if they match the stored hash, so a node cannot serve a false one.
//!
//! Guarantees: the bytes are those that the chain hashes; data kept as JSON, because its encoding is unknown here, is
//! an error. Leaves to others: finding blocks ([`super::blocks`]).

use std::sync::Arc;

use alloy_primitives::{Bytes, hex};
use logmill_chain::evm::header_with_hash;
use logmill_chain::{Block, Header, TransactionForm, body, render, verify};

use super::answer::Answer;
use super::blocks::{expect_receipts, find, find_transaction};
use super::error::{RpcError, RpcResult};
use super::params::{BlockSelector, Hash, Params, Quantity};
use super::{Rpc, ServedChain};

const UNCLES_MAX: usize = 2;

impl Rpc {
    /// `debug_getRawHeader`.
    pub(super) async fn raw_header(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
    ) -> RpcResult<Answer> {
        let Some(block) = find(&served.chain.view().await?, selector).await? else {
            return Ok(Answer::null());
        };
        match &block.header {
            Header::Canonical(bytes) => Ok(Answer::bytes(bytes)),
            Header::Foreign(_) => Err(foreign("the header", &block)),
        }
    }

    /// `debug_getRawBlock`.
    pub(super) async fn raw_block(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
    ) -> RpcResult<Answer> {
        let Some(block) = find(&served.chain.view().await?, selector).await? else {
            return Ok(Answer::null());
        };
        let is_foreign = matches!(block.header, Header::Foreign(_))
            || block.transactions.iter().any(|transaction| !is_canonical(&transaction.form));
        if is_foreign {
            return Err(foreign("the block", &block));
        }
        let mut uncles = Vec::new();
        for index in 0..block.uncles.len().min(UNCLES_MAX) {
            uncles.push(self.uncle_header(served, &block, index).await?);
        }
        let answer = logmill_io::compute(move || {
            let bytes = body::whole(&block, &uncles)?;
            Ok::<_, logmill_chain::Error>(Answer::bytes(&bytes))
        });
        Ok(answer.await?)
    }

    /// `debug_getRawReceipts`.
    pub(super) async fn raw_receipts(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
    ) -> RpcResult<Answer> {
        let Some(block) = find(&served.chain.view().await?, selector).await? else {
            return Ok(Answer::null());
        };
        expect_receipts(&block)?;
        let answer = logmill_io::compute(move || {
            // The encoded receipts of other chains may contain fields that their JSON lacks, so check the root.
            let header = block.header.decode()?;
            let root = header.map(|header| header.receipts_root);
            if root != Some(verify::receipts_root(&block.receipts)) {
                return Err(not_rooted(&block));
            }
            let mut raw = Vec::new();
            let each = block.receipts.iter().map(|receipt| {
                raw.clear();
                verify::encode_receipt(receipt, &mut raw);
                hex::encode_prefixed(&raw)
            });
            Answer::json(&each.collect::<Vec<String>>())
        });
        answer.await
    }

    /// `debug_getRawTransaction`, `eth_getRawTransactionByHash`.
    pub(super) async fn raw_transaction(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let Hash(hash) = params.read_at(0)?;
        match find_transaction(&served.chain.view().await?, hash).await? {
            Some((block, position)) => raw_transaction(&block, position),
            None => Ok(Answer::null()),
        }
    }

    /// `eth_getRawTransactionByBlockHashAndIndex`, `eth_getRawTransactionByBlockNumberAndIndex`.
    pub(super) async fn raw_transaction_at(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let Quantity(position) = params.read_at(1)?;
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        match find(&served.chain.view().await?, selector).await? {
            Some(block) if position < block.transactions.len() => raw_transaction(&block, position),
            _ => Ok(Answer::null()),
        }
    }

    /// `eth_getUncleByBlockHashAndIndex`, `eth_getUncleByBlockNumberAndIndex`.
    pub(super) async fn uncle(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let Quantity(index) = params.read_at(1)?;
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let block = find(&served.chain.view().await?, selector).await?;
        let Some(block) = block.filter(|block| index < block.uncles.len()) else {
            return Ok(Answer::null());
        };
        let header = self.uncle_header(served, &block, index).await?;
        let mut out = Vec::new();
        render::uncle(&mut out, &header, block.uncles[index])?;
        Ok(Answer::Text(out))
    }

    /// Fetches the RLP header of an uncle from a node, and checks it against the hash in the block.
    async fn uncle_header(
        &self,
        served: &ServedChain,
        block: &Arc<Block>,
        index: usize,
    ) -> RpcResult<Bytes> {
        let (number, hash) = (block.at.number, block.at.hash);
        let Some(source) = &served.source else {
            let what = format!(
                "only the hashes of the uncles of block {number} are kept, and no node is configured"
            );
            return Err(RpcError::not_kept(&what));
        };
        let params = format!("[\"{hash}\",\"{index:#x}\"]");
        let json =
            self.ask_node(served, source, "eth_getUncleByBlockHashAndIndex", &params).await?;
        let uncle = block.uncles.get(index).and_then(|uncle| header_with_hash(&json, *uncle));
        uncle.ok_or_else(|| {
            tracing::warn!(
                block = number,
                index,
                "a node does not have the uncle that a stored block names"
            );
            RpcError::unavailable("no node has the header of this uncle")
        })
    }
}

fn raw_transaction(block: &Block, position: usize) -> RpcResult<Answer> {
    match block.transactions.get(position).map(|transaction| &transaction.form) {
        Some(TransactionForm::Canonical(bytes)) => Ok(Answer::bytes(bytes)),
        Some(TransactionForm::Foreign(_)) => Err(foreign("the transaction", block)),
        None => Ok(Answer::null()),
    }
}

fn is_canonical(form: &TransactionForm) -> bool {
    matches!(form, TransactionForm::Canonical(_))
}

/// The receipts are not encoded as on Ethereum, or are not all those that the header commits to.
fn not_rooted(block: &Block) -> RpcError {
    let number = block.at.number;
    RpcError::not_kept(&format!(
        "the stored receipts of block {number} do not encode to the receiptsRoot of its header"
    ))
}

/// The data is kept as JSON from a node, so its bytes are unknown.
fn foreign(what: &str, block: &Block) -> RpcError {
    let number = block.at.number;
    RpcError::not_kept(&format!("{what} (block {number}) is stored as JSON, not as bytes"))
}
