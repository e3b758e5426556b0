//! Usage events: what people send, checked, and made ready to be recorded.
//!
//! Guarantees: an [`Event`] keeps all limits of the settings, its value is exactly what was sent, and two requests with
//! the same source, id and content have the same [`Key`] and content hash, however their JSON is written. Leaves to
//! others: recording it, once.

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

/// The longest id, in bytes.
const ID_BYTES_MAX: usize = 500;

/// An event as people send it, with nothing checked yet but that it is a JSON object.
#[derive(Clone, Debug, Default)]
pub struct Incoming<'a> {
    /// Its type; in the path of a single event.
    pub event_type: Option<&'a RawValue>,
    /// Whose usage it is.
    pub customer_id: Option<&'a RawValue>,
    /// How much.
    pub value: Option<&'a RawValue>,
    /// Anything else, an object.
    pub metadata: Option<&'a RawValue>,
    /// What makes it this event and no other of its source.
    pub id: Option<&'a RawValue>,
    /// Who says it.
    pub source: Option<&'a RawValue>,
    /// When it happened.
    pub timestamp: Option<&'a RawValue>,
    /// The names of other fields, of which an event has none.
    pub unknown: Vec<String>,
}

/// What makes an event this one and no other: a hash of its source and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The first half.
    pub hi: i64,
    /// The second half.
    pub lo: i64,
}

impl Key {
    /// The key of an event.
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

/// An event that keeps all limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its type.
    pub event_type: String,
    /// Whose usage it is.
    pub customer: String,
    /// How much.
    pub value: Decimal,
    /// When it happened, if the sender says so; else when it came.
    pub time: Option<Timestamp>,
    /// Who says it.
    pub source: String,
    /// What makes it this event and no other of its source.
    pub id: String,
    /// Anything else, as JSON text of an object.
    pub metadata: Option<String>,
    /// The group that it counts for: an object of the declared dimensions, as JSON text; empty if there are none.
    pub dims: String,
    /// What a count of different ones looks at, if that is kept and the event has it.
    pub unique: Option<Vec<u8>>,
    /// Of its source and id.
    pub key: Key,
    /// Of everything that was sent besides; equal for a request that is repeated.
    pub content: i64,
    /// Why it is too early or too late to be new. It may still be one that was recorded in time.
    pub outside: Option<String>,
}

impl Event {
    /// The event, if it may be new.
    pub fn in_time(self) -> Result<Self, Wrongs> {
        match self.outside {
            Some(why) => Err(vec![why]),
            None => Ok(self),
        }
    }
}

/// Who sends events, and when.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The source of events that name none: the name of the API key.
    pub source: &'a str,
    /// When they came.
    pub now: Timestamp,
    /// Where ids come from.
    pub entropy: &'a dyn Entropy,
}

/// What is wrong with one event.
pub type Wrongs = Vec<String>;

impl<'a> Incoming<'a> {
    /// Gives an event an id that has none.
    pub fn or_id(&mut self, id: &'a RawValue) {
        if present(self.id).is_none() {
            self.id = Some(id);
        }
    }

