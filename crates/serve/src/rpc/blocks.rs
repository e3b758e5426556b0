//! Blocks, transactions and receipts.
//!
//! Guarantees: null means that the chain has no such thing. If missing history leaves that open, the answer is an error
//! that lists the covered blocks. Leaves to others: the JSON ([`logmill_chain::render`]).

use std::sync::Arc;

use alloy_primitives::B256;
use logmill_chain::Block;
use logmill_chain::render::BlockRenderer;
use logmill_pipeline::View;

use super::answer::Answer;
use super::error::{RpcError, RpcResult};
use super::params::{BlockSelector, Hash, Params, Quantity, Tag};
use super::{Rpc, ServedChain};

impl Rpc {
    /// `eth_getBlockByNumber`, `eth_getBlockByHash`.
    pub(super) async fn block(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let whole = params.get::<bool>(1)?.unwrap_or(false);
        let Some(block) = find(&served.chain.view().await?, selector).await? else {
            return Ok(Answer::null());
        };
        rendered(block, move |render, out| render.block(out, whole)).await
    }

    /// `eth_getHeaderByNumber`, `eth_getHeaderByHash`.
    pub(super) async fn header(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
    ) -> RpcResult<Answer> {
        let Some(block) = find(&served.chain.view().await?, selector).await? else {
            return Ok(Answer::null());
        };
        rendered(block, |render, out| render.header(out)).await
    }

    /// `eth_getBlockAccessList`. Access lists are not stored: nodes do not return them with their blocks.
    pub(super) async fn access_list(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
    ) -> RpcResult<Answer> {
        if selector == BlockSelector::Tag(Tag::Pending) {
            return Ok(Answer::null());
        }
        let Some(block) = find(&served.chain.view().await?, selector).await? else {
            return Ok(Answer::null());
        };
        let number = block.at.number;
        match block.header.has_access_list()? {
            false => {
                let what = format!("block {number} precedes access lists (EIP-7928)");
                Err(RpcError::resource_not_found(&what))
            }
            true => {
                let what = format!("the access list of block {number} is not stored");
                Err(RpcError::not_kept(&what))
            }
        }
    }

    /// `eth_getBlockReceipts`.
    pub(super) async fn receipts(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
    ) -> RpcResult<Answer> {
        let Some(block) = find(&served.chain.view().await?, selector).await? else {
            return Ok(Answer::null());
        };
        expect_receipts(&block)?;
        rendered(block, |render, out| render.receipts(out)).await
    }

    /// Number of transactions or uncles of a block.
    pub(super) async fn count(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
        count: fn(&Block) -> usize,
    ) -> RpcResult<Answer> {
        let block = find(&served.chain.view().await?, selector).await?;
        Ok(block.map_or_else(Answer::null, |block| {
            Answer::quantity(u64::try_from(count(&block)).unwrap_or(u64::MAX))
        }))
    }

    /// `eth_getTransactionByBlockHashAndIndex`, `eth_getTransactionByBlockNumberAndIndex`.
    pub(super) async fn transaction_at(
        &self,
        served: &ServedChain,
        selector: BlockSelector,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let Quantity(position) = params.read_at(1)?;
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        match find(&served.chain.view().await?, selector).await? {
            Some(block) if position < block.listed_transactions() => {
                transaction(block, position).await
            }
            _ => Ok(Answer::null()),
        }
    }

    /// `eth_getTransactionByHash`.
    pub(super) async fn transaction(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let Hash(hash) = params.read_at(0)?;
        match find_transaction(&served.chain.view().await?, hash).await? {
            Some((block, position)) if position < block.listed_transactions() => {
                transaction(block, position).await
            }
            // The node returned a receipt for it but does not list it.
            Some(_) => Ok(Answer::null()),
            None => Ok(Answer::null()),
        }
    }

    /// `eth_getTransactionReceipt`.
    pub(super) async fn receipt(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let Hash(hash) = params.read_at(0)?;
        let found = find_transaction(&served.chain.view().await?, hash).await?;
        let Some((block, position)) = found else {
            return Ok(Answer::null());
        };
        expect_receipts(&block)?;
        rendered(block, move |render, out| {
            render.receipt(out, position, &render.transaction_view(position)?)
        })
        .await
    }
}

async fn transaction(block: Arc<Block>, position: usize) -> RpcResult<Answer> {
    rendered(block, move |render, out| {
        render.transaction(out, position, &render.transaction_view(position)?)
    })
    .await
}

/// Renders a block on a compute thread: recovering senders from signatures would block the async tasks.
async fn rendered<W>(block: Arc<Block>, write: W) -> RpcResult<Answer>
where
    W: FnOnce(&BlockRenderer<'_>, &mut Vec<u8>) -> logmill_chain::Result<()> + Send + 'static,
{
    let text = logmill_io::compute(move || {
        let mut out = Vec::new();
        write(&BlockRenderer::of(&block)?, &mut out)?;
        Ok::<_, logmill_chain::Error>(out)
    });
    Ok(Answer::Text(text.await?))
}

/// Returns a block, or `None` if the chain has no such block.
pub(super) async fn find(view: &View, selector: BlockSelector) -> RpcResult<Option<Arc<Block>>> {
    let missing = |what: String| RpcError::not_stored(&what, &view.covered());
    let number = match selector {
        BlockSelector::Tag(tag) => tag.resolve(view)?,
        BlockSelector::Hash(hash) => {
            return match view.block_ref_by_hash(&hash).await? {
                Some(at) => match view.block_by_hash(&hash).await? {
                    Some(block) => Ok(Some(block)),
                    None => Err(missing(format!("only the logs of block {} are kept", at.number))),
                },
                None if view.is_complete() => Ok(None),
                None => Err(missing(format!("block {hash} may be in missing history"))),
            };
        }
    };
    if let Some(block) = view.block(number).await? {
        return Ok(Some(block));
    }
    if view.head().is_none_or(|head| head.number < number) {
        return Ok(None);
    }
    Err(missing(match view.block_ref(number).await? {
        Some(_) => format!("only the logs of block {number} are kept"),
        None => format!("block {number} is not stored"),
    }))
}

pub(super) async fn find_transaction(
    view: &View,
    hash: B256,
) -> RpcResult<Option<(Arc<Block>, usize)>> {
    match view.transaction(&hash).await? {
        Some(found) => Ok(Some(found)),
        None if view.is_complete() => Ok(None),
        None => {
            let what = format!("transaction {hash} may be in missing history");
            Err(RpcError::not_stored(&what, &view.covered()))
        }
    }
}

/// Rejects a block of which only the logs were ever known, not the receipts.
pub(super) fn expect_receipts(block: &Block) -> RpcResult<()> {
    if block.receipts.len() == block.transactions.len() {
        return Ok(());
    }
    Err(RpcError::unavailable("the receipts of this block are not known"))
}

/// Reads the block from the first parameter: a hash, or a number or tag.
pub(super) fn block_selector(params: &Params<'_>, by_hash: bool) -> RpcResult<BlockSelector> {
    match by_hash {
        true => params.read_at(0).map(|Hash(hash)| BlockSelector::Hash(hash)),
        false => params.read_at::<Tag>(0).map(BlockSelector::Tag),
    }
}
