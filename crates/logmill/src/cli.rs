//! The command line: commands, arguments and their help texts.
//!
//! Guarantees: a test compares the help texts with `tests/it/help.txt`. Leaves to others: running the commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use logmill_work::State;

pub(crate) use collect::Collect;
pub(crate) use index::Index;

pub(crate) mod collect;
pub(crate) mod index;

/// Turns a blockchain's logs into answers, tables, meters and bills.
#[derive(Parser)]
#[command(version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that change the configuration, of every command.
#[derive(Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct ConfigArgs {
    /// Config file [default: logmill.toml in the data folder, else in the current folder]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data folder; same as --set data=DIR
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data: Option<String>,
    /// Set any configuration key, such as work.slots=8; repeatable
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the server until SIGINT or SIGTERM: follow a chain, backfill its history, answer requests
    Run(Run),
    /// Collect events of contracts, each into a table, and serve them, until SIGINT or SIGTERM
    Collect(Collect),
    /// Inspect and change jobs
    #[command(subcommand)]
    Jobs(Jobs),
    /// Query, maintain and repair the log index
    #[command(subcommand)]
    Index(Index),
    /// Check stored blocks against their headers
    Verify(Verify),
    /// Make the server fetch stored final blocks again and replace what differs
    Repair(Repair),
    /// Rebuild the tables of a processor from stored history; the old tables are served until the new ones are complete
    Rederive(Rederive),
    /// Recount usage, trigger aggregation, and handle damaged usage events
    #[command(subcommand)]
    Meter(Meter),
    /// Manage the keys that encrypt webhook secrets
    #[command(subcommand)]
    Secrets(Secrets),
    /// Check the configuration, or print the defaults
    #[command(subcommand)]
    Config(Config),
    /// Test what a start needs: data folder, database, blob store, node
    Preflight,
    /// Show the features at work, in a temporary folder that is removed afterwards
    Demo,
}

impl Command {
    /// Whether to open databases that hold less than they once did.
    pub(crate) fn accepts_loss(&self) -> bool {
        match self {
            Self::Run(run) => run.accept_loss,
            Self::Collect(collect) => collect.accept_loss,
            _ => false,
        }
    }
}

/// Flags for the settings that are most often set by hand; each stands for a configuration key.
#[derive(Args, Default)]
pub(crate) struct Run {
    /// URL of a node; repeatable; same as --set chain.rpc_urls=URL,URL
    #[arg(long, value_name = "URL")]
    rpc_url: Vec<String>,
    /// Address and port to serve on; same as --set server.listen=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Lowest block to fetch; same as --set ingest.history_stop_height=N
    #[arg(long, value_name = "N")]
    start_block: Option<u64>,
    /// Number of confirmations that make a block final; same as --set chain.confirmations=N
    #[arg(long, value_name = "N")]
    confirmations: Option<u64>,
    /// Folder of era1 files; same as --set chain.era1=DIR
    #[arg(long, value_name = "DIR")]
    era1: Option<String>,
    /// Chain id; same as --set chain.id=N
    #[arg(long, value_name = "N")]
    chain_id: Option<u64>,
    /// Start even if a database holds less than it once did, and continue without the missing data
    #[arg(long)]
    pub(crate) accept_loss: bool,
}

