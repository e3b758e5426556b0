//! Metering: usage events become exact aggregates per customer and period, and signed webhooks.
//!
//! - [`decimal`]: exact numbers.
//! - [`partial`]: what is known of one meter in one bucket, and what a period says when buckets are merged.
//! - [`period`]: buckets, calendars and periods, in any time zone.
//! - [`settings`]: event types, periods and limits.
//! - [`webhooks`]: endpoints, messages and their deliveries.
//!
//! Guarantees: an event that was acknowledged counts once, however often it is sent and whoever dies in the middle;
//! no number is rounded that can be exact. Leaves to others: HTTP, chains, and where usage comes from.

pub mod decimal;
mod error;
#[cfg(test)]
mod naive;
pub mod partial;
pub mod period;
pub mod settings;
pub mod webhooks;

pub use decimal::Decimal;
pub use error::{Error, Result};
