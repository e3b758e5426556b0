//! CloudEvents 1.0 in JSON, single and batched, as usage events.
//!
//! | CloudEvents | usage |
//! |---|---|
//! | `type` | event type |
//! | `subject` | customer |
//! | `source`, `id` | identity of the event |
//! | `time` | when it happened |
//! | `data.value` | value; 1 if there is none |
//! | the rest of `data` | metadata |
//!
//! `data_base64` is the same as `data`, of JSON in base64.
//!
//! Guarantees: what the specification requires is required here. Leaves to others: HTTP media types, and the checks
//! that all events get.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Event, RawEvent, Sender, ValidationErrors, present};
use crate::settings::Settings;

/// A CloudEvent as received, unchecked.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct CloudEvent<'a> {
    #[serde(borrow, default)]
    specversion: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    source: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "type")]
    event_type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    subject: Option<&'a RawValue>,
    #[serde(borrow, default)]
    time: Option<&'a RawValue>,
    #[serde(borrow, default)]
    datacontenttype: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data_base64: Option<&'a RawValue>,
}

/// Checks a CloudEvent, and converts it.
pub fn from_cloud(
    cloud: &CloudEvent<'_>,
    settings: &Settings,
    sender: &Sender<'_>,
) -> Result<Event, ValidationErrors> {
    let mut errors = Vec::new();
    if cloud.specversion.map(RawValue::get) != Some("\"1.0\"") {
        errors.push("specversion must be \"1.0\"".to_owned());
    }
    for (name, field) in [
        ("id", cloud.id),
        ("source", cloud.source),
        ("type", cloud.event_type),
        ("subject", cloud.subject),
    ] {
        if present(field).is_none() {
            errors.push(format!("{name} is required"));
        }
    }
    let parts = cloud.data_text().and_then(|text| parts(&text));
    let (value, metadata) = match parts {
        Ok(parts) if errors.is_empty() => parts,
        parts => {
            errors.extend(parts.err());
            return Err(errors);
        }
    };
    let raw = RawEvent {
        event_type: cloud.event_type,
        customer_id: cloud.subject,
        value: Some(&value),
        metadata: metadata.as_deref(),
        id: cloud.id,
        source: cloud.source,
        timestamp: cloud.time,
        unknown: Vec::new(),
    };
    raw.check(settings, None, sender)
}

impl CloudEvent<'_> {
    /// The data as JSON text, or what is wrong with it.
    fn data_text(&self) -> Result<Cow<'_, str>, String> {
        let Some(encoded) = present(self.data_base64) else {
            return Ok(Cow::Borrowed(present(self.data).unwrap_or("{}")));
        };
        if present(self.data).is_some() {
            return Err("data and data_base64 must not both be present".to_owned());
        }
        if !self.is_json() {
            return Err("datacontenttype of data_base64 must be JSON".to_owned());
        }
        let bytes = serde_json::from_str::<Cow<'_, str>>(encoded)
            .ok()
            .and_then(|encoded| STANDARD.decode(encoded.as_bytes()).ok());
        let bytes = bytes.ok_or_else(|| "data_base64 must be base64 with padding".to_owned())?;
        let text = String::from_utf8(bytes);
        Ok(Cow::Owned(text.map_err(|_| "data_base64 must be JSON in UTF-8".to_owned())?))
    }

    /// Whether its data are JSON, which is the default.
    fn is_json(&self) -> bool {
        let Some(said) = present(self.datacontenttype) else { return true };
        let said = serde_json::from_str::<String>(said).unwrap_or_default();
        let essence = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        matches!(essence.as_str(), "application/json" | "text/json") || essence.ends_with("+json")
    }
}

type ValueAndMetadata = (Box<RawValue>, Option<Box<RawValue>>);

/// Splits the data into the value and the rest.
fn parts(text: &str) -> Result<ValueAndMetadata, String> {
    let wrong = || "data must be an object".to_owned();
    let mut fields: BTreeMap<String, &RawValue> =
        serde_json::from_str(text).map_err(|_| wrong())?;
    let value = match fields.remove("value") {
        Some(value) => value.to_owned(),
        None => RawValue::from_string("1".to_owned()).map_err(|_| wrong())?,
    };
    if fields.is_empty() {
        return Ok((value, None));
    }
    let rest = serde_json::to_string(&fields).and_then(RawValue::from_string);
    Ok((value, Some(rest.map_err(|_| wrong())?)))
}