impl Run {
    /// The given flags as configuration keys and values.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let urls = (!self.rpc_url.is_empty()).then(|| self.rpc_url.join(","));
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let all = [
            ("chain.rpc_urls", urls),
            ("server.listen", self.listen.clone()),
            ("ingest.history_stop_height", number(self.start_block)),
            ("chain.confirmations", number(self.confirmations)),
            ("chain.era1", self.era1.clone()),
            ("chain.id", number(self.chain_id)),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

#[derive(Args)]
pub(crate) struct Verify {
    /// First block to check [default: the lowest stored block]
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,
    /// Last block to check [default: the highest final block]
    #[arg(long, value_name = "N")]
    pub(crate) to: Option<u64>,
    /// Chain id; may be omitted if there is only one chain
    #[arg(long, value_name = "ID")]
    pub(crate) chain: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Repair {
    /// Blocks to fetch again: one number, or two with a dash between them
    #[arg(value_name = "FIRST-LAST", value_parser = blocks)]
    pub(crate) range: std::ops::RangeInclusive<u64>,
    /// Chain id; may be omitted if there is only one chain
    #[arg(long, value_name = "ID")]
    pub(crate) chain: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Rederive {
    /// Name of the processor, such as token_worker
    #[arg(value_name = "PROCESSOR")]
    pub(crate) processor: String,
    /// Chain id; may be omitted if there is only one chain
    #[arg(long, value_name = "ID")]
    pub(crate) chain: Option<u64>,
    /// Do not wait for completion
    #[arg(long)]
    pub(crate) detach: bool,
    /// Drop rows of blocks that are no longer stored, such as pruned ones, and so cannot be derived again
    #[arg(long)]
    pub(crate) drop_unstored: bool,
    /// Serve the new tables even if changed settings leave one of them without rows
    #[arg(long)]
    pub(crate) allow_empty: bool,
}

#[derive(Subcommand)]
pub(crate) enum Meter {
    /// Compare all stored usage figures with the events themselves, including archived ones
    ///
    /// On SQLite, no server may be running.
    Recount {
        /// Repair the differences
        #[arg(long)]
        repair: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Aggregate all periods with new usage, including those that have not ended yet
    Trigger,
    /// List stored usage that the audit found damaged
    ///
    /// On SQLite, no server may be running.
    Damaged {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Restore damaged usage events as they were recorded
    ///
    /// They are read from the archive, or from a copy of meter.db. Later corrections are kept. On SQLite, no server may
    /// be running.
    RestoreEvent {
        /// Sequence numbers of the events, as printed by the error or by `logmill meter damaged`
        #[arg(required = true, value_name = "SEQUENCE")]
        sequences: Vec<i64>,
        /// Copy of meter.db in which they are intact
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// Remove damaged usage events that cannot be restored, and record the reason
    ///
    /// They no longer count, and aggregates that included them are corrected. On SQLite, no server may be running.
    MarkLost {
        /// Sequence numbers of the events, as printed by the error or by `logmill meter damaged`
        #[arg(required = true, value_name = "SEQUENCE")]
        sequences: Vec<i64>,
        /// Reason to record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// List the source under which each API key sends usage
    ///
    /// On SQLite, no server may be running.
    Sources {
        /// Accept changed sources in server.keys for keys that have already sent usage
        ///
        /// Events that are sent again after the change then count twice.
        #[arg(long)]
        force: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum Secrets {
    /// Encrypt all webhook secrets with the first key
    ///
    /// On SQLite, no server may be running.
    Rekey,
    /// Print a new key
    Generate,
}

#[derive(Subcommand)]
pub(crate) enum Config {
    /// Check the configuration and print it as TOML, with secrets redacted
    Check,
    /// Print the default config file, with an explanation of every key
    Default,
}

/// Commands that only read open the database beside the server; those that change something go through the server, if
/// one runs.
#[derive(Subcommand)]
pub(crate) enum Jobs {
    /// Count jobs by kind and state
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the jobs of a kind in one state, ordered by key
    List {
        /// Kind of the job
        kind: String,
        /// State: pending, running, done, dead or cancelled
        #[arg(long, value_parser = state)]
        state: State,
        /// List jobs after this key
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// Maximum number of jobs to list
        #[arg(long, default_value_t = 100, value_parser = limit)]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one job, its position in the queue and its estimated time to completion
    Show {
        /// Kind of the job
        kind: String,
        /// Key of the job within its kind
        key: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Enqueue a job, or revive one that is dead or cancelled; warns if no process runs jobs of its kind
    Enqueue {
        /// Kind of the job
        kind: String,
        /// Key of the job within its kind
        key: String,
        /// Payload of the job, as JSON
        #[arg(long, default_value = "{}", value_name = "JSON")]
        payload: String,
        /// Jobs with a higher priority run first
        #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
        priority: i32,
    },
    /// Cancel a pending or running job
    Cancel {
        /// Kind of the job
        kind: String,
        /// Key of the job within its kind
        key: String,
    },
    /// Retry a dead or cancelled job, or all dead letters of a kind, with fresh attempts
    Redrive {
        /// Kind of the jobs
        kind: String,
        /// Key of the job within its kind; all dead letters if omitted
        key: Option<String>,
    },
    /// Remove finished jobs of a kind
    Purge {
        /// Kind of the job
        kind: String,
        /// State: done, dead or cancelled
        #[arg(long, value_parser = state)]
        state: State,
        /// Only jobs that ended longer ago than this, such as 90s, 15m or 1h30m
        #[arg(long, value_name = "TIME", value_parser = duration)]
        older_than: Duration,
    },
    /// Stop claiming jobs of a kind, in all processes; running jobs continue
    Pause {
        /// Kind of the jobs
        kind: String,
    },
    /// Claim jobs of a kind again
    Resume {
        /// Kind of the jobs
        kind: String,
    },
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

fn blocks(text: &str) -> Result<std::ops::RangeInclusive<u64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
    let range = range.filter(|(_, last)| *last < u64::MAX);
    range
        .map(|(first, last)| first..=last)
        .ok_or_else(|| "expected a block or a range of blocks, such as 100-199".to_owned())
}

fn state(name: &str) -> Result<State, String> {
    State::from_name(name).ok_or_else(|| {
        let names = State::ALL.map(State::name);
        format!("expected one of {}", names.join(", "))
    })
}

fn limit(text: &str) -> Result<usize, String> {
    let most = logmill_work::queue::LIST_MAX;
    let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
    limit.ok_or_else(|| format!("expected a number from 1 to {most}"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    let parsed = parsed.ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| "expected a duration such as 90s, 15m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_parsed() {
        for (text, seconds) in
            [("90s", 90), ("15m", 900), ("1h30m", 5_400), ("48h", 172_800), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "1", "soon", "-1h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
