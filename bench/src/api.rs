//! The benchmark of the read API over HTTP on loopback: a simulated chain, its tables, and the server on them.
//!
//! | module | what |
//! |---|---|
//! | [`draw`] | accounts, tokens and transactions that exist, as often as they take part in transfers |
//! | [`endpoint`] | what is asked, and what the answer must be |
//! | [`report`] | the result as JSON and as a table |

pub mod draw;
pub mod endpoint;
pub mod report;
pub mod settings;
