//! Blocks, where they come from, and the proof that they are whole.
//!
//! | module | what |
//! |---|---|
//! | [`block`] | a block with its transactions, receipts and logs; what of it is canonical bytes |
//! | [`sender`] | who sent a transaction, recovered once |
//! | [`sent`], [`facts`] | what transactions, headers and receipts say, whatever form they are kept in |
//! | [`mod@verify`] | the checks of a block against its own header |
//! | [`render`] | blocks as the JSON that Ethereum clients know |
//! | [`source`] | [`ChainSource`]: where blocks are asked for |
//! | [`evm`] | EVM chains, by the JSON-RPC of their nodes |
//! | [`era1`] | history files: read, verified, written |
//! | [`sim`] | a chain in process, made from a seed, with reorgs, faults and lies |
//! | [`blob_price`] | the price of blob gas |
//! | [`body`] | a block's body in RLP |
//! | [`stored`] | a block as bytes, for records and archives |
//!
//! Guarantees: a block says what was checked of it ([`Block::verified`]), and no source calls a block more verified
//! than it is. Leaves to others: which blocks to ask for, and keeping them.

pub mod blob_price;
pub mod block;
pub mod body;
pub mod era1;
mod error;
pub mod evm;
pub mod facts;
pub mod render;
pub mod sender;
pub mod sent;
mod signature;
pub mod sim;
pub mod source;
pub mod stored;
pub mod verify;

pub use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
pub use block::{
    Block, BlockRef, Header, Log, Outcome, Receipt, TOPICS_MAX, Topics, Transaction,
    TransactionForm,
};
pub use error::{Error, Result};
pub use sender::Sender;
pub use sent::Sent;
pub use source::{ChainInfo, ChainSource, Finality, FoundLog, Heads, LogFilter, NodeStatus};
pub use verify::{Mismatch, Verify, verify};
