//! Settings: event types with their operations, periods, limits.
//!
//! Guarantees: settings that pass [`Settings::check`] can be metered; every limit has a default. Leaves to others:
//! where they are written down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::period::PeriodKind;

/// The most decimal places that a value may have.
pub const SCALE_MAX: u8 = 36;
/// The most dimensions that an event type may declare.
pub const DIMENSIONS_MAX: usize = 8;
/// The most thresholds of one alert.
pub const THRESHOLDS_MAX: usize = 20;
/// The longest name of an event type, a customer, a source, an id or a dimension, in bytes.
pub const NAME_BYTES_MAX: usize = 200;

/// What is computed of the values of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// All of them together.
    Sum,
    /// The sum by the count.
    Avg,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// How many there are.
    Count,
    /// The first by time.
    First,
    /// The last by time.
    Last,
    /// How many different ones there are, of values or of one field of the metadata.
    Unique,
    /// A quantile; which one is said apart.
    Percentile,
    /// Each value times how long it held, in seconds.
    TimeWeighted,
}

/// One event type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventType {
    /// What an aggregate says of it.
    pub op: Op,
    /// What can be asked besides; `sum`, `avg`, `min`, `max`, `count`, `first` and `last` always can.
    #[serde(default)]
    pub also: Vec<Op>,
    /// The most decimal places of a value.
    #[serde(default = "scale")]
    pub scale: u8,
    /// The fields of the metadata by which it can be grouped and filtered.
    #[serde(default)]
    pub dimensions: Vec<String>,
    /// The field of the metadata that `unique` counts; the value if none is given.
    #[serde(default)]
    pub unique_field: Option<String>,
    /// The quantile of `op = "percentile"`, in thousandths: 950 is the 95th percentile.
    #[serde(default = "quantile_milli")]
    pub quantile_milli: u16,
}

fn scale() -> u8 {
    18
}

fn quantile_milli() -> u16 {
    950
}

impl EventType {
    /// A type that is aggregated in one way, with everything else by default.
    pub fn new(op: Op) -> Self {
        Self {
            op,
            also: Vec::new(),
            scale: scale(),
            dimensions: Vec::new(),
            unique_field: None,
            quantile_milli: quantile_milli(),
        }
    }

    /// Whether partials keep what an operation needs.
    pub fn keeps(&self, op: Op) -> bool {
        let costly = matches!(op, Op::Unique | Op::Percentile | Op::TimeWeighted);
        !costly || self.op == op || self.also.contains(&op)
    }
}

/// Somebody is told when usage of a period reaches a threshold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertRule {
    /// What it is called.
    pub name: String,
    /// Whose usage of what.
    pub event_type: String,
    /// How it is computed; as the event type says if not given.
    #[serde(default)]
    pub op: Option<Op>,
    /// In which period.
    pub period: PeriodKind,
    /// The values that are told of, each once a period.
    pub thresholds: Vec<Decimal>,
    /// Of which customer; of each if not given.
    #[serde(default)]
    pub customer: Option<String>,
}

/// How usage is metered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The event types by name.
    pub events: BTreeMap<String, EventType>,
    /// The thresholds that are watched.
    pub alerts: Vec<AlertRule>,
    /// The periods for which aggregates are made.
    pub periods: Vec<PeriodKind>,
    /// The time zone of periods, by its IANA name.
    pub zone: String,
    /// How long after its end a period stays open for events that are late.
    pub grace: Duration,
    /// Event types that usage of chains is of, and which chains; all if none is named.
    pub chain_types: BTreeMap<String, Vec<u64>>,
    /// How long after its end a period waits for usage of chains; none for ever.
    pub chain_wait: Option<Duration>,
    /// The oldest event that is taken, before now; none for any.
    pub past_max: Option<Duration>,
    /// The newest event that is taken, after now.
    pub future_max: Duration,
    /// The most bytes of one event's metadata.
    pub metadata_bytes_max: usize,
    /// The deepest nesting of metadata.
    pub metadata_depth_max: usize,
    /// How long events stay in the database before they are archived; none for ever.
    pub retention: Option<Duration>,
    /// The most events of one batch.
    pub batch_max: usize,
    /// The most combinations of dimensions that one meter of one customer has; further ones count as `other`.
    pub groups_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            events: BTreeMap::new(),
            alerts: Vec::new(),
            periods: vec![
                PeriodKind::Hourly,
                PeriodKind::Daily,
                PeriodKind::Weekly,
                PeriodKind::Monthly,
            ],
            zone: "UTC".to_owned(),
            grace: Duration::from_secs(10 * 60),
            chain_types: BTreeMap::new(),
            chain_wait: Some(Duration::from_secs(24 * 3_600)),
            past_max: None,
            future_max: Duration::from_secs(5 * 60),
            metadata_bytes_max: 16 << 10,
            metadata_depth_max: 8,
            retention: None,
            batch_max: 1_000,
            groups_max: 1_000,
        }
    }
}

impl Settings {
    /// Refuses settings that can not be metered.
    pub fn check(&self) -> Result<()> {
        for (name, event_type) in &self.events {
            check_name("an event type", name)?;
            let wrong = |what: String| Err(Error::invalid(format!("event type {name}: {what}")));
            if event_type.scale > SCALE_MAX {
                return wrong(format!("scale is {}, at most {SCALE_MAX}", event_type.scale));
            }
            if event_type.dimensions.len() > DIMENSIONS_MAX {
                return wrong(format!("at most {DIMENSIONS_MAX} dimensions"));
            }
            if !(1..=1_000).contains(&event_type.quantile_milli) {
                return wrong("quantile_milli is 1 to 1000".to_owned());
            }
            for dimension in event_type.dimensions.iter().chain(&event_type.unique_field) {
                check_name("a dimension", dimension)?;
            }
        }
        for kind in &self.periods {
            kind.check()?;
        }
        let mut names = BTreeSet::new();
        if let Some(rule) = self.alerts.iter().find(|rule| !names.insert(rule.name.as_str())) {
            return Err(Error::invalid(format!("alert {}: there are two of this name", rule.name)));
        }
        self.alerts.iter().try_for_each(|rule| self.check_alert(rule))
    }

    fn check_alert(&self, rule: &AlertRule) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(format!("alert {}: {what}", rule.name)));
        check_name("an alert", &rule.name)?;
        rule.period.check()?;
        let Some(event_type) = self.events.get(&rule.event_type) else {
            return wrong(format!("there is no event type {}", rule.event_type));
        };
        if rule.thresholds.is_empty() || rule.thresholds.len() > THRESHOLDS_MAX {
            return wrong(format!("it has 1 to {THRESHOLDS_MAX} thresholds"));
        }
        match rule.op {
            Some(op) if !event_type.keeps(op) => {
                wrong(format!("{op:?} must be in `also` of {}", rule.event_type))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a name that can not be stored or shown.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        return Err(Error::invalid(format!(
            "{what} has 1 to {NAME_BYTES_MAX} bytes without control characters"
        )));
    }
    Ok(())
}
