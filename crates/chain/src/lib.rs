//! Blocks: their types, the sources that fetch them, and the checks that they are complete and consistent.
//!
//! | module | what |
//! |---|---|
//! | [`block`] | a block with its transactions, receipts and logs; which parts are canonical bytes |
//! | [`sender`] | the sender of a transaction, recovered from its signature once |
//! | [`transaction_view`], [`facts`] | typed fields of transactions, headers and receipts, for both stored forms |
//! | [`mod@verify`] | the checks of a block against its own header |
//! | [`render`] | blocks as the JSON that Ethereum clients know |
//! | [`source`] | [`BlockSource`], [`ChainSource`], [`NodeSource`]: the interfaces of a chain |
//! | [`evm`] | EVM chains, through the JSON-RPC of their nodes |
//! | [`era1`] | history files: read, verified, written |
//! | [`sim`] | a simulated chain made from a seed, with reorgs, faults and false blocks |
//! | [`fee_market`], [`blob_price`] | the price of gas and of blob gas |
//! | [`body`] | a block's body in RLP |
//! | [`node_fields`] | values that a node reports and that do not follow from the block |
//! | [`profile`] | what is known about a chain from its id |
//! | [`stored`] | a block encoded as bytes, for records and archives |
//!
//! Guarantees: every block records what was checked of it ([`Block::verified`]), and no source marks a block as more
//! verified than it is. Leaves to others: which blocks to fetch, and storing them.

pub mod blob_price;
pub mod block;
pub mod body;
pub mod era1;
mod error;
pub mod evm;
pub mod facts;
pub mod fee_market;
mod json_fields;
mod mismatch;
pub mod node_fields;
pub mod profile;
pub mod render;
pub mod sender;
mod signature;
pub mod sim;
pub mod source;
pub mod stored;
mod transaction_json;
pub mod transaction_view;
pub mod verify;
mod verify_level;

pub use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
pub use block::{
    Block, BlockRef, Header, Log, Outcome, Receipt, TOPICS_MAX, Topics, Transaction,
    TransactionForm,
};
pub use error::{Error, Result};
pub use mismatch::Mismatch;
pub use node_fields::{KeptFields, NodeFields};
pub use profile::{ChainProfile, Family};
pub use sender::Sender;
pub use source::{
    BlockSource, ChainInfo, ChainSource, ChecksStatus, Finality, FoundLog, Heads, LogFilter,
    NodeSource, NodeStatus,
};
pub use transaction_view::TransactionView;
pub use verify::{verify, verify_for};
pub use verify_level::VerifyLevel;
