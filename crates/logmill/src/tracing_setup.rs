//! Logging: lines with fields, to standard error.
//!
//! Guarantees: standard output is reserved for results. Leaves to others: what is logged. An error is
//! logged where it is handled.

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;

use crate::config::{Format, Level, Log};

/// Starts logging, once per process; panics are logged like everything else.
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
            let reason = panic.payload_as_str().unwrap_or("no message");
            let location = panic.location().map(ToString::to_string);
            tracing::error!(reason, location, "panicked");
        }));
    }
}
