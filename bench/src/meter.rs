//! Metering under load: usage over HTTP, queries during it, webhooks after it.

pub mod deliveries;
pub mod hooks;
pub mod load;
pub mod queries;
pub mod settings;
pub mod usage;
