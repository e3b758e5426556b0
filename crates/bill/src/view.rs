//! A viewer's side of a bill: directions of the lines, and the net change of each asset.
//!
//! Guarantees: computed from the document alone, never part of it; exact. Leaves to others: which viewer asks.

use std::collections::BTreeMap;

use alloy_primitives::U512;
use serde::Serialize;

use crate::document::{Amount, BillDocument};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    pub viewer: String,
    /// One per line of the document.
    pub directions: Vec<Direction>,
    pub changes: Vec<Change>,
    /// Whether the viewer paid the network fee, which is then part of the change of `native`.
    pub pays_network_fee: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    In,
    Out,
    /// From the viewer to the viewer.
    Within,
    /// Between others.
    None,
}

/// Net change of an asset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub asset: String,
    pub received: Amount,
    pub spent: Amount,
    /// Decimal text with a sign if negative.
    pub net: String,
}

impl View {
    /// The view of an address, in the form that the document uses.
    pub fn of(document: &BillDocument, viewer: &str) -> Self {
        let viewer = viewer.to_ascii_lowercase();
        let mut changes: BTreeMap<&str, (U512, U512)> = BTreeMap::new();
        let mut directions = Vec::with_capacity(document.lines.len());
        for line in &document.lines {
            let direction = match (line.to == viewer, line.from == viewer) {
                (true, true) => Direction::Within,
                (true, false) => Direction::In,
                (false, true) => Direction::Out,
                (false, false) => Direction::None,
            };
            directions.push(direction);
            if matches!(direction, Direction::In | Direction::Within) {
                changes.entry(&line.asset).or_default().0 += line.amount.0;
            }
            if matches!(direction, Direction::Out | Direction::Within) {
                changes.entry(&line.asset).or_default().1 += line.amount.0;
            }
        }
        let fee = &document.network_fee;
        let pays_network_fee = fee.payer.as_deref() == Some(viewer.as_str());
        if let Some(total) = fee.total.filter(|_| pays_network_fee) {
            changes.entry("native").or_default().1 += total.0;
        }
        let changes = changes.into_iter().map(|(asset, (received, spent))| Change {
            asset: asset.to_owned(),
            received: Amount(received),
            spent: Amount(spent),
            net: match received.checked_sub(spent) {
                Some(gain) => gain.to_string(),
                None => format!("-{}", spent - received),
            },
        });
        Self { directions, changes: changes.collect(), pays_network_fee, viewer }
    }
}
