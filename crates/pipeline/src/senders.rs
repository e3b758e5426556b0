//! Senders of many transactions, recovered from their signatures by several threads side by side.
//!
//! Guarantees: a sender is what the signature says, whatever was said before. Leaves to others: whether it is wanted.

use futures::{StreamExt, stream};
use logmill_chain::{Block, Sender, Transaction};

/// Transactions of one piece of work: some milliseconds of it.
const PIECE: usize = 128;
/// Pieces that are worked on at a time.
const SIDE_BY_SIDE: usize = 8;

/// Recovers the senders of blocks, and puts them in.
pub(crate) async fn recover(blocks: &mut [Block]) {
    let transactions = blocks.iter().flat_map(|block| &block.transactions).cloned();
    let senders = recovered(&transactions.collect::<Vec<_>>()).await;
    let transactions = blocks.iter_mut().flat_map(|block| &mut block.transactions);
    for (transaction, sender) in transactions.zip(senders) {
        transaction.sender = sender;
    }
}

/// What is wrong with the senders that a block has, if anything is.
pub(crate) async fn fault(block: &Block) -> Option<String> {
    let is_known = |transaction: &&Transaction| transaction.sender != Sender::Unknown;
    let known: Vec<Transaction> = block.transactions.iter().filter(is_known).cloned().collect();
    let senders = recovered(&known).await;
    let (wrong, said) = known.iter().zip(senders).find(|(known, said)| known.sender != *said)?;
    Some(format!(
        "its transaction {} is stored as sent by {}, but its signature is of {}",
        wrong.hash,
        shown(wrong.sender),
        shown(said)
    ))
}

/// What the signatures of transactions say, in order.
async fn recovered(transactions: &[Transaction]) -> Vec<Sender> {
    let work = transactions.chunks(PIECE).map(|piece| {
        let piece = piece.to_vec();
        logmill_io::compute(move || piece.iter().map(Sender::recover).collect::<Vec<_>>())
    });
    let work: Vec<_> = work.collect();
    stream::iter(work).buffered(SIDE_BY_SIDE).concat().await
}

fn shown(sender: Sender) -> String {
    sender.address().map_or_else(|| "nobody".to_owned(), |address| address.to_string())
}
