//! The command line of `logmill index …`.
//!
//! Guarantees: addresses, topics, tokens and limits are checked before anything is opened. Leaves to others: doing it
//! ([`crate::index`]).

use clap::{Args, Subcommand};
use finalized_log_index::{Address, B256, TOPICS_MAX};

/// The most logs of one answer: each is kept in memory until all are there.
const LOGS_MAX: usize = 1_000_000;

/// Those that only look read the index beside the process that writes it; those that change something need it for
/// themselves.
#[derive(Subcommand)]
pub(crate) enum Index {
    /// Show how the log index of a chain is, or of all chains: what it covers, and whether it refuses to go on
    Status {
        #[command(flatten)]
        chain: Chain,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the logs of a range of blocks, or say how they were found
    Logs(Logs),
    /// Delete chunks that nothing refers to, and records that nobody needs any more
    Gc {
        #[command(flatten)]
        chain: Chain,
        /// Only count them
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove history: the chunks that lie wholly below a block
    Prune {
        /// The first block that stays
        #[arg(long, value_name = "BLOCK")]
        below: u64,
        #[command(flatten)]
        chain: Chain,
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Decide about a log index that refuses to go on
    #[command(subcommand)]
    Resolve(Resolve),
}

/// Which index is meant.
#[derive(Args, Clone, Copy)]
pub(crate) struct Chain {
    /// The chain's id; not needed if there is an index of one chain only
    #[arg(long = "chain", value_name = "ID")]
    pub(crate) id: Option<u64>,
}

/// The ways out of a degraded index.
#[derive(Subcommand)]
pub(crate) enum Resolve {
    /// The index is right, what came was wrong: go on as it is
    Keep {
        #[command(flatten)]
        how: How,
    },
    /// Throw away everything from a block on, with the chunk that holds it, to ingest it again
    RebuildFrom {
        /// The first block that is wrong
        block: u64,
        #[command(flatten)]
        how: How,
    },
    /// Throw away one damaged chunk; its blocks are not covered until they are built again
    Discard {
        /// The chunk's token: sixteen hexadecimal digits, as errors and `index status` name it
        #[arg(value_parser = token)]
        token: u64,
        #[command(flatten)]
        how: How,
    },
}

/// What all ways out have in common.
#[derive(Args, Clone, Copy)]
pub(crate) struct How {
    #[command(flatten)]
    pub(crate) chain: Chain,
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Which logs.
#[derive(Args)]
pub(crate) struct Logs {
    /// The first block
    #[arg(long, value_name = "BLOCK")]
    pub(crate) from: u64,
    /// The last block
    #[arg(long, value_name = "BLOCK")]
    pub(crate) to: u64,
    /// Only logs of this contract; given several times, of one of them
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) address: Vec<Address>,
    /// Only logs with this topic at a position from 0 to 3; given several times for a position, with one of them
    #[arg(long, value_name = "POSITION=TOPIC", value_parser = topic)]
    pub(crate) topic: Vec<(usize, B256)>,
    /// The most logs to list; a block is listed whole or not at all
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = limit)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) chain: Chain,
    /// Say how the logs were found, instead of listing them
    #[arg(long)]
    pub(crate) explain: bool,
    /// Print JSON, logs as `eth_getLogs` does
    #[arg(long)]
    pub(crate) json: bool,
}

fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|_| "an address of 40 hexadecimal digits is needed".to_owned())
}

fn topic(text: &str) -> Result<(usize, B256), String> {
    let parsed = text.split_once('=').and_then(|(position, topic)| {
        let position = position.trim().parse().ok().filter(|position| *position < TOPICS_MAX);
        position.zip(topic.trim().parse().ok())
    });
    parsed.ok_or_else(|| {
        "a position from 0 to 3, an equals sign and 64 hexadecimal digits are needed".to_owned()
    })
}

fn token(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let plain = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let parsed = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    parsed.ok_or_else(|| "sixteen hexadecimal digits are needed".to_owned())
}

fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| (1..=LOGS_MAX).contains(limit));
    limit.ok_or_else(|| format!("a number from 1 to {LOGS_MAX} is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_read_with_their_position() {
        let word = format!("0x{}", "ab".repeat(32));
        assert_eq!(topic(&format!("3={word}")), Ok((3, B256::repeat_byte(0xab))));
        for text in ["", "1", &word, &format!("4={word}"), "0=0xab", &format!("-1={word}")] {
            assert!(topic(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_are_sixteen_digits() {
        assert_eq!(token("00000000000000ff"), Ok(255));
        assert_eq!(token("0x00000000000000ff"), Ok(255));
        for text in ["", "ff", "+0000000000000ff", "00000000000000fg", "0000000000000000ff"] {
            assert!(token(text).is_err(), "{text}");
        }
    }
}
