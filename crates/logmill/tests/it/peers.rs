//! The server beside programs that others wrote: a node that it follows, clients that ask it.
//!
//! Guarantees: what we answer is what the node answers, through growth, reorganizations, crashes and restarts, and
//! clients that know nothing of us can not tell the difference. Where a node deviates from the others, the deviation
//! is named beside the comparison. Leaves to others: the parts of the server by themselves.

mod answers;
mod clients;
mod crashes;
mod derived;
mod market;
mod reorgs;
mod replaced;
mod replaced_usage;
mod restarts;
mod scene;
mod tokens;
mod usage;
