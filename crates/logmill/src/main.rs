//! The program: arguments, configuration, logs, and one command.
//!
//! | file | role |
//! |---|---|
//! | [`cli`] | command line arguments |
//! | [`config`] | settings from defaults, file, environment and flags |
//! | [`stores`] | opens the configured stores: to serve, to read, to change; checks them before a start |
//! | [`server`] | `logmill run`: chains, usage, maintenance, and what serves them ([`logmill_serve`]) |
//! | [`commands`] | all other commands |
//! | [`control`] | the socket through which commands reach the server |
//! | [`job_kinds`] | which database has the jobs of a kind |
//! | [`tracing_setup`] | log lines on standard error |
//! | [`output`] | everything else that is written to the terminal |
//! | [`error`] | the error type, exit codes and hints |
//!
//! Guarantees: exit code 0 if the command succeeded, 1 if it failed, 2 if the command line or the configuration is
//! wrong. Leaves to others: everything else; this crate is the outermost.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use cli::{Cli, Command, ConfigArgs};
use config::{Config, ConfigSources};
use error::{Error, Result};

mod cli;
mod commands;
mod config;
mod control;
mod error;
mod job_kinds;
mod output;
mod server;
mod stores;
mod tracing_setup;

/// Returns unused memory to the system, SQLite's too; the system allocator keeps much of it in an arena per thread.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How long a process that ends waits for blocking work.
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
    let mut config = Config::load(&sources(cli.config, &cli.command))?;
    config.settings.accept_loss = cli.command.accepts_loss();
    tracing_setup::start(config.settings.log);
    if matches!(cli.command, Command::Run(_) | Command::Collect(_)) {
        config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { doing: "start the runtime", source })?;
    let outcome = runtime.block_on(run(cli.command, &config));
    // A read from a hanging disk must not keep the process from ending.
    runtime.shutdown_timeout(END_MAX);
    outcome
}

async fn run(command: Command, config: &Config) -> Result<()> {
    match command {
        Command::Run(_) => server::run(&config.settings).await,
        Command::Collect(args) => commands::collect::run(&args, &config.settings).await,
        Command::Verify(args) => commands::verify::run(&args, &config.settings).await,
        Command::Repair(args) => commands::repair::run(&args, &config.settings).await,
        Command::Rederive(args) => commands::rederive::run(&args, &config.settings).await,
        Command::Jobs(command) => commands::jobs::run(command, &config.settings).await,
        Command::Meter(command) => commands::meter::run(command, &config.settings).await,
        Command::Secrets(command) => commands::secrets::run(command, &config.settings).await,
        Command::Index(command) => commands::index::run(command, &config.settings).await,
        Command::Config(cli::Config::Check) => output::line(config.redacted_toml()?.trim_end()),
        Command::Config(cli::Config::Default) => output::line(config::DEFAULTS.trim_end()),
        Command::Preflight => commands::preflight::run(&config.settings).await,
        Command::Demo => commands::demo::run().await,
    }
}

fn sources(args: ConfigArgs, command: &Command) -> ConfigSources {
    let data = args.data.map(|folder| ("data".to_owned(), folder));
    let of_command = match command {
        Command::Run(run) => run.settings(),
        Command::Collect(collect) => collect.settings(),
        _ => Vec::new(),
    };
    let flags = args.set.into_iter().chain(data).chain(of_command).collect();
    ConfigSources { file: args.config, environment: environment(), flags }
}

/// The environment variables that are valid Unicode; those of Logmill always are.
#[expect(clippy::disallowed_methods, reason = "the one place where the environment comes in")]
fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}
