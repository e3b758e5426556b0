//! Reads the era1 files of a folder, verifies every block, and reports the speed; or writes such files.
//!
//! ```text
//! cargo run --release -p logmill-chain --example era1_read -- write FOLDER BLOCKS sparse|mainnet
//! cargo run --release -p logmill-chain --example era1_read -- read FOLDER [NETWORK] [READ_AHEAD]
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use logmill_chain::era1::{Era1, Era1Settings};
use logmill_chain::sim::{Fork, Shape, SimChain};
use logmill_chain::{Error, Result};
use logmill_io::{SystemClock, compute};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["write", folder, blocks, shape] => write(folder, blocks, shape).await,
        ["read", folder] => read(folder, None, "4").await,
        ["read", folder, network] => read(folder, Some(network), "4").await,
        ["read", folder, network, ahead] => read(folder, Some(network), ahead).await,
        _ => {
            Err(wrong("write FOLDER BLOCKS sparse|mainnet, or read FOLDER [NETWORK] [READ_AHEAD]"))
        }
    }
}

async fn write(folder: &str, blocks: &str, shape: &str) -> Result<()> {
    let blocks: u64 = blocks.parse().map_err(|_| wrong("BLOCKS is a number"))?;
    let shape = match shape {
        "sparse" => Shape::sparse(),
        "mainnet" => Shape::mainnet(),
        _ => return Err(wrong("a shape is sparse or mainnet")),
    };
    let (clock, folder) = (SystemClock::shared(), folder.to_owned());
    let start = clock.monotonic();
    let paths = compute(move || {
        let chain = SimChain::new(1, shape.at(Fork::London));
        chain.grow(blocks.saturating_sub(1));
        chain.write_era1(Path::new(&folder), "sim")
    });
    let paths = paths.await?;
    let took = clock.monotonic() - start;
    println!("{blocks} blocks in {} files, {} ms", paths.len(), took.as_millis());
    Ok(())
}

async fn read(folder: &str, network: Option<&str>, ahead: &str) -> Result<()> {
    let clock = SystemClock::shared();
    let read_ahead = ahead.parse().map_err(|_| wrong("READ_AHEAD is a number"))?;
    let network = network.map(str::to_owned);
    let settings = Era1Settings { network, read_ahead, ..Era1Settings::new(folder, 1) };
    let era1 = Era1::open_folder(settings).await?;
    for range in era1.ranges() {
        let start = clock.monotonic();
        let (mut count, mut transactions, mut logs, mut bytes) = (0u64, 0u64, 0u64, 0u64);
        let mut blocks = era1.blocks(range.clone());
        while let Some(block) = blocks.next().await {
            let block = block?;
            count += 1;
            transactions += block.transactions.len() as u64;
            logs += block.log_count() as u64;
            bytes += block.size;
        }
        let took = clock.monotonic() - start;
        println!("blocks {} to {}: {} ms", range.start, range.end, took.as_millis());
        println!("  {count} blocks, {} a second", rate(count, took));
        println!("  {transactions} transactions, {} a second", rate(transactions, took));
        println!("  {logs} logs, {} a second", rate(logs, took));
        println!("  {bytes} bytes without receipts, {} a second", rate(bytes, took));
    }
    Ok(())
}

fn rate(count: u64, took: Duration) -> u128 {
    u128::from(count) * 1_000_000 / took.as_micros().max(1)
}

fn wrong(what: &str) -> Error {
    Error::Invalid { what: what.to_owned() }
}
