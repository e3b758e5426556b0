//! Usage events: parsed from requests, checked, and prepared for recording.
//!
//! Guarantees: an [`Event`] respects all limits of the settings, and its value is exactly what was sent. Two requests
//! with the same source, id and content have the same [`Key`] and content hash, however their JSON is formatted. Leaves
//! to others: recording it once.

use std::borrow::Cow;

use logmill_io::{Entropy, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::decimal::Decimal;
use crate::error::Result;
use crate::period::{format_time, parse_time};
use crate::settings::{EventType, NAME_BYTES_MAX, Settings};

mod cloud;
mod fields;
mod metadata;

pub use cloud::{CloudEvent, from_cloud};
use metadata::Metadata;
pub(crate) use metadata::{bounded, unique_of};

const ID_BYTES_MAX: usize = 500;

/// An event as received; only known to be a JSON object.
#[derive(Clone, Debug, Default)]
pub struct RawEvent<'a> {
    /// Missing for a single event, whose path has the type.
    pub event_type: Option<&'a RawValue>,
    pub customer_id: Option<&'a RawValue>,
    pub value: Option<&'a RawValue>,
    /// An object.
    pub metadata: Option<&'a RawValue>,
    /// Unique within its source.
    pub id: Option<&'a RawValue>,
    /// The sender.
    pub source: Option<&'a RawValue>,
    /// When it happened.
    pub timestamp: Option<&'a RawValue>,
    /// Names of fields that events do not have.
    pub unknown: Vec<String>,
}

/// Identity of an event: a hash of its source and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub hi: i64,
    pub lo: i64,
}

impl Key {
    pub fn of(source: &str, id: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hash_text(&mut hasher, source);
        hash_text(&mut hasher, id);
        let hash = hasher.finalize();
        let half = |from: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&hash.as_bytes()[from..from + 8]);
            i64::from_be_bytes(bytes)
        };
        Self { hi: half(0), lo: half(8) }
    }
}

/// An event that respects all limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub event_type: String,
    pub customer: String,
    pub value: Decimal,
    /// When it happened; `None` if the sender gave no time: then it counts at the time of arrival.
    pub time: Option<Timestamp>,
    /// The sender.
    pub source: String,
    /// Unique within its source.
    pub id: String,
    /// JSON text of an object.
    pub metadata: Option<String>,
    /// The group: an object of the declared dimensions, as JSON text; empty if there are none.
    pub dims: String,
    /// The item that `unique` counts, if that is kept and the event has it.
    pub unique: Option<Vec<u8>>,
    /// Hash of source and id.
    pub key: Key,
    /// Hash of everything else that was sent; equal for a repeated request.
    pub content: i64,
    /// Why it is too early or too late for a new event. It may still repeat one that was recorded in time.
    pub outside: Option<String>,
}

impl Event {
    /// The event, unless it is too early or too late for a new one.
    pub fn in_time(self) -> Result<Self, ValidationErrors> {
        match self.outside {
            Some(why) => Err(vec![why]),
            None => Ok(self),
        }
    }
}

/// Sender of events, and the time of arrival.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The source of events that name none: the name of the API key.
    pub source: &'a str,
    /// Time of arrival.
    pub now: Timestamp,
    /// Source of generated ids.
    pub entropy: &'a dyn Entropy,
}

/// What is wrong with one event.
pub type ValidationErrors = Vec<String>;

impl<'a> RawEvent<'a> {
    /// Sets the id of an event that has none.
    pub fn or_id(&mut self, id: &'a RawValue) {
        if present(self.id).is_none() {
            self.id = Some(id);
        }
    }

