//! Times that are in no period: before a zone had a standard offset, or at the ends of the calendar.
//!
//! Guarantees: every recorded event has a period of every kind that is aggregated or watched. Each bucket is checked
//! once. Leaves to others: which times are too early or too late.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use logmill_io::Timestamp;

use crate::period::{Bucket, Calendar};
use crate::settings::Settings;

/// Maximum number of cached buckets: almost three years.
const FINE_MAX: usize = 100_000;

/// Buckets that have a period of every kind.
#[derive(Debug, Default)]
pub(crate) struct ValidTimes(Mutex<HashSet<i64>>);

impl ValidTimes {
    /// Why nothing can be recorded at a moment; `None` if it can.
    pub(crate) fn refusal(
        &self,
        settings: &Settings,
        calendar: &Calendar,
        time: Timestamp,
    ) -> Option<String> {
        let bucket = Bucket::of(time);
        let valid = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if valid().contains(&bucket.0) {
            return None;
        }
        let watched = settings.alerts.iter().map(|rule| &rule.period);
        for kind in settings.periods.iter().chain(watched) {
            if let Err(error) = calendar.period_at(kind, bucket.start()) {
                return Some(format!("timestamp is in no {} period: {error}", kind.name()));
            }
        }
        let mut valid = valid();
        if valid.len() >= FINE_MAX {
            valid.clear();
        }
        valid.insert(bucket.0);
        None
    }
}
