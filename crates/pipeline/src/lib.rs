//! From a chain to stored history: ingest, tip, finality, archive, and one view over all of it.
//!
//! | module | what |
//! |---|---|
//! | [`chain`] | [`Chain`]: read access to the stored blocks of one chain; [`View`]: a chain at one moment |
//! | [`process`] | [`process::Ingest`]: the work of one process for one chain, all of the below together |
//! | [`tip`] | blocks that are not final yet |
//! | [`ingest`] | the forward and the backward ingester |
//! | [`audit`], [`repair`] | checking stored blocks again, and fetching them again |
//! | [`recheck`] | damage found by processes that do not write |
//! | [`resolve`] | an operator's decision about a degraded index |
//! | [`mod@derive`], [`processors`] | tables derived from stored blocks |
//! | [`async_workers`] | data that tables need from nodes or the web, fetched range by range |
//! | [`observe`] | stored answers of nodes and web servers beyond blocks |
//! | `senders` | transaction senders, recovered from signatures |
//! | [`span`] | block ranges as JSON shows them |
//! | `stage` | [`Chain::stage`]: sets the tip without an ingester |
//! | [`uncompared`] | blocks stored before node fields were kept |
//! | [`block`] | conversion between a source's block and one of the log index |
//!
//! Guarantees: a view's answer is complete, or an error says which blocks are missing; listeners are notified of a
//! block after it is stored. Leaves to others: HTTP.

pub mod async_workers;
pub mod audit;
pub mod block;
pub mod chain;
pub mod derive;
mod error;
pub mod ingest;
pub mod observe;
pub mod process;
pub mod processors;
pub mod recheck;
mod record;
pub mod repair;
pub mod resolve;
mod senders;
pub mod sighting;
pub mod span;
mod stage;
pub mod tip;
pub mod uncompared;

pub use chain::{Chain, Change, View};
pub use error::{Error, Result};
pub use tip::Tip;
