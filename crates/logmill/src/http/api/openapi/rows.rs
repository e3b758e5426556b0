//! Schemas of lists of rows: fees, their sums, and collected events.
//!
//! Guarantees: none beyond their text. Leaves to others: the paths that return them ([`super::others`]).

use serde_json::{Map, Value, json};

pub(super) fn object(about: &str, required: &[&str], properties: Value) -> Value {
    let mut object = json!({"type": "object", "description": about, "required": required});
    object["properties"] = properties;
    object
}

pub(super) fn list(about: &str, row: &Value) -> Value {
    object(
        about,
        &["data"],
        json!({
            "data": {"type": "array", "items": row},
            "pagination": {"type": "object"},
            "complete": {
                "type": "boolean",
                "description": "false while the answer may contain rows of replaced blocks or of changed settings",
            },
            "reason": {"type": "string", "description": "why `complete` is false"},
        }),
    )
}

/// Fields that describe the token of a row.
fn of_token() -> Map<String, Value> {
    let text = |about: &str| json!({"type": "string", "description": about});
    Map::from_iter([
        ("chainId".to_owned(), json!({"type": "integer", "description": "chain id"})),
        ("eventIntegrator".to_owned(), text("address of the integrator")),
        ("token".to_owned(), text("the token; the zero address for ether")),
        (
            "symbol".to_owned(),
            json!({
                "type": ["string", "null"],
                "description": "symbol that the token reports, if it was fetched; untrusted text",
            }),
        ),
        (
            "decimals".to_owned(),
            json!({"type": ["integer", "null"], "description": "decimals of the amounts, if they were fetched"}),
        ),
        ("integratorFee".to_owned(), text("the integrator's share, in the smallest unit")),
        ("lifiFee".to_owned(), text("LI.FI's share, in the smallest unit")),
    ])
}

pub(super) fn fee() -> Value {
    let mut fields = of_token();
    let text = |about: &str| json!({"type": "string", "description": about});
    fields.extend([
        ("transactionHash".to_owned(), text("transaction hash")),
        ("logIndex".to_owned(), json!({"type": "integer"})),
        ("blockNumber".to_owned(), json!({"type": "integer"})),
        ("createdAt".to_owned(), text("time of the block")),
        (
            "final".to_owned(),
            json!({"type": "boolean", "description": "whether the block is final"}),
        ),
    ]);
    let names = ["chainId", "transactionHash", "logIndex", "blockNumber", "token", "final"];
    object("A collected fee.", &names, fields.into())
}

pub(super) fn fee_sum() -> Value {
    let mut fields = of_token();
    let period = json!({"type": "string", "description": "the period: `all`, a month or a day"});
    fields.insert("period".to_owned(), period);
    fields.insert("events".to_owned(), json!({"type": "integer"}));
    object("A sum of fees.", &["chainId", "period", "token", "events"], fields.into())
}
