//! From a chain to stored history: ingest, tip, finality, archive, and one view over all of it.
//!
//! | module | what |
//! |---|---|
//! | [`chain`] | [`Chain`]: what is stored of one chain, to be read |
//! | [`view`] | [`View`]: all of it at one moment, tip and finalized history joined |
//! | [`tip`] | blocks that are not final yet |
//! | [`ingest`] | the forward and the backward ingester |
//! | [`audit`], [`repair`] | what is stored, checked again, and fetched again |
//! | [`mod@derive`], [`processors`] | tables derived from what is stored |
//! | [`async_workers`] | what tables need of a node or the web, range by range |
//! | [`observe`] | what a node or the web said beyond blocks |
//! | `senders` | who sent transactions, by their signatures |
//! | `stage` | a tip that is set from outside: [`Chain::stage`] |
//! | [`block`] | how a block of a source becomes one of the log index, and comes back |
//!
//! Guarantees: what a view answers is whole, or an error says what is missing; listeners hear of a block after it is
//! stored. Leaves to others: HTTP.

pub mod async_workers;
pub mod audit;
pub mod block;
pub mod chain;
pub mod derive;
mod error;
pub mod ingest;
pub mod observe;
pub mod processors;
mod record;
pub mod repair;
mod senders;
pub mod sighting;
mod stage;
pub mod tip;
pub mod view;

pub use chain::{Chain, Change};
pub use error::{Error, Result};
pub use tip::Tip;
pub use view::View;
