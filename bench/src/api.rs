//! The benchmark of the read API over HTTP on loopback: a simulated chain, its tables, and the server on them.
//!
//! | module | content |
//! |---|---|
//! | [`draw`] | existing accounts, tokens and transactions, as often as they take part in transfers |
//! | [`endpoint`] | the requests, and checks of the answers |
//! | [`report`] | the result as JSON and as a table |

pub mod draw;
pub mod endpoint;
pub mod report;
pub mod settings;
