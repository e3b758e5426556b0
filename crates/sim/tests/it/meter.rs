//! Metering on both engines: against a naive fold, under faults, and in several processes.

mod chains;
mod crashes;
mod model;
mod webhooks;
mod world;
