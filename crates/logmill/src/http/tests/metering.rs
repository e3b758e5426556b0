//! Metering over HTTP, from usage to corrected aggregates.

mod access;
mod aggregates;
mod batches;
mod corrections;
mod damage;
mod documented;
mod ground;
mod hooks;
mod lists;
mod naive;
mod operations;
mod queries;
mod send;
mod stream;
