//! The server with third-party programs: a node that it follows, and clients.
//!
//! Guarantees: the server's answers equal the node's, through growth, reorganizations, crashes and restarts, and
//! unmodified clients see no difference. Where a node deviates from others, the deviation is named beside the
//! comparison. Leaves to others: the parts of the server by themselves.

mod answers;
mod anvil_chain;
mod clients;
mod crashes;
mod derived;
mod impersonated;
mod market;
mod openapi;
mod reorgs;
mod replaced;
mod replaced_usage;
mod restarts;
mod tokens;
mod usage;
