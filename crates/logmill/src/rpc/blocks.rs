//! Blocks, transactions and receipts.
//!
//! Guarantees: null means that there is none; where that is not certain, because history is missing, the answer is an
//! error that says what is there. Leaves to others: what the JSON looks like ([`logmill_chain::render`]).

use std::sync::Arc;

use alloy_primitives::B256;
use logmill_chain::Block;
use logmill_chain::render::Render;
use logmill_pipeline::View;

use super::answer::Answer;
use super::error::{RpcError, RpcResult};
use super::params::{Params, Quantity, Tag, Which};
use super::{Rpc, Served};

impl Rpc {
    /// `eth_getBlockByNumber`, `eth_getBlockByHash`.
    pub(super) async fn block(
        &self,
        served: &Served,
        which: Which,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let whole = params.get::<bool>(1)?.unwrap_or(false);
        let Some(block) = find(&served.chain.view().await?, which).await? else {
            return Ok(Answer::null());
        };
        rendered(block, move |render, out| render.block(out, whole)).await
    }

    /// `eth_getBlockReceipts`.
    pub(super) async fn receipts(&self, served: &Served, which: Which) -> RpcResult<Answer> {
        let Some(block) = find(&served.chain.view().await?, which).await? else {
            return Ok(Answer::null());
        };
        expect_receipts(&block)?;
        rendered(block, |render, out| render.receipts(out)).await
    }

    /// How many transactions or uncles a block has.
    pub(super) async fn count(
        &self,
        served: &Served,
        which: Which,
        count: fn(&Block) -> usize,
    ) -> RpcResult<Answer> {
        let block = find(&served.chain.view().await?, which).await?;
        Ok(block.map_or_else(Answer::null, |block| {
            Answer::quantity(u64::try_from(count(&block)).unwrap_or(u64::MAX))
        }))
    }

    /// `eth_getTransactionByBlockHashAndIndex`, `eth_getTransactionByBlockNumberAndIndex`.
    pub(super) async fn transaction_at(
        &self,
        served: &Served,
        which: Which,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        let Quantity(position) = params.read_at(1)?;
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        match find(&served.chain.view().await?, which).await? {
            Some(block) if position < block.transactions.len() => {
                transaction(block, position).await
            }
            _ => Ok(Answer::null()),
        }
    }

    /// `eth_getTransactionByHash`.
    pub(super) async fn transaction(
        &self,
        served: &Served,
        params: &Params<'_>,
    ) -> RpcResult<Answer> {
        match find_transaction(&served.chain.view().await?, params.read_at(0)?).await? {
            Some((block, position)) => transaction(block, position).await,
            None => Ok(Answer::null()),
        }
    }

    /// `eth_getTransactionReceipt`.
    pub(super) async fn receipt(&self, served: &Served, params: &Params<'_>) -> RpcResult<Answer> {
        let found = find_transaction(&served.chain.view().await?, params.read_at(0)?).await?;
        let Some((block, position)) = found else {
            return Ok(Answer::null());
        };
        expect_receipts(&block)?;
        rendered(block, move |render, out| render.receipt(out, position, &render.sent(position)?))
            .await
    }
}

async fn transaction(block: Arc<Block>, position: usize) -> RpcResult<Answer> {
    rendered(block, move |render, out| render.transaction(out, position, &render.sent(position)?))
        .await
}

/// Renders a block where it holds up nobody: senders are worked out from signatures.
async fn rendered(
    block: Arc<Block>,
    write: impl FnOnce(&Render<'_>, &mut Vec<u8>) -> logmill_chain::Result<()> + Send + 'static,
) -> RpcResult<Answer> {
    let text = logmill_io::compute(move || {
        let mut out = Vec::new();
        write(&Render::of(&block)?, &mut out)?;
        Ok::<_, logmill_chain::Error>(out)
    });
    Ok(Answer::Text(text.await?))
}

/// A block; none if the chain has none there.
async fn find(view: &View, which: Which) -> RpcResult<Option<Arc<Block>>> {
    let missing = |what: String| RpcError::not_stored(&what, &view.covered());
    let number = match which {
        Which::Tag(tag) => tag.resolve(view)?,
        Which::Hash(hash) => {
            return match view.block_ref_by_hash(&hash).await? {
                Some(at) => match view.block_by_hash(&hash).await? {
                    Some(block) => Ok(Some(block)),
                    None => Err(missing(format!("only the logs of block {} are kept", at.number))),
                },
                None if view.is_complete() => Ok(None),
                None => Err(missing(format!("block {hash} may be in history that is missing"))),
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
        None => format!("block {number} is not there"),
    }))
}

async fn find_transaction(view: &View, hash: B256) -> RpcResult<Option<(Arc<Block>, usize)>> {
    match view.transaction(&hash).await? {
        Some(found) => Ok(Some(found)),
        None if view.is_complete() => Ok(None),
        None => {
            let what = format!("transaction {hash} may be in history that is missing");
            Err(RpcError::not_stored(&what, &view.covered()))
        }
    }
}

/// Refuses a block whose receipts were never known, only its logs.
fn expect_receipts(block: &Block) -> RpcResult<()> {
    if block.receipts.len() == block.transactions.len() {
        return Ok(());
    }
    Err(RpcError::unavailable("the receipts of this block are not known"))
}

/// Which block a call with a number or a hash means.
pub(super) fn which(params: &Params<'_>, by_hash: bool) -> RpcResult<Which> {
    match by_hash {
        true => params.read_at(0).map(Which::Hash),
        false => params.read_at::<Tag>(0).map(Which::Tag),
    }
}
