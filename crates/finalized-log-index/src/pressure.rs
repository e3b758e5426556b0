//! How much garbage there is, compared with the guardrails.
//!
//! Guarantees: the worst kind of garbage decides. Leaves to others: counting it ([`crate::gc`]), and slowing ingest
//! down ([`crate::writer`]).

use crate::settings::Guardrails;

/// Amount of garbage at the last count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pressure {
    /// Percentage of its limit that the worst kind has reached; above 100 ingest is throttled.
    pub(crate) percent: u64,
}

impl Pressure {
    pub(crate) fn of(limits: &Guardrails, chunk_bytes: u64, changes: u64, tail_keys: u64) -> Self {
        let percent = |left: u64, max: u64| left.saturating_mul(100) / max.max(1);
        let percent = percent(chunk_bytes, limits.max_orphan_chunk_bytes)
            .max(percent(changes, limits.max_orphan_manifest_segments))
            .max(percent(tail_keys, limits.max_stale_tail_keys));
        Self { percent }
    }

    pub(crate) fn is_high(self) -> bool {
        self.percent > 100
    }
}
