//! Metering over HTTP, from usage to corrected aggregates.

mod access;
mod aggregates;
mod corrections;
mod documented;
mod ground;
mod hooks;
mod lists;
mod queries;
mod send;
mod stream;
