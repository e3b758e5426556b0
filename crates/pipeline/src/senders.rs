//! Recovers the senders of many transactions from their signatures, on several threads.
//!
//! Guarantees: a sender follows from the signature alone, whatever was stored before. Leaves to others: whether senders
//! are needed.

use futures::{StreamExt, stream};
use logmill_chain::{Block, Sender, Transaction};

/// Transactions recovered as one unit of work, which takes some milliseconds.
const PIECE: usize = 128;
const SIDE_BY_SIDE: usize = 8;

/// Recovers the senders of all transactions and sets them.
pub(crate) async fn recover(blocks: &mut [Block]) {
    let transactions = blocks.iter().flat_map(|block| &block.transactions).cloned();
    let senders = recover_all(&transactions.collect::<Vec<_>>()).await;
    let transactions = blocks.iter_mut().flat_map(|block| &mut block.transactions);
    for (transaction, sender) in transactions.zip(senders) {
        transaction.sender = sender;
    }
}

/// Describes the first stored sender that contradicts its signature, if there is one.
pub(crate) async fn find_fault(block: &Block) -> Option<String> {
    let is_known = |transaction: &&Transaction| transaction.sender != Sender::Unknown;
    let known: Vec<Transaction> = block.transactions.iter().filter(is_known).cloned().collect();
    let senders = recover_all(&known).await;
    let (wrong, signer) =
        known.iter().zip(senders).find(|(known, signer)| known.sender != *signer)?;
    Some(format!(
        "its transaction {} is stored as sent by {}, but its signature belongs to {}",
        wrong.hash,
        shown(wrong.sender),
        shown(signer)
    ))
}

/// The senders by signature, in order.
async fn recover_all(transactions: &[Transaction]) -> Vec<Sender> {
    let work = transactions.chunks(PIECE).map(|piece| {
        let piece = piece.to_vec();
        logmill_io::compute(move || {
            piece.iter().map(Transaction::recover_sender).collect::<Vec<_>>()
        })
    });
    let work: Vec<_> = work.collect();
    stream::iter(work).buffered(SIDE_BY_SIDE).concat().await
}

fn shown(sender: Sender) -> String {
    sender.address().map_or_else(|| "no account".to_owned(), |address| address.to_string())
}
