//! Settings: event types with their operations, periods, limits.
//!
//! Guarantees: settings that pass [`Settings::check`] can be metered; every limit has a default. Leaves to others:
//! where they are configured.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decimal::{Decimal, SCALE_MAX};
use crate::error::{Error, Result};
use crate::period::PeriodKind;

/// Maximum number of dimensions of an event type.
const DIMENSIONS_MAX: usize = 8;
/// Maximum number of thresholds of one alert.
const THRESHOLDS_MAX: usize = 20;
/// Maximum length of the name of an event type, customer, source, id or dimension.
pub(crate) const NAME_BYTES_MAX: usize = 200;

/// Operation on the values of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Sum,
    /// Sum divided by count.
    Avg,
    Min,
    Max,
    Count,
    /// The first by time.
    First,
    /// The last by time.
    Last,
    /// Number of different values, or of different values of one metadata field.
    Unique,
    /// The quantile set by [`EventType::quantile_milli`].
    Percentile,
    /// Each value times the seconds that it held.
    TimeWeighted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventType {
    /// The operation of its aggregates.
    pub op: Op,
    /// Further operations that queries may use; `sum`, `avg`, `min`, `max`, `count`, `first` and `last` are always
    /// allowed.
    #[serde(default)]
    pub also: Vec<Op>,
    /// Maximum number of decimal places of a value.
    #[serde(default = "scale")]
    pub scale: u8,
    /// The metadata fields by which usage can be grouped and filtered.
    #[serde(default)]
    pub dimensions: Vec<String>,
    /// The metadata field that `unique` counts; by default the value.
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
    /// A type with this operation, and defaults for everything else.
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
    pub(crate) fn keeps(&self, op: Op) -> bool {
        let costly = matches!(op, Op::Unique | Op::Percentile | Op::TimeWeighted);
        !costly || self.op == op || self.also.contains(&op)
    }
}

/// A webhook message when usage of a period reaches a threshold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertRule {
    pub name: String,
    pub event_type: String,
    /// By default the operation of the event type.
    #[serde(default)]
    pub op: Option<Op>,
    pub period: PeriodKind,
    /// Each is announced once per period.
    pub thresholds: Vec<Decimal>,
    /// One customer; by default each customer.
    #[serde(default)]
    pub customer: Option<String>,
}

/// How usage is metered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// By name.
    pub events: BTreeMap<String, EventType>,
    pub alerts: Vec<AlertRule>,
    /// The kinds of periods that get aggregates.
    pub periods: Vec<PeriodKind>,
    /// IANA name of the time zone of periods.
    pub zone: String,
    /// How long after its end a period stays open for late events.
    pub grace: Duration,
    /// Event types whose usage comes from chains, and their chains; an empty list stands for all chains.
    pub chain_types: BTreeMap<String, Vec<u64>>,
    /// How long after its end a period waits for usage of chains; `None` for no limit.
    pub chain_wait: Option<Duration>,
    /// Maximum age of a new event; `None` for no limit.
    pub past_max: Option<Duration>,
    /// Maximum clock skew into the future.
    pub future_max: Duration,
    /// Maximum size of one event's metadata.
    pub metadata_bytes_max: usize,
    /// Maximum nesting of metadata.
    pub metadata_depth_max: usize,
    /// How long events stay in the database before they are archived; `None` keeps them forever.
    pub retention: Option<Duration>,
    /// Maximum number of events in one batch.
    pub batch_max: usize,
    /// Maximum number of groups per event type and customer; further ones count as `other`.
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
    /// Refuses settings that cannot be metered.
    pub fn check(&self) -> Result<()> {
        for (name, event_type) in &self.events {
            check_name("an event type", name)?;
            let wrong = |what: String| Err(Error::invalid(format!("event type {name}: {what}")));
            if event_type.scale > SCALE_MAX {
                return wrong(format!(
                    "scale is {}: it must be at most {SCALE_MAX}",
                    event_type.scale
                ));
            }
            if event_type.dimensions.len() > DIMENSIONS_MAX {
                return wrong(format!(
                    "it has too many dimensions: at most {DIMENSIONS_MAX} are allowed"
                ));
            }
            if !(1..=1_000).contains(&event_type.quantile_milli) {
                return wrong("quantile_milli must be 1 to 1000".to_owned());
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
            return Err(Error::invalid(format!("alert {}: its name is used twice", rule.name)));
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
            return wrong(format!("it must have 1 to {THRESHOLDS_MAX} thresholds"));
        }
        match rule.op {
            Some(op) if !event_type.keeps(op) => {
                wrong(format!("{op:?} must be in `also` of {}", rule.event_type))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a name that cannot be stored or shown.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        return Err(Error::invalid(format!(
            "{what} must have 1 to {NAME_BYTES_MAX} bytes and no control characters"
        )));
    }
    Ok(())
}
