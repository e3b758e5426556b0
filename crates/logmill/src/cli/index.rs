//! The command line of `logmill index …`.
//!
//! Guarantees: addresses, topics, tokens and limits are checked before anything is opened. Leaves to others: running
//! the commands ([`crate::commands::index`]).

use clap::{Args, Subcommand};
use finalized_log_index::{Address, B256, TOPICS_MAX};

/// Maximum of `--limit`: all listed logs are held in memory.
const LOGS_MAX: usize = 1_000_000;

/// Commands that only read open the index beside the process that writes it; those that change something need the
/// writer lease.
#[derive(Subcommand)]
pub(crate) enum Index {
    /// Show the log index of one chain or of all chains: which final blocks it covers, and whether it is degraded
    Status {
        #[command(flatten)]
        chain: Chain,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the logs of a range of blocks, or explain how they were found
    Logs(Logs),
    /// Delete unreferenced chunks and records that are no longer needed
    Gc {
        #[command(flatten)]
        chain: Chain,
        /// Only count the garbage
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove history: all chunks that lie completely below a block
    Prune {
        /// First block to keep
        #[arg(long, value_name = "BLOCK")]
        below: u64,
        #[command(flatten)]
        chain: Chain,
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Resolve a degraded log index
    #[command(subcommand)]
    Resolve(Resolve),
}

/// Selects an index.
#[derive(Args, Clone, Copy)]
pub(crate) struct Chain {
    /// Chain id; may be omitted if there is an index of only one chain
    #[arg(long = "chain", value_name = "ID")]
    pub(crate) id: Option<u64>,
}

/// Decisions that end the degraded state of an index.
#[derive(Subcommand)]
pub(crate) enum Resolve {
    /// Keep the index unchanged and continue: the index is right, the conflicting block was wrong
    Keep {
        #[command(flatten)]
        args: ResolveArgs,
    },
    /// Discard everything from a block on, including the chunk that contains it, and ingest it again
    RebuildFrom {
        /// First wrong block
        block: u64,
        #[command(flatten)]
        args: ResolveArgs,
    },
    /// Discard one damaged chunk; its blocks are not covered until they are ingested again
    Discard {
        /// Token of the chunk: sixteen hexadecimal digits, as printed by errors and `index status`
        #[arg(value_parser = token)]
        token: u64,
        #[command(flatten)]
        args: ResolveArgs,
    },
}

/// Arguments that all decisions share.
#[derive(Args, Clone, Copy)]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    pub(crate) chain: Chain,
    /// Only print what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Selects logs, and the form of the output.
#[derive(Args)]
pub(crate) struct Logs {
    /// First block
    #[arg(long, value_name = "BLOCK")]
    pub(crate) from: u64,
    /// Last block
    #[arg(long, value_name = "BLOCK")]
    pub(crate) to: u64,
    /// Only logs of this contract; repeatable, and then logs of any of them
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) address: Vec<Address>,
    /// Only logs with this topic at a position from 0 to 3; repeatable, and then any of the topics given for a position
    #[arg(long, value_name = "POSITION=TOPIC", value_parser = topic)]
    pub(crate) topic: Vec<(usize, B256)>,
    /// Maximum number of logs to list; the logs of a block are never split
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = limit)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) chain: Chain,
    /// Explain how the logs were found, instead of listing them
    #[arg(long)]
    pub(crate) explain: bool,
    /// Print JSON, with logs in the format of `eth_getLogs`
    #[arg(long)]
    pub(crate) json: bool,
}

fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|_| "expected an address of 40 hexadecimal digits".to_owned())
}

fn topic(text: &str) -> Result<(usize, B256), String> {
    let parsed = text.split_once('=').and_then(|(position, topic)| {
        let position = position.trim().parse().ok().filter(|position| *position < TOPICS_MAX);
        position.zip(topic.trim().parse().ok())
    });
    parsed.ok_or_else(|| {
        "expected POSITION=TOPIC: a position from 0 to 3, and 64 hexadecimal digits".to_owned()
    })
}

fn token(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let plain = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let parsed = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    parsed.ok_or_else(|| "expected sixteen hexadecimal digits".to_owned())
}

fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| (1..=LOGS_MAX).contains(limit));
    limit.ok_or_else(|| format!("expected a number from 1 to {LOGS_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_parsed_with_their_position() {
        let word = format!("0x{}", "ab".repeat(32));
        assert_eq!(topic(&format!("3={word}")), Ok((3, B256::repeat_byte(0xab))));
        for text in ["", "1", &word, &format!("4={word}"), "0=0xab", &format!("-1={word}")] {
            assert!(topic(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_has_sixteen_digits() {
        assert_eq!(token("00000000000000ff"), Ok(255));
        assert_eq!(token("0x00000000000000ff"), Ok(255));
        for text in ["", "ff", "+0000000000000ff", "00000000000000fg", "0000000000000000ff"] {
            assert!(token(text).is_err(), "{text}");
        }
    }
}
