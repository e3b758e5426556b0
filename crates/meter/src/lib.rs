//! Metering: usage events become exact aggregates per customer and period, and signed webhooks.
//!
//! - [`decimal`]: exact numbers.
//! - [`partial`]: what is known of one meter in one bucket, and what a period says when buckets are merged.
//! - [`period`]: buckets, calendars and periods, in any time zone.
//! - [`due`], [`aggregate`], [`alerts`]: what follows from usage; [`service`]: when.
//! - [`correct`], [`recount`]: what operators do.
//! - [`settings`]: event types, periods and limits.
//! - [`webhooks`]: endpoints, messages and their deliveries.
//!
//! Guarantees: an event that was acknowledged counts once, however often it is sent and whoever dies in the middle;
//! no number is rounded that can be exact. Leaves to others: HTTP, chains, and where usage comes from.

pub mod decimal;
mod error;
pub mod partial;
pub mod period;
pub mod record;
pub mod recount;
mod recorder;
mod schema;
mod series;
pub mod service;
pub mod settings;
pub mod stored;
pub mod webhooks;

pub use decimal::Decimal;
pub use error::{Error, Result};
pub use meter::Meter;
pub use recorder::Recorder;
pub use series::OTHER;
pub use settings::Settings;
