//! Times that are in no period: before zones were agreed on, or at the ends of the calendar.
//!
//! Guarantees: what is recorded has a period of every kind that is aggregated or watched. A quarter of an hour is
//! looked at once. Leaves to others: which times are too early or too late.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use logmill_io::Timestamp;

use crate::meter::Meter;
use crate::period::Bucket;

/// How many quarters of an hour are remembered: almost three years.
const FINE_MAX: usize = 100_000;

/// Quarters of an hour with a period of every kind.
#[derive(Debug, Default)]
pub(crate) struct FineTimes(Mutex<HashSet<i64>>);

impl Meter {
    /// Why nothing can be recorded of a moment; none if it can.
    pub(crate) fn refused_time(&self, time: Timestamp) -> Option<String> {
        let bucket = Bucket::of(time);
        let fine = || self.fine_times.0.lock().unwrap_or_else(PoisonError::into_inner);
        if fine().contains(&bucket.0) {
            return None;
        }
        let watched = self.settings.alerts.iter().map(|rule| &rule.period);
        for kind in self.settings.periods.iter().chain(watched) {
            if let Err(error) = self.calendar.period_at(kind, bucket.start()) {
                return Some(format!("timestamp is in no {} period: {error}", kind.name()));
            }
        }
        let mut fine = fine();
        if fine.len() >= FINE_MAX {
            fine.clear();
        }
        fine.insert(bucket.0);
        None
    }
}
