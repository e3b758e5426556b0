//! The program: arguments, configuration, logs, and one command.
//!
//! | file | what |
//! |---|---|
//! | [`cli`] | what can be asked |
//! | [`config`] | settings from defaults, file, environment and flags |
//! | [`stores`] | opening what is configured: to serve, to read, to change |
//! | [`server`] | `logmill run` |
//! | [`collect`] | `logmill collect` |
//! | [`preflight`] | what a start needs, tried first; `logmill preflight` |
//! | [`readiness`] | whether this process may be sent requests, and why not |
//! | [`chains`] | what the server does for the chain it follows |
//! | [`history`] | `logmill verify`, `logmill repair` |
//! | [`meter`] | usage: what the server does for it, and `logmill meter …` |
//! | [`secrets`] | keys that encrypt webhook secrets, and `logmill secrets …` |
//! | [`maintenance`] | what the server does on a schedule |
//! | [`control`] | the socket through which commands reach the server |
//! | [`http`] | HTTP: JSON-RPC, WebSockets, what operators ask |
//! | [`rpc`] | what Ethereum clients ask, answered from what is stored |
//! | [`jobs`] | `logmill jobs …` |
//! | [`index`] | `logmill index …` |
//! | [`demo`] | `logmill demo` |
//!
//! Guarantees: exit code 0 when the command did what it says, 1 when it could not, 2 when it or the
//! configuration is wrong. Leaves to others: everything else; this crate is the outermost.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use cli::{Cli, Command, Source};
use config::{Config, Given};
use error::{Error, Result};

mod chains;
mod cli;
mod collect;
mod config;
mod control;
mod demo;
mod derive;
mod error;
mod history;
mod http;
mod index;
mod jobs;
mod logs;
mod maintenance;
mod meter;
mod output;
mod preflight;
mod readiness;
mod rpc;
mod secrets;
mod server;
mod stores;
mod workers;

/// Gives memory back that is not used any longer, SQLite's too; the system's allocator keeps much of it in an arena for
/// each thread.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How long the end of the process waits for work that blocks a thread.
const END_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_closed_output() => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(cli: Cli) -> Result<()> {
    if let Command::Config(cli::Config::Default) = cli.command {
        return output::line(config::DEFAULTS.trim_end());
    }
    let mut config = Config::load(&given(cli.source, &cli.command))?;
    config.settings.accept_loss = cli.command.accepts_loss();
    logs::start(config.settings.log);
    if matches!(cli.command, Command::Run(_) | Command::Collect(_)) {
        config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { doing: "start the runtime", source })?;
    let outcome = runtime.block_on(run(cli.command, &config));
    // A read from a disk that hangs must not keep the process from ending.
    runtime.shutdown_timeout(END_MAX);
    outcome
}

async fn run(command: Command, config: &Config) -> Result<()> {
    match command {
        Command::Run(_) => server::run(&config.settings).await,
        Command::Collect(asked) => collect::run(&asked, &config.settings).await,
        Command::Verify(asked) => history::verify(&asked, &config.settings).await,
        Command::Repair(asked) => history::repair(&asked, &config.settings).await,
        Command::Rederive(asked) => derive::rederive(&asked, &config.settings).await,
        Command::Jobs(command) => jobs::run(command, &config.settings).await,
        Command::Meter(command) => meter::command::run(command, &config.settings).await,
        Command::Secrets(command) => secrets::run(command, &config.settings).await,
        Command::Index(command) => index::run(command, &config.settings).await,
        Command::Config(cli::Config::Check) => output::line(config.shown()?.trim_end()),
        Command::Config(cli::Config::Default) => output::line(config::DEFAULTS.trim_end()),
        Command::Preflight => preflight::run(&config.settings).await,
        Command::Demo => demo::run().await,
    }
}

fn given(source: Source, command: &Command) -> Given {
    let data = source.data.map(|folder| ("data".to_owned(), folder));
    let of_command = match command {
        Command::Run(run) => run.settings(),
        Command::Collect(collect) => collect.settings(),
        _ => Vec::new(),
    };
    let flags = source.set.into_iter().chain(data).chain(of_command).collect();
    Given { file: source.config, environment: environment(), flags }
}

/// The variables that are text; no other can be one of ours.
#[expect(clippy::disallowed_methods, reason = "the one place where the environment comes in")]
fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}
