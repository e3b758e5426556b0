//! Schemas of the paths outside the read API and metering: operators, JSON-RPC, fees, collected events.
//!
//! Guarantees: none beyond their text. Leaves to others: the paths that return them ([`super`]).

use serde_json::{Map, Value, json};

use crate::http::fees::rows::{FeeRow, FeeSum};
use crate::http::operation::{flag, object, text};

/// Schemas of requests and responses.
pub(super) fn all() -> Map<String, Value> {
    let string = || json!({"type": "string"});
    let all = json!({
        "About": object("Summary of the API.", &["service", "version", "openapi", "paths"], json!({
            "service": string(),
            "version": string(),
            "description": string(),
            "openapi": {"type": "string", "description": "path of the complete API description"},
            "paths": {"type": "array", "items": string()},
        })),
        "PlainError": object("Why a request failed.", &["error"], json!({
            "error": string(),
        })),
        "Health": object("The process is up.", &["status", "timestamp"], json!({
            "status": {"type": "string", "enum": ["ok"]},
            "timestamp": {"type": "string", "format": "date-time"},
        })),
        "Readiness": object("Readiness of the server or of one service.", &["ready", "reasons"], json!({
            "ready": {"type": "boolean"},
            "reasons": {"type": "array", "items": {"type": "object"}},
        })),
        "ServerStatus": object("Status of the server.", &["version", "ready", "chains"], json!({
            "version": string(),
            "uptime_seconds": {"type": "integer"},
            "ready": {"type": "boolean"},
            "reasons": {"type": "array", "items": {"type": "object"}},
            "services": {"type": "object"},
            "chains": {"type": "array", "items": object("A chain.", &["chain_id", "covered"], json!({
                "chain_id": {"type": "integer"},
                "covered": {
                    "type": "array",
                    "items": {"$ref": "#/components/schemas/Range"},
                },
            }))},
        })),
        "CollectedFees": list("Fees.", &FeeRow::schema()),
        "FeeSums": list("Sums of fees.", &FeeSum::schema()),
        "CollectedEvents": list("Rows of an event, keyed by column name.", &json!({
            "type": "object",
            "additionalProperties": true,
        })),
        "CollectedTables": object("Tables of collected events.", &["data"], json!({
            "data": {"type": "array", "items": object("A table.", &["chainId", "table", "columns"], json!({
                "chainId": {"type": "integer"},
                "table": string(),
                "columns": {"type": "array", "items": object("A column.", &["name", "type"], json!({
                    "name": string(),
                    "type": {"type": "string", "enum": ["integer", "text", "bytes", "amount", "address"]},
                }))},
                "blocks": {"type": "integer", "description": "number of collected blocks"},
                "lastBlock": {"type": ["integer", "null"], "description": "the newest collected block"},
            }))},
        })),
        "RpcCall": {
            "description": "A JSON-RPC 2.0 call, or a batch of them.",
            "type": ["object", "array"],
        },
        "RpcAnswer": {
            "description": "A JSON-RPC 2.0 answer, or a batch of them.",
            "type": ["object", "array"],
        },
    });
    all.as_object().cloned().unwrap_or_default()
}

fn list(about: &str, row: &Value) -> Value {
    object(
        about,
        &["data"],
        json!({
            "data": {"type": "array", "items": row},
            "pagination": {"type": "object"},
            "complete": flag(
                "false while the answer may contain rows of replaced blocks or of changed settings",
            ),
            "reason": text("why `complete` is false"),
        }),
    )
}
