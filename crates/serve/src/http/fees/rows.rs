//! Rows of `/fees` and `/fees/summary`: their JSON, their CSV columns and their schema.
//!
//! Guarantees: the seed's format, with more fields. Leaves to others: reading them ([`super::answer`]).

use alloy_primitives::{Address, B256};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::http::operation::{flag, maybe, number, object, text};

/// A collected fee.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct FeeRow {
    pub(super) chain_id: u64,
    pub(super) transaction_hash: B256,
    pub(super) log_index: i64,
    pub(super) block_number: i64,
    /// Time of the block; the only time that a derived table contains.
    pub(super) created_at: String,
    #[serde(rename = "final")]
    pub(super) is_final: bool,
    #[serde(flatten)]
    pub(super) shares: FeeShares,
}

/// A sum of fees.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct FeeSum {
    pub(super) chain_id: u64,
    pub(super) period: String,
    pub(super) events: u64,
    #[serde(flatten)]
    pub(super) shares: FeeShares,
}

/// The shares of a fee, and the token they are in.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FeeShares {
    /// With its checksum (EIP-55).
    #[serde(serialize_with = "checksummed")]
    pub(super) event_integrator: Address,
    #[serde(serialize_with = "checksummed")]
    pub(super) token: Address,
    pub(super) symbol: Option<String>,
    pub(super) decimals: Option<i64>,
    pub(super) integrator_fee: String,
    pub(super) lifi_fee: String,
}

fn checksummed<S: Serializer>(address: &Address, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(address)
}

impl FeeRow {
    /// CSV columns.
    pub(super) const COLUMNS: &[&str] = &[
        "chainId",
        "blockNumber",
        "logIndex",
        "transactionHash",
        "createdAt",
        "final",
        "eventIntegrator",
        "token",
        "symbol",
        "decimals",
        "integratorFee",
        "lifiFee",
    ];

    pub(in crate::http) fn schema() -> Value {
        let mut fields = FeeShares::schema();
        fields["transactionHash"] = text("transaction hash");
        fields["logIndex"] = json!({"type": "integer"});
        fields["blockNumber"] = json!({"type": "integer"});
        fields["createdAt"] = text("time of the block");
        fields["final"] = flag("whether the block is final");
        let names = ["chainId", "transactionHash", "logIndex", "blockNumber", "token", "final"];
        object("A collected fee.", &names, fields)
    }
}

impl FeeSum {
    /// CSV columns.
    pub(super) const COLUMNS: &[&str] = &[
        "chainId",
        "period",
        "eventIntegrator",
        "token",
        "symbol",
        "decimals",
        "events",
        "integratorFee",
        "lifiFee",
    ];

    pub(in crate::http) fn schema() -> Value {
        let mut fields = FeeShares::schema();
        fields["period"] = text("the period: `all`, a month or a day");
        fields["events"] = json!({"type": "integer"});
        object("A sum of fees.", &["chainId", "period", "token", "events"], fields)
    }
}

impl FeeShares {
    /// The fields of every row, with the chain id.
    fn schema() -> Value {
        json!({
            "chainId": number("chain id"),
            "eventIntegrator": text("address of the integrator"),
            "token": text("the token; the zero address for ether"),
            "symbol": maybe(
                "string",
                "symbol that the token reports, if it was fetched; untrusted text",
            ),
            "decimals": maybe("integer", "decimals of the amounts, if they were fetched"),
            "integratorFee": text("the integrator's share, in the smallest unit"),
            "lifiFee": text("LI.FI's share, in the smallest unit"),
        })
    }
}
