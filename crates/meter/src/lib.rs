//! Metering: usage events become exact aggregates per customer and period, and signed webhooks.
//!
//! ```text
//!   event ─▶ Recorder ─▶ events, keys, partials ─▶ touched ─▶ due ─▶ aggregates ─▶ webhooks
//!                                   │
//!                                   └─▶ queries, thresholds
//! ```
//!
//! - [`event`]: what people send, checked; [`record`]: kept, once; [`Recorder`]: many at a time.
//! - [`Decimal`]: exact values; [`partial`]: what is known of one series in fifteen minutes, mergeable.
//! - [`period`]: buckets, calendars and periods, in any time zone.
//! - [`due`], [`aggregate`], [`alerts`]: what follows from usage; [`service`]: when.
//! - [`query`], [`list`], [`live`]: what people ask; [`correct`], [`recount`]: what operators do; [`audit`]: whether
//!   what is stored is what was written.
//! - [`chains`]: usage of chains, and its correction when blocks are replaced.
//! - [`settings`]: event types, periods and limits; [`sources`]: as who API keys send; [`requests`]: repeated ones.
//! - [`webhooks`]: endpoints, messages and their deliveries.
//!
//! Guarantees: an event that was acknowledged counts once, however often it is sent and whoever dies in the middle;
//! no number is rounded that can be exact. Leaves to others: HTTP, chains, and where usage comes from.

pub mod aggregate;
pub mod alerts;
mod archive;
pub mod audit;
pub mod chains;
mod checksum;
pub mod correct;
pub mod decimal;
pub mod due;
mod error;
pub mod event;
mod figures;
mod keys;
pub mod list;
pub mod live;
mod meter;
#[cfg(test)]
mod naive;
pub mod partial;
mod partials;
pub mod period;
mod places;
pub mod query;
pub mod record;
mod recorder;
pub mod recount;
pub mod requests;
mod schema;
mod series;
pub mod service;
pub mod settings;
pub mod sources;
pub mod stored;
mod times;
pub mod webhooks;

pub use decimal::Decimal;
pub use error::{Error, Result};
pub use meter::{Meter, Sizes};
pub use recorder::Recorder;
pub use series::OTHER;
pub use settings::Settings;
