//! From nothing to an answer: in-memory stores, a writer, two blocks, a query.
//!
//! ```text
//! cargo run -p finalized-log-index --example basics
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use finalized_log_index::{
    Address, B256, BlockLog, Bytes, Filter, FinalizedBlock, LogIndex, Result, Settings, Stores,
};
use logmill_io::{OsEntropy, SystemClock};

fn block(number: u64, parent_hash: B256, logs: Vec<BlockLog>) -> FinalizedBlock {
    let hash = B256::with_last_byte(u8::try_from(number).unwrap_or(u8::MAX));
    let timestamp = 1_700_000_000 + number * 12;
    FinalizedBlock { number, hash, parent_hash, timestamp, logs, body: None }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let stores = Stores::memory(SystemClock::shared(), OsEntropy::shared());
    let index = LogIndex::open(stores, Settings::default()).await?;
    let writer = index.writer("example").await?;

    let transfer = B256::repeat_byte(0xdd);
    let token = Address::repeat_byte(0x11);
    let log = BlockLog {
        address: token,
        topics: [transfer].into_iter().collect(),
        data: Bytes::from_static(b"42"),
        transaction_hash: B256::repeat_byte(0x77),
        ..BlockLog::default()
    };
    let first = block(1, B256::ZERO, Vec::new());
    let second = block(2, first.hash, vec![log]);
    writer.ingest_finalized_block(first).await?;
    writer.ingest_finalized_block(second).await?;

    let filter = Filter::range(1..=2).address(token).topic(0, transfer);
    let page = index.query_finalized(&filter).await?;
    println!("{} log in blocks 1 to 2: {:?}", page.logs.len(), page.logs[0].log.data);
    println!("how: {:#?}", index.explain(&filter).await?.sources);

    let beyond = index.query_finalized(&Filter::range(1..=3)).await;
    println!(
        "beyond what is covered: {}",
        beyond.map_or_else(|e| e.to_string(), |_| String::new())
    );
    Ok(())
}
