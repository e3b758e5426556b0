//! Metering over HTTP, from usage to corrected aggregates.

mod access;
mod aggregates;
mod corrections;
mod documented;
mod ground;
mod lists;
mod send;
mod stream;
