//! What `/status` says of stored usage: how far its audit is, and what is damaged.
//!
//! Guarantees: the answer is bounded. Leaves to others: the audit ([`logmill_meter::audit`]).

use logmill_meter::period::format_time;
use serde_json::{Value, json};

use crate::meter::Usage;
use crate::output;

/// How many damaged records are named.
const NAMED_MAX: usize = 20;

/// The audit of usage, as `/status` shows it.
pub(in crate::http) async fn shown(usage: &Usage) -> Value {
    match usage.meter.audit_status().await {
        Ok(status) => json!({
            "events_checked": status.checked,
            "events_without_checksum": status.unchecked,
            "rounds": status.rounds,
            "last_round_ended": status.round_ended.map(format_time),
            "damaged": status.damaged_total,
            "damaged_records": status
                .damaged
                .iter()
                .take(NAMED_MAX)
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        }),
        Err(error) => {
            tracing::warn!(error = output::brief(&error.chain()), "usage cannot be read");
            json!({"error": "usage cannot be read; the log says why"})
        }
    }
}
