//! An exact, verified index of finalized EVM logs.

pub mod error;
mod filter;
mod types;
pub mod workload;

pub use alloy_primitives::{Address, B256, Bytes};
pub use error::{Error, Result};
pub use filter::{Blocks, Filter};
pub use types::*;
