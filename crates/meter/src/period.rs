//! Periods: buckets of fifteen minutes, and the calendar periods that are made of them.
//!
//! Guarantees: (being written). Leaves to others: what is counted in a period.

use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The kinds of periods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeriodKind {
    /// An hour.
    Hourly,
    /// A day.
    Daily,
    /// A week of ISO 8601, from Monday on.
    Weekly,
    /// A month.
    Monthly,
    /// A year.
    Yearly,
}

impl PeriodKind {
    /// Refuses a kind that does not fit the grid of buckets.
    pub fn check(&self) -> Result<()> {
        Ok(())
    }
}
