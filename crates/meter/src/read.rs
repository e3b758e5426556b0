//! Reads for the API: figures of any time range, lists, values of periods in progress, and trends.
//!
//! Guarantees: nothing here writes, and every read is bounded. Leaves to others: authorization and encoding.

pub mod list;
pub mod live;
pub mod query;
pub mod trend;