    /// Checks an event. `event_type` is that of the path, where there is one.
    pub fn check(
        &self,
        settings: &Settings,
        event_type: Option<&str>,
        sender: &Sender<'_>,
    ) -> Result<Event, Wrongs> {
        let mut wrongs = Vec::new();
        for name in &self.unknown {
            wrongs.push(format!(
                "{name} is not a field of an event: it has eventType, customerId, value, metadata, id, source and \
                 timestamp"
            ));
        }
        let event_type = match event_type {
            Some(name) => {
                let said = optional_text(&mut wrongs, "eventType", self.event_type, NAME_BYTES_MAX);
                if said.is_some_and(|said| said != name) {
                    wrongs.push("eventType is not that of the path".to_owned());
                }
                Some(Cow::Borrowed(name))
            }
            None => required_text(&mut wrongs, "eventType", self.event_type, NAME_BYTES_MAX),
        };
        let customer = required_text(&mut wrongs, "customerId", self.customer_id, NAME_BYTES_MAX);
        let source = optional_text(&mut wrongs, "source", self.source, NAME_BYTES_MAX);
        let id = optional_text(&mut wrongs, "id", self.id, ID_BYTES_MAX);
        let time = self.time(&mut wrongs);
        let outside = time.and_then(|time| outside(time, settings, sender.now));
        let metadata = Metadata::read(&mut wrongs, self.metadata, settings);
        let known = event_type.as_deref().and_then(|name| settings.events.get(name));
        if let (Some(name), None) = (&event_type, known) {
            wrongs.push(unknown_type(settings, name));
        }
        let value = value(&mut wrongs, self.value, known);
        let (Some(known), Some(event_type), Some(customer), Some(value), Some(metadata)) =
            (known, event_type, customer, value, metadata)
        else {
            return Err(wrongs);
        };
        if !wrongs.is_empty() {
            return Err(wrongs);
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

    fn time(&self, wrongs: &mut Wrongs) -> Option<Timestamp> {
        let text = present(self.timestamp)?;
        let text = serde_json::from_str::<Cow<'_, str>>(text).unwrap_or(Cow::Borrowed(text));
        parse_time(&text).map_err(|error| wrongs.push(format!("timestamp: {error}"))).ok()
    }
}

/// Why an event of this time may not be new.
fn outside(time: Timestamp, settings: &Settings, now: Timestamp) -> Option<String> {
    if time > now.after(settings.future_max) {
        let most = settings.future_max.as_secs();
        return Some(format!("timestamp is more than {most} seconds ahead of now"));
    }
    let past = settings.past_max.filter(|past| now.since(time) > *past)?;
    Some(format!(
        "timestamp is more than {} seconds ago: the oldest is {}",
        past.as_secs(),
        format_time(Timestamp(now.millis().saturating_sub(logmill_io::millis(past))))
    ))
}

/// Says which event types there are.
pub fn unknown_type(settings: &Settings, name: &str) -> String {
    let known: Vec<&str> = settings.events.keys().map(String::as_str).collect();
    let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
    format!("Invalid event type: {shown}. Must be one of: {}", known.join(", "))
}

/// A field that is there and not null.
fn present(field: Option<&RawValue>) -> Option<&str> {
    field.map(RawValue::get).filter(|text| *text != "null")
}

fn required_text<'a>(
    wrongs: &mut Wrongs,
    name: &str,
    field: Option<&'a RawValue>,
    bytes_max: usize,
) -> Option<Cow<'a, str>> {
    if present(field).is_none() {
        wrongs.push(format!("{name} is required"));
    }
    optional_text(wrongs, name, field, bytes_max)
}

fn optional_text<'a>(
    wrongs: &mut Wrongs,
    name: &str,
    field: Option<&'a RawValue>,
    bytes_max: usize,
) -> Option<Cow<'a, str>> {
    let Ok(text) = serde_json::from_str::<Text<'_>>(present(field)?) else {
        wrongs.push(format!("{name} must be a string"));
        return None;
    };
    let text = text.0;
    if text.is_empty() {
        wrongs.push(format!("{name} is required"));
        return None;
    }
    if text.len() > bytes_max || text.contains(char::is_control) {
        wrongs.push(format!("{name} has at most {bytes_max} bytes and no control characters"));
        return None;
    }
    Some(text)
}

/// Text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn value(
    wrongs: &mut Wrongs,
    field: Option<&RawValue>,
    known: Option<&EventType>,
) -> Option<Decimal> {
    let Some(text) = present(field) else {
        wrongs.push("value is required".to_owned());
        return None;
    };
    let inner = if text.starts_with('"') {
        serde_json::from_str::<Text<'_>>(text).ok().map(|text| text.0)
    } else {
        Some(Cow::Borrowed(text))
    };
    let Some(value) = inner.and_then(|text| Decimal::parse(&text).ok()) else {
        wrongs.push("value must be a finite number".to_owned());
        return None;
    };
    let scale_max = known?.scale;
    if value.scale() > scale_max {
        wrongs.push(format!(
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

/// Length first, so that no two lists of texts look the same.
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
