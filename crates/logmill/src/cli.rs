//! The command line: what can be asked of the program.
//!
//! Guarantees: the help texts are those of `tests/it/help.txt`, which a test compares. Leaves to others: doing it.

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
    pub(crate) source: Source,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where settings come from.
#[derive(Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct Source {
    /// The config file [default: logmill.toml in the data folder, else in the current folder]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The data folder; same as --set data=DIR
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data: Option<String>,
    /// Any key of the configuration, such as work.slots=8; may be given several times
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the server until SIGINT or SIGTERM: follow a chain, fill its history, answer
    Run(Run),
    /// Collect one event of a contract into a table, and serve it, until SIGINT or SIGTERM
    Collect(Collect),
    /// Look at jobs and change them
    #[command(subcommand)]
    Jobs(Jobs),
    /// Ask the log index, look after it, and heal it
    #[command(subcommand)]
    Index(Index),
    /// Check stored blocks against their headers
    Verify(Verify),
    /// Have the server fetch stored final blocks again and replace what differs
    Repair(Repair),
    /// Derive the tables of a processor anew, from stored history, and then have them serve
    Rederive(Rederive),
    /// Count usage again, and have aggregates made
    #[command(subcommand)]
    Meter(Meter),
    /// Look after the keys that encrypt the secrets of webhooks
    #[command(subcommand)]
    Secrets(Secrets),
    /// Look at the configuration
    #[command(subcommand)]
    Config(Config),
    /// Try what a start needs: data folder, database, blob store, node
    Preflight,
    /// Show what exists so far, in a folder that is removed afterwards
    Demo,
}

impl Command {
    /// Whether databases that hold less than they once did are opened.
    pub(crate) fn accepts_loss(&self) -> bool {
        match self {
            Self::Run(run) => run.accept_loss,
            Self::Collect(collect) => collect.accept_loss,
            _ => false,
        }
    }
}

/// Settings that most people give by hand; each stands for a key of the configuration.
#[derive(Args, Default)]
pub(crate) struct Run {
    /// A node of the chain; may be given several times; same as --set chain.rpc_urls=URL,URL
    #[arg(long, value_name = "URL")]
    rpc_url: Vec<String>,
    /// Where to serve; same as --set server.listen=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The lowest block that is wanted; same as --set ingest.history_stop_height=N
    #[arg(long, value_name = "N")]
    start_block: Option<u64>,
    /// How many blocks on top make a block final; same as --set chain.confirmations=N
    #[arg(long, value_name = "N")]
    confirmations: Option<u64>,
    /// A folder of era1 files; same as --set chain.era1=DIR
    #[arg(long, value_name = "DIR")]
    era1: Option<String>,
    /// The id of the chain; same as --set chain.id=N
    #[arg(long, value_name = "N")]
    chain_id: Option<u64>,
    /// Start although a database holds less than it once did, and go on without what is missing
    #[arg(long)]
    pub(crate) accept_loss: bool,
}

impl Run {
    /// The keys that these flags stand for, and their values.
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
        let given = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        given.collect()
    }
}

