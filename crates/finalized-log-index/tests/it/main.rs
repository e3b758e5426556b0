//! Tests of the log index as its users see it.
//!
//! The model of everything is a plain list of blocks and a scan over it.

mod chain;
mod differential;
mod world;