    /// Checks an event. `event_type` is the type in the path, if any.
    pub fn check(
        &self,
        settings: &Settings,
        event_type: Option<&str>,
        sender: &Sender<'_>,
    ) -> Result<Event, ValidationErrors> {
        let mut errors = Vec::new();
        for name in &self.unknown {
            errors.push(format!(
                "{name}: unknown field; an event has eventType, customerId, value, metadata, id, source and \
                 timestamp"
            ));
        }
        let event_type = match event_type {
            Some(name) => {
                let said = optional_text(&mut errors, "eventType", self.event_type, NAME_BYTES_MAX);
                if said.is_some_and(|said| said != name) {
                    errors.push("eventType must match the event type in the path".to_owned());
                }
                Some(Cow::Borrowed(name))
            }
            None => required_text(&mut errors, "eventType", self.event_type, NAME_BYTES_MAX),
        };
        let customer = required_text(&mut errors, "customerId", self.customer_id, NAME_BYTES_MAX);
        let source = optional_text(&mut errors, "source", self.source, NAME_BYTES_MAX);
        let id = optional_text(&mut errors, "id", self.id, ID_BYTES_MAX);
        let time = self.time(&mut errors);
        let outside = time.and_then(|time| outside(time, settings, sender.now));
        let metadata = Metadata::read(&mut errors, self.metadata, settings);
        let known = event_type.as_deref().and_then(|name| settings.events.get(name));
        if let (Some(name), None) = (&event_type, known) {
            errors.push(unknown_type(settings, name));
        }
        let value = value(&mut errors, self.value, known);
        let (Some(known), Some(event_type), Some(customer), Some(value), Some(metadata)) =
            (known, event_type, customer, value, metadata)
        else {
            return Err(errors);
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        let source = source.map_or_else(|| sender.source.to_owned(), Cow::into_owned);
        let id = id.map_or_else(|| made_id(sender.entropy), Cow::into_owned);
        let mut content = blake3::Hasher::new();
        for text in [&event_type, &customer] {
            hash_text(&mut content, text);
        }
        hash_text(&mut content, &value.to_string());
        hash_text(&mut content, &time.map(|time| time.millis().to_string()).unwrap_or_default());
        hash_text(&mut content, metadata.canonical());
        Ok(Event {
            key: Key::of(&source, &id),
            content: first_half(&content.finalize()),
            dims: metadata.dims(known),
            unique: metadata.unique(known, value),
            metadata: metadata.into_text(),
            event_type: event_type.into_owned(),
            customer: customer.into_owned(),
            value,
            time,
            source,
            id,
            outside,
        })
    }

    fn time(&self, errors: &mut ValidationErrors) -> Option<Timestamp> {
        let text = present(self.timestamp)?;
        let text = serde_json::from_str::<Cow<'_, str>>(text).unwrap_or(Cow::Borrowed(text));
        parse_time(&text).map_err(|error| errors.push(format!("timestamp: {error}"))).ok()
    }
}

/// Why an event of this time is too early or too late for a new one.
fn outside(time: Timestamp, settings: &Settings, now: Timestamp) -> Option<String> {
    if time > now.after(settings.future_max) {
        let most = settings.future_max.as_secs();
        return Some(format!("timestamp is more than {most} seconds ahead of now"));
    }
    let past = settings.past_max.filter(|past| now.since(time) > *past)?;
    Some(format!(
        "timestamp is more than {} seconds ago: the oldest accepted time is {}",
        past.as_secs(),
        format_time(Timestamp(now.millis().saturating_sub(logmill_io::millis(past))))
    ))
}

/// Error text that lists the known event types.
pub fn unknown_type(settings: &Settings, name: &str) -> String {
    let known: Vec<&str> = settings.events.keys().map(String::as_str).collect();
    let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
    format!("Invalid event type: {shown}. Must be one of: {}", known.join(", "))
}

/// `None` if the field is missing or null.
fn present(field: Option<&RawValue>) -> Option<&str> {
    field.map(RawValue::get).filter(|text| *text != "null")
}

fn required_text<'a>(
    errors: &mut ValidationErrors,
    name: &str,
    field: Option<&'a RawValue>,
    bytes_max: usize,
) -> Option<Cow<'a, str>> {
    if present(field).is_none() {
        errors.push(format!("{name} is required"));
    }
    optional_text(errors, name, field, bytes_max)
}

fn optional_text<'a>(
    errors: &mut ValidationErrors,
    name: &str,
    field: Option<&'a RawValue>,
    bytes_max: usize,
) -> Option<Cow<'a, str>> {
    let Ok(text) = serde_json::from_str::<Text<'_>>(present(field)?) else {
        errors.push(format!("{name} must be a string"));
        return None;
    };
    let text = text.0;
    if text.is_empty() {
        errors.push(format!("{name} is required"));
        return None;
    }
    if text.len() > bytes_max || text.contains(char::is_control) {
        errors
            .push(format!("{name} must have at most {bytes_max} bytes and no control characters"));
        return None;
    }
    Some(text)
}

/// Borrowed if the text has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn value(
    errors: &mut ValidationErrors,
    field: Option<&RawValue>,
    known: Option<&EventType>,
) -> Option<Decimal> {
    let Some(text) = present(field) else {
        errors.push("value is required".to_owned());
        return None;
    };
    let inner = if text.starts_with('"') {
        serde_json::from_str::<Text<'_>>(text).ok().map(|text| text.0)
    } else {
        Some(Cow::Borrowed(text))
    };
    let Some(value) = inner.and_then(|text| Decimal::parse(&text).ok()) else {
        errors.push("value must be a finite number".to_owned());
        return None;
    };
    let scale_max = known?.scale;
    if value.scale() > scale_max {
        errors.push(format!(
            "value has {} decimal places: this event type takes at most {scale_max}",
            value.scale()
        ));
    }
    Some(value)
}

fn made_id(entropy: &dyn Entropy) -> String {
    let mut bytes = [0; 16];
    entropy.fill(&mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("evt_{hex}")
}

/// Length first, so that no two lists of texts hash alike.
fn hash_text(hasher: &mut blake3::Hasher, text: &str) {
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    hasher.update(&length.to_be_bytes());
    hasher.update(text.as_bytes());
}

fn first_half(hash: &blake3::Hash) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    i64::from_be_bytes(bytes)
}
