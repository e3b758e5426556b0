//! The section `[meter]`: what usage is metered, how it is aggregated, and where webhooks go.
//!
//! Guarantees: settings that pass [`Meter::fault`] can be used; no secret is printed. Leaves to others: metering
//! ([`logmill_meter`]), starting it ([`crate::server::usage`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use alloy_primitives::Address;
use logmill_io::wire::guarded::{AllowedTarget, Net};
use logmill_io::wire::{Endpoint, Scheme};
use logmill_meter::period::PeriodKind;
use logmill_meter::settings::{AlertRule, EventType};
use logmill_meter::webhooks::WebhookSettings;
use logmill_pipeline::processors::usage::{UsageRule, UsageWorker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::secret::{Secret, redact_path};
use super::{InvalidKey, RETENTION_HOURS_MAX, TIME_MS_MAX, count, within};
use crate::error::{Error, Result};

/// Maximum events per batch: they are held in memory.
const BATCH_MAX: u64 = 100_000;
const METADATA_BYTES_MAX: u64 = 1 << 20;
/// Maximum nesting of metadata, which is read recursively.
const METADATA_DEPTH_MAX: u64 = 64;
const GROUPS_MAX: u64 = 1_000_000;
/// Maximum grace: a month.
const GRACE_MS_MAX: u64 = 31 * TIME_MS_MAX;
/// Maximum webhooks in the configuration; it does not limit those made through the API.
const WEBHOOKS_MAX: usize = 1_000;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Meter {
    systemconfig: PathBuf,
    periods: Vec<PeriodKind>,
    zone: String,
    grace_ms: u64,
    max_chain_wait_hours: u64,
    max_past_hours: u64,
    max_future_ms: u64,
    max_batch: usize,
    max_metadata_bytes: usize,
    max_metadata_depth: usize,
    max_groups: usize,
    retention_hours: u64,
    alerts: Vec<AlertRule>,
    rules: Vec<Rule>,
    webhooks: Vec<Webhook>,
    events: BTreeMap<String, EventType>,
    pub(crate) delivery: Delivery,
}

/// Which contract event is usage of which customer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    name: String,
    event: String,
    /// Empty for all chains.
    #[serde(default)]
    chains: Vec<u64>,
    #[serde(default)]
    contracts: Vec<Address>,
    event_type: String,
    customer: String,
    #[serde(default)]
    value: Option<String>,
    #[serde(default)]
    decimals: u8,
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    token_decimals: BTreeMap<Address, u8>,
    #[serde(default)]
    dimensions: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Webhook {
    #[serde(default = "yes")]
    pub(crate) enabled: bool,
    pub(crate) url: String,
    pub(crate) secret: Secret,
    /// The message types to send; empty for all.
    #[serde(default)]
    pub(crate) events: Vec<String>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delivery {
    timeout_ms: u64,
    disable_after_hours: u64,
    retention_hours: u64,
    dry_run: bool,
    allowed: Vec<String>,
}

impl Rule {
    fn rule(&self) -> UsageRule {
        UsageRule {
            name: self.name.clone(),
            event: self.event.clone(),
            contracts: self.contracts.clone(),
            event_type: self.event_type.clone(),
            customer: self.customer.clone(),
            value: self.value.clone(),
            decimals: self.decimals,
            token: self.token.clone(),
            token_decimals: self.token_decimals.clone(),
            dimensions: self.dimensions.clone(),
        }
    }
}

/// The format of the seed's `systemconfig.json`.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SystemConfig {
    periods: Option<Value>,
    events: Option<Value>,
    webhooks: Option<Value>,
}

impl Meter {
    /// Settings of the meter; `None` without event types, which disables metering.
    pub(crate) fn settings(&self) -> Option<logmill_meter::Settings> {
        (!self.events.is_empty()).then(|| self.all())
    }

    fn all(&self) -> logmill_meter::Settings {
        let hours = |hours: u64| Duration::from_secs(hours.saturating_mul(3_600));
        let some_hours = |number: u64| (number != 0).then(|| hours(number));
        logmill_meter::Settings {
            events: self.events.clone(),
            alerts: self.alerts.clone(),
            periods: self.periods.clone(),
            zone: self.zone.clone(),
            grace: Duration::from_millis(self.grace_ms),
            chain_types: self.chain_types(),
            chain_wait: some_hours(self.max_chain_wait_hours),
            past_max: some_hours(self.max_past_hours),
            future_max: Duration::from_millis(self.max_future_ms),
            metadata_bytes_max: self.max_metadata_bytes,
            metadata_depth_max: self.max_metadata_depth,
            retention: some_hours(self.retention_hours),
            batch_max: self.max_batch,
            groups_max: self.max_groups,
        }
    }

    /// The event types of the usage rules, each with the chains of its rules; empty for all chains.
    fn chain_types(&self) -> BTreeMap<String, Vec<u64>> {
        let mut types: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for rule in &self.rules {
            types.entry(rule.event_type.clone()).or_default().extend(&rule.chains);
        }
        // A rule for all chains overrides the lists of the others.
        for rule in self.rules.iter().filter(|rule| rule.chains.is_empty()) {
            types.insert(rule.event_type.clone(), Vec::new());
        }
        types
    }

    /// The worker that finds the usage of a chain; `None` without a rule for the chain.
    pub(crate) fn usage(&self, chain_id: u64) -> Option<UsageWorker> {
        let here = |rule: &&Rule| rule.chains.is_empty() || rule.chains.contains(&chain_id);
        let rules: Vec<UsageRule> = self.rules.iter().filter(here).map(Rule::rule).collect();
        UsageWorker::new(rules).ok()
    }

    fn rules_fault(&self) -> Option<InvalidKey> {
        let fault = |why: String| Some(("meter.rules", why));
        if self.rules.is_empty() {
            return None;
        }
        for rule in &self.rules {
            let Some(known) = self.events.get(&rule.event_type) else {
                return fault(format!("{}: unknown event type {}", rule.name, rule.event_type));
            };
            let decimals = rule.token_decimals.values().chain([&rule.decimals]).max().copied();
            if decimals.is_some_and(|decimals| decimals > known.scale) {
                let name = &rule.event_type;
                return fault(format!(
                    "{}: {name} allows at most {} decimals",
                    rule.name, known.scale
                ));
            }
        }
        let all = self.rules.iter().map(Rule::rule).collect();
        UsageWorker::new(all).err().and_then(|error| fault(error.to_string()))
    }

    pub(crate) fn webhooks(&self) -> &[Webhook] {
        &self.webhooks
    }

    /// Path of the `systemconfig.json`, if set.
    pub(super) fn systemconfig(&self) -> Option<&Path> {
        let path = self.systemconfig.as_path();
        (!path.as_os_str().is_empty()).then_some(path)
    }

    /// The settings in the format of the seed's `systemconfig.json`, without secrets.
    pub(crate) fn redacted_json(&self) -> Value {
        let webhooks = self.webhooks.iter().map(|webhook| {
            let url = redact_path(&webhook.url);
            json!({"enabled": webhook.enabled, "url": url, "events": webhook.events})
        });
        json!({
            "periods": self.periods,
            "zone": self.zone,
            "graceMs": self.grace_ms,
            "events": self.events,
            "alerts": self.alerts,
            "webhooks": webhooks.collect::<Vec<_>>(),
        })
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let faults = [
            within("meter.grace_ms", self.grace_ms, 0, GRACE_MS_MAX),
            within("meter.max_chain_wait_hours", self.max_chain_wait_hours, 0, RETENTION_HOURS_MAX),
            within("meter.max_past_hours", self.max_past_hours, 0, RETENTION_HOURS_MAX),
            within("meter.max_future_ms", self.max_future_ms, 0, 366 * TIME_MS_MAX),
            within("meter.max_batch", count(self.max_batch), 1, BATCH_MAX),
            within(
                "meter.max_metadata_bytes",
                count(self.max_metadata_bytes),
                0,
                METADATA_BYTES_MAX,
            ),
            within(
                "meter.max_metadata_depth",
                count(self.max_metadata_depth),
                1,
                METADATA_DEPTH_MAX,
            ),
            within("meter.max_groups", count(self.max_groups), 1, GROUPS_MAX),
            within("meter.retention_hours", self.retention_hours, 0, RETENTION_HOURS_MAX),
            within("meter.delivery.timeout_ms", self.delivery.timeout_ms, 1, TIME_MS_MAX),
            within(
                "meter.delivery.disable_after_hours",
                self.delivery.disable_after_hours,
                1,
                RETENTION_HOURS_MAX,
            ),
            within(
                "meter.delivery.retention_hours",
                self.delivery.retention_hours,
                1,
                RETENTION_HOURS_MAX,
            ),
            self.delivery.allowed().err().map(|why| ("meter.delivery.allowed", why)),
            self.webhook_fault().map(|why| ("meter.webhooks", why)),
            self.period_fault(),
            self.all().check().err().map(|error| ("meter.events", error.to_string())),
            self.rules_fault(),
        ];
        faults.into_iter().flatten().next()
    }

    /// Checks the time zone, and that the names of periods are unique.
    fn period_fault(&self) -> Option<InvalidKey> {
        if let Err(error) = logmill_meter::period::Calendar::new(&self.zone) {
            return Some(("meter.zone", error.to_string()));
        }
        let names: Vec<&str> = self.periods.iter().map(PeriodKind::name).collect();
        let is_twice = |(at, name): (usize, &&str)| names[..at].contains(name);
        let twice = names.iter().enumerate().find(|(at, name)| is_twice((*at, name)));
        twice.map(|(_, name)| ("meter.periods", format!("{name} is listed twice")))
    }

    /// The reason why a webhook is invalid, without any part of its URL or secret.
    fn webhook_fault(&self) -> Option<String> {
        if self.webhooks.len() > WEBHOOKS_MAX {
            return Some(format!("more than {WEBHOOKS_MAX} webhooks"));
        }
        for (position, webhook) in self.webhooks.iter().enumerate() {
            let at = |why: &str| Some(format!("webhook {}: {why}", position + 1));
            match Endpoint::parse(&webhook.url) {
                Ok(address) if address.scheme() == Scheme::Http => {}
                _ => return at("its url is not an http or https address"),
            }
            // The error does not contain any part of the secret.
            if let Err(error) = logmill_meter::webhooks::Secret::parse(webhook.secret.expose()) {
                return at(&error.to_string());
            }
            let mut kinds = webhook.events.iter();
            let unknown = kinds.find_map(|kind| logmill_meter::webhooks::check_kind(kind).err());
            if let Some(error) = unknown {
                return at(&format!("events: {error}"));
            }
        }
        None
    }
}

impl Delivery {
    /// Settings of deliveries. A delivery is a job like any other, so it gets their lease, but at least its timeout.
    pub(crate) fn settings(&self, lease: Duration) -> WebhookSettings {
        let hours = |hours: u64| Duration::from_secs(hours.saturating_mul(3_600));
        let (usual, timeout) = (WebhookSettings::default(), Duration::from_millis(self.timeout_ms));
        WebhookSettings {
            timeout,
            lease: lease.max(timeout),
            disable_after: hours(self.disable_after_hours),
            retention: hours(self.retention_hours),
            dry_run: self.dry_run,
            ..usual
        }
    }

    /// Hosts and networks that webhooks may reach although they are not public.
    pub(crate) fn allowed(&self) -> Result<Vec<AllowedTarget>, String> {
        let allowed = self.allowed.iter().map(|text| {
            let is_net = text.contains(['/', ':']) || text.parse::<std::net::IpAddr>().is_ok();
            match is_net {
                true => Net::parse(text).map(AllowedTarget::Net).map_err(|error| error.to_string()),
                false if text.is_empty() => Err("a host must have a name".to_owned()),
                false => Ok(AllowedTarget::Host(text.clone())),
            }
        });
        allowed.collect()
    }
}

/// Reads a `systemconfig.json` as keys of the configuration and their values.
pub(super) fn read_systemconfig(
    origin: &str,
    text: &str,
) -> Result<Vec<(&'static str, toml::Value)>> {
    // The message of serde may contain a secret.
    let wrong = |why: String| Error::BadValue {
        origin: origin.to_owned(),
        key: "systemconfig.json".to_owned(),
        why,
    };
    let read: SystemConfig = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        wrong(format!("line {line}, column {column}: expected periods, events and webhooks"))
    })?;
    let keys = [
        ("meter.periods", read.periods),
        ("meter.events", read.events),
        ("meter.webhooks", read.webhooks),
    ];
    let mut found = Vec::new();
    for (key, value) in keys {
        let Some(value) = value else { continue };
        let value = toml::Value::try_from(value);
        found.push((key, value.map_err(|_| wrong(format!("{key}: null is not allowed")))?));
    }
    Ok(found)
}