#[derive(Args)]
pub(crate) struct Verify {
    /// The first block to check [default: the lowest that is stored]
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,
    /// The last block to check [default: the highest that is final]
    #[arg(long, value_name = "N")]
    pub(crate) to: Option<u64>,
    /// Of which chain; may be left out if there is only one
    #[arg(long, value_name = "ID")]
    pub(crate) chain: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Repair {
    /// The blocks to fetch again: one, or two with a dash between
    #[arg(value_name = "FIRST-LAST", value_parser = blocks)]
    pub(crate) range: std::ops::RangeInclusive<u64>,
    /// Of which chain; may be left out if there is only one
    #[arg(long, value_name = "ID")]
    pub(crate) chain: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Rederive {
    /// Which processor, such as token_worker
    #[arg(value_name = "PROCESSOR")]
    pub(crate) processor: String,
    /// Of which chain; may be left out if there is only one
    #[arg(long, value_name = "ID")]
    pub(crate) chain: Option<u64>,
    /// Do not wait until it is done
    #[arg(long)]
    pub(crate) detach: bool,
}

#[derive(Subcommand)]
pub(crate) enum Meter {
    /// Compare all that is known of usage with the events themselves, archived ones included
    ///
    /// On SQLite no server may run meanwhile.
    Recount {
        /// Mend what is wrong
        #[arg(long)]
        repair: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have aggregates made of all periods with new usage, those under way too
    Trigger,
    /// List as which source every API key sends usage
    ///
    /// On SQLite no server may run meanwhile.
    Sources {
        /// Accept the sources that server.keys gives to keys which have sent usage as others
        ///
        /// Events that were sent before and are sent again count twice then.
        #[arg(long)]
        force: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
pub(crate) enum Secrets {
    /// Encrypt all secrets of webhooks with the first key
    ///
    /// On SQLite no server may run meanwhile.
    Rekey,
    /// Print a new key
    Generate,
}

#[derive(Subcommand)]
pub(crate) enum Config {
    /// Check the configuration and print it as TOML, with secrets hidden
    Check,
    /// Print the default config file, with a sentence for every key
    Default,
}

/// Those that only look read the database beside the server; those that change something go through it, if it runs.
#[derive(Subcommand)]
pub(crate) enum Jobs {
    /// Count jobs by kind and state
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the jobs of a kind in a state, in the order of their keys
    List {
        /// What the job is for
        kind: String,
        /// pending, running, done, dead or cancelled
        #[arg(long, value_parser = state)]
        state: State,
        /// Start after this key
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// The most jobs to list
        #[arg(long, default_value_t = 100, value_parser = limit)]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one job, its place in the queue and how long it will probably take
    Show {
        /// What the job is for
        kind: String,
        /// Which job of its kind
        key: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Enqueue a job, or bring back one that is dead or cancelled
    Enqueue {
        /// What the job is for
        kind: String,
        /// Which job of its kind
        key: String,
        /// What the job needs, as JSON
        #[arg(long, default_value = "{}", value_name = "JSON")]
        payload: String,
        /// Higher goes first
        #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
        priority: i32,
    },
    /// Take a job that is pending or running out of the queue
    Cancel {
        /// What the job is for
        kind: String,
        /// Which job of its kind
        key: String,
    },
    /// Give a dead or cancelled job, or all dead letters of a kind, their attempts again
    Redrive {
        /// What the jobs are for
        kind: String,
        /// Which job of its kind; all dead letters if none is named
        key: Option<String>,
    },
    /// Remove finished jobs of a kind
    Purge {
        /// What the job is for
        kind: String,
        /// done, dead or cancelled
        #[arg(long, value_parser = state)]
        state: State,
        /// Only those that ended longer ago than this, such as 90s, 15m or 1h30m
        #[arg(long, value_name = "TIME", value_parser = duration)]
        older_than: Duration,
    },
    /// Stop claims of a kind, in all processes; jobs that run go on
    Pause {
        /// What the jobs are for
        kind: String,
    },
    /// Allow claims of a kind again
    Resume {
        /// What the jobs are for
        kind: String,
    },
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("a key, an equals sign and a value are needed")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

fn blocks(text: &str) -> Result<std::ops::RangeInclusive<u64>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
    let range = range.filter(|(_, last)| *last < u64::MAX);
    range
        .map(|(first, last)| first..=last)
        .ok_or_else(|| "blocks such as 100-199 are needed".to_owned())
}

fn state(name: &str) -> Result<State, String> {
    State::from_name(name).ok_or_else(|| {
        let names = State::ALL.map(State::name);
        format!("one of {} is needed", names.join(", "))
    })
}

fn limit(text: &str) -> Result<usize, String> {
    let most = logmill_work::queue::LIST_MAX;
    let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
    limit.ok_or_else(|| format!("a number from 1 to {most} is needed"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    let parsed = parsed.ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| "a time such as 90s, 15m or 1h30m is needed".to_owned())
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
    fn times_are_read() {
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
