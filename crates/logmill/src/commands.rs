//! Commands that have a file of their own below this one: `logmill verify` and `logmill repair`.
//!
//! Guarantees: those of each command. Leaves to others: the commands that share a module with what they control
//! ([`crate::jobs`], [`crate::index`], [`crate::meter`], [`crate::secrets`], [`crate::derive`]).

pub(crate) mod repair;
pub(crate) mod verify;
