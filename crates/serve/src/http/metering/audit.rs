//! The audit of stored usage in `/status`: its progress and the damaged records.
//!
//! Guarantees: the answer is bounded. Leaves to others: the audit ([`logmill_meter::audit`]).

use logmill_meter::period::format_time;
use serde_json::{Value, json};

use crate::one_line::brief;
use crate::usage::Usage;

/// Maximum number of damaged records listed.
const NAMED_MAX: usize = 20;

pub(in crate::http) async fn status_json(usage: &Usage) -> Value {
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
            tracing::warn!(error = brief(&error.chain()), "cannot read the audit of usage");
            json!({"error": "cannot be read; see the log for the reason"})
        }
    }
}
