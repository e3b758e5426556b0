//! Commands other than `logmill run`, a file each.
//!
//! Guarantees: those of each command. Leaves to others: their arguments ([`crate::cli`]).

pub(crate) mod collect;
pub(crate) mod demo;
pub(crate) mod index;
pub(crate) mod jobs;
pub(crate) mod meter;
pub(crate) mod preflight;
pub(crate) mod rederive;
pub(crate) mod repair;
pub(crate) mod secrets;
pub(crate) mod verify;
