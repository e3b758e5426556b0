//! The EVM source against a recorded chain, and over real sockets on loopback.
//!
//! Leaves to others: pools that fail and lie, which the tests of the chain crate play on a paused clock.

mod facts;
mod loopback;
mod recorded;
mod servers;

pub(crate) use recorded::RecordedNode;
