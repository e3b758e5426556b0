//! Causes: everything that makes a process not ready, by a stable code.
//!
//! Guarantees: a code never changes its meaning, and `docs/readiness.md` has a row for each, which a test compares.
//! Leaves to others: detecting causes ([`super`] and its modules).

use serde::Serialize;

/// A service whose readiness a load balancer can query separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// JSON-RPC and stored chain data.
    Rpc,
    /// Derived and collected tables.
    Tables,
    Meter,
}

impl Service {
    pub const ALL: [Self; 3] = [Self::Rpc, Self::Tables, Self::Meter];

    pub fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Tables => "tables",
            Self::Meter => "meter",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Starting,
    Stopping,
    NotServed,
    JobsStoreSilent,
    IndexStoreSilent,
    TablesStoreSilent,
    MeterStoreSilent,
    MeterNotWritable,
    BlobsSilent,
    DiskLow,
    ChainUnknown,
    NodeSilent,
    HeadNotSeen,
    Behind,
    HeadWentBack,
    IngestStopped,
    IndexDegraded,
    BlocksDamaged,
    ChainUnreadable,
    TablesBehind,
    TablesReplaced,
    TablesKept,
    DeriveFailing,
    UsageNotRelayed,
    UsageDamaged,
    CollectorStopped,
    CollectorIncomplete,
    CollectorBehind,
}

impl Cause {
    pub const ALL: [Self; 28] = [
        Self::Starting,
        Self::Stopping,
        Self::NotServed,
        Self::JobsStoreSilent,
        Self::IndexStoreSilent,
        Self::TablesStoreSilent,
        Self::MeterStoreSilent,
        Self::MeterNotWritable,
        Self::BlobsSilent,
        Self::DiskLow,
        Self::ChainUnknown,
        Self::NodeSilent,
        Self::HeadNotSeen,
        Self::Behind,
        Self::HeadWentBack,
        Self::IngestStopped,
        Self::IndexDegraded,
        Self::BlocksDamaged,
        Self::ChainUnreadable,
        Self::TablesBehind,
        Self::TablesReplaced,
        Self::TablesKept,
        Self::DeriveFailing,
        Self::UsageNotRelayed,
        Self::UsageDamaged,
        Self::CollectorStopped,
        Self::CollectorIncomplete,
        Self::CollectorBehind,
    ];

    /// Stable name, for machines.
    pub fn code(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Stopping => "stopping",
            Self::NotServed => "not_served",
            Self::JobsStoreSilent => "jobs_store_silent",
            Self::IndexStoreSilent => "index_store_silent",
            Self::TablesStoreSilent => "tables_store_silent",
            Self::MeterStoreSilent => "meter_store_silent",
            Self::MeterNotWritable => "meter_not_writable",
            Self::BlobsSilent => "blobs_silent",
            Self::DiskLow => "disk_low",
            Self::ChainUnknown => "chain_unknown",
            Self::NodeSilent => "node_silent",
            Self::HeadNotSeen => "head_not_seen",
            Self::Behind => "behind",
            Self::HeadWentBack => "head_went_back",
            Self::IngestStopped => "ingest_stopped",
            Self::IndexDegraded => "index_degraded",
            Self::BlocksDamaged => "blocks_damaged",
            Self::ChainUnreadable => "chain_unreadable",
            Self::TablesBehind => "tables_behind",
            Self::TablesReplaced => "tables_replaced",
            Self::TablesKept => "tables_kept",
            Self::DeriveFailing => "derive_failing",
            Self::UsageNotRelayed => "usage_not_relayed",
            Self::UsageDamaged => "usage_damaged",
            Self::CollectorStopped => "collector_stopped",
            Self::CollectorIncomplete => "collector_incomplete",
            Self::CollectorBehind => "collector_behind",
        }
    }

    /// Whether it holds for a moment in every start, until the head has been seen and reached.
    pub fn is_usual_at_start(self) -> bool {
        matches!(
            self,
            Self::NodeSilent
                | Self::HeadNotSeen
                | Self::Behind
                | Self::TablesBehind
                | Self::CollectorBehind
        )
    }

    /// The affected part of the process.
    pub fn component(self) -> &'static str {
        match self {
            Self::Starting | Self::Stopping | Self::NotServed => "server",
            Self::JobsStoreSilent => "jobs",
            Self::IndexStoreSilent | Self::IndexDegraded | Self::ChainUnreadable => "index",
            Self::TablesStoreSilent => "tables",
            Self::MeterStoreSilent | Self::MeterNotWritable | Self::UsageDamaged => "meter",
            Self::BlobsSilent => "blobs",
            Self::DiskLow => "disk",
            Self::ChainUnknown | Self::NodeSilent => "nodes",
            Self::HeadNotSeen | Self::Behind | Self::HeadWentBack | Self::IngestStopped => "ingest",
            Self::BlocksDamaged => "auditor",
            Self::TablesBehind | Self::TablesReplaced | Self::TablesKept | Self::DeriveFailing => {
                "derive"
            }
            Self::UsageNotRelayed => "relay",
            Self::CollectorStopped | Self::CollectorIncomplete | Self::CollectorBehind => {
                "collector"
            }
        }
    }

    /// The services that it makes unavailable; without any it is a warning in `/ready` and `/status`.
    pub fn services(self) -> &'static [Service] {
        use Service::{Meter, Rpc, Tables};
        match self {
            Self::Starting
            | Self::Stopping
            | Self::NotServed
            | Self::BlobsSilent
            | Self::DiskLow => &[Rpc, Tables, Meter],
            Self::JobsStoreSilent
            | Self::IndexStoreSilent
            | Self::ChainUnknown
            | Self::NodeSilent
            | Self::HeadNotSeen
            | Self::Behind
            | Self::HeadWentBack
            | Self::IngestStopped
            | Self::IndexDegraded
            | Self::ChainUnreadable => &[Rpc, Tables],
            Self::BlocksDamaged => &[Rpc],
            Self::TablesStoreSilent
            | Self::TablesBehind
            | Self::TablesReplaced
            | Self::TablesKept
            | Self::DeriveFailing
            | Self::CollectorStopped
            | Self::CollectorIncomplete
            | Self::CollectorBehind => &[Tables],
            Self::MeterStoreSilent | Self::MeterNotWritable => &[Meter],
            // Usage sent by clients is recorded all the same, and a damaged event fails only requests that need it.
            Self::UsageNotRelayed | Self::UsageDamaged => &[],
        }
    }
}
