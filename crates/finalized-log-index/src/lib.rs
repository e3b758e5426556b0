//! An exact, verified index of finalized EVM logs.

pub mod error;
mod filter;
mod types;

pub use error::{Error, Result};
pub use filter::{Blocks, Filter};
pub use types::*;
pub use alloy_primitives::{Address, B256, Bytes};
