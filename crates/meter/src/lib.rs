//! Metering: usage events become exact aggregates per customer and period, and signed webhooks.
//!
//! ```text
//!   event ─▶ Recorder ─▶ events, keys, partials ─▶ touched ─▶ due ─▶ aggregates ─▶ webhooks
//!                                   │
//!                                   └─▶ queries, thresholds
//! ```
//!
//! - [`event`]: checks received events; [`record`]: stores each once; [`Recorder`]: many at a time.
//! - [`Decimal`]: exact values; [`partial`]: mergeable summary of one series in fifteen minutes.
//! - [`period`]: buckets, calendars and periods, in any time zone.
//! - [`due`], [`aggregate`], [`alerts`]: what follows from usage; [`service`]: when.
//! - [`query`], [`list`], [`live`], [`trend`]: reads; [`correct`], [`recount`], [`mend`]: operator actions; [`audit`]:
//!   checks that stored usage is what was written.
//! - [`chains`]: usage of chains, and its correction when blocks are replaced.
//! - [`settings`]: event types, periods and limits; [`sources`]: which source each API key sends as; [`requests`]:
//!   repeated requests.
//! - [`webhooks`]: endpoints, messages and their deliveries.
//!
//! Guarantees: an acknowledged event counts once, however often it is sent and whichever process crashes. Numbers are
//! rounded only where they cannot be exact. Leaves to others: HTTP, chains, and where usage comes from.

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
pub mod mend;
mod meter;
#[cfg(test)]
mod naive;
mod names;
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
pub mod stored_event;
pub mod trend;
mod valid_times;
pub mod webhooks;

pub use decimal::Decimal;
pub use error::{Error, Result};
pub use meter::{Meter, Sizes};
pub use recorder::Recorder;
pub use series::OTHER;
pub use settings::Settings;
