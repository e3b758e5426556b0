//! Logs: lines with fields, to standard error.
//!
//! Guarantees: standard output is left to answers. Leaves to others: what is logged, which is where an error ends.

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;

use crate::config::{Format, Level, Log};

/// Starts logging, once for the process; panics are logged like everything else.
pub(crate) fn start(log: Log) {
    let level = match log.level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    match log.format {
        Format::Text => subscriber.with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => subscriber.json().flatten_event(true).init(),
    }
    if !matches!(log.level, Level::Off) {
        std::panic::set_hook(Box::new(|panic| {
            let said = panic.payload_as_str().unwrap_or("no message");
            let place = panic.location().map(ToString::to_string);
            tracing::error!(said, place, "panicked");
        }));
    }
}
