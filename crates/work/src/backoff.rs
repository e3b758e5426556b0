//! Delays between attempts.
//!
//! Guarantees: pure, because the caller passes the entropy for the jitter. Leaves to others: how many attempts
//! there are ([`crate::Attempts`], the attempts of a job).

use std::time::Duration;

use logmill_io::Entropy;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// The same delay after every failure.
    Constant { wait: Duration },
    /// The delay grows by `step` with every failure.
    Linear { step: Duration },
    /// `first`, doubled by every failure up to `max`, then moved up or down by at most `jitter_percent`
    /// percent.
    Exponential { first: Duration, max: Duration, jitter_percent: u32 },
    /// The listed delays in order; the last one repeats. Jitter as for `Exponential`.
    Table { waits: Vec<Duration>, jitter_percent: u32 },
}

impl Backoff {
    /// Returns the delay after `failed` failed attempts.
    pub fn wait(&self, failed: i64, entropy: &dyn Entropy) -> Duration {
        let failed = u32::try_from(failed.max(1)).unwrap_or(u32::MAX);
        match self {
            Self::Constant { wait } => *wait,
            Self::Linear { step } => step.saturating_mul(failed),
            Self::Exponential { first, max, jitter_percent } => {
                let doublings = (failed - 1).min(31);
                let middle = first.saturating_mul(1 << doublings).min(*max);
                jittered(middle, *jitter_percent, entropy)
            }
            Self::Table { waits, jitter_percent } => {
                let last = waits.len().saturating_sub(1);
                let index = usize::try_from(failed - 1).unwrap_or(last).min(last);
                let middle = waits.get(index).copied().unwrap_or_default();
                jittered(middle, *jitter_percent, entropy)
            }
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::Exponential {
            first: Duration::from_secs(1),
            max: Duration::from_secs(600),
            jitter_percent: 20,
        }
    }
}

fn jittered(middle: Duration, percent: u32, entropy: &dyn Entropy) -> Duration {
    let spread = middle.saturating_mul(percent.min(100)) / 100;
    let width_ms = u64::try_from(spread.as_millis().saturating_mul(2)).unwrap_or(u64::MAX);
    let drawn = Duration::from_millis(entropy.below(width_ms.saturating_add(1)));
    (middle - spread).saturating_add(drawn)
}

#[cfg(test)]
mod tests {
    use logmill_io::SeededEntropy;

    use super::*;

    fn waits(backoff: &Backoff) -> Vec<u64> {
        let entropy = SeededEntropy::shared(1);
        let seconds = |failed| backoff.wait(failed, &*entropy).as_secs();
        [0, 1, 2, 3, 4, 40, i64::MAX].into_iter().map(seconds).collect()
    }

    #[test]
    fn delays_without_jitter() {
        let second = Duration::from_secs(1);
        let constant = Backoff::Constant { wait: 7 * second };
        assert_eq!(waits(&constant), [7; 7]);
        let linear = Backoff::Linear { step: 2 * second };
        assert_eq!(waits(&linear), [2, 2, 4, 6, 8, 80, 2 * u64::from(u32::MAX)]);
        let doubling = Backoff::Exponential { first: second, max: 60 * second, jitter_percent: 0 };
        assert_eq!(waits(&doubling), [1, 1, 2, 4, 8, 60, 60]);
        let table = Backoff::Table { waits: vec![5 * second, 300 * second], jitter_percent: 0 };
        assert_eq!(waits(&table), [5, 5, 300, 300, 300, 300, 300]);
        assert_eq!(waits(&Backoff::Table { waits: vec![], jitter_percent: 10 }), [0; 7]);
    }

    #[test]
    fn jitter_stays_within_its_percent_and_uses_both_sides() {
        let wait = Duration::from_secs(100);
        let backoff = Backoff::Exponential { first: wait, max: wait, jitter_percent: 20 };
        let entropy = SeededEntropy::shared(5);
        let drawn: Vec<u64> = (0..500).map(|_| backoff.wait(1, &*entropy).as_secs()).collect();
        assert!(drawn.iter().all(|wait| (80..=120).contains(wait)));
        assert!(drawn.iter().any(|wait| *wait < 90) && drawn.iter().any(|wait| *wait > 110));
    }
}
