//! CloudEvents 1.0 in JSON, single and batched, as usage events.
//!
//! | CloudEvents | usage |
//! |---|---|
//! | `type` | event type |
//! | `subject` | customer |
//! | `source`, `id` | what makes it this event |
//! | `time` | when it happened |
//! | `data.value` | value; 1 if there is none |
//! | the rest of `data` | metadata |
//!
//! Guarantees: what is required by the specification is required here. Leaves to others: HTTP's media types, and all
//! checks that other events get too.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Event, Incoming, Sender, Wrongs, present};
use crate::settings::Settings;

/// A CloudEvent as it comes, with nothing checked yet.
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
    data: Option<&'a RawValue>,
}

/// Checks a CloudEvent.
pub fn from_cloud(
    cloud: &CloudEvent<'_>,
    settings: &Settings,
    sender: &Sender<'_>,
) -> Result<Event, Wrongs> {
    let mut wrongs = Vec::new();
    if cloud.specversion.map(RawValue::get) != Some("\"1.0\"") {
        wrongs.push("specversion must be \"1.0\"".to_owned());
    }
    for (name, field) in [
        ("id", cloud.id),
        ("source", cloud.source),
        ("type", cloud.event_type),
        ("subject", cloud.subject),
    ] {
        if present(field).is_none() {
            wrongs.push(format!("{name} is required"));
        }
    }
    let parts = data(&mut wrongs, cloud.data);
    let (Some((value, metadata)), true) = (parts, wrongs.is_empty()) else {
        return Err(wrongs);
    };
    let incoming = Incoming {
        event_type: cloud.event_type,
        customer_id: cloud.subject,
        value: Some(&value),
        metadata: metadata.as_deref(),
        id: cloud.id,
        source: cloud.source,
        timestamp: cloud.time,
    };
    incoming.check(settings, None, sender)
}

type Parts = (Box<RawValue>, Option<Box<RawValue>>);

/// The value, and the rest.
fn data(wrongs: &mut Wrongs, field: Option<&RawValue>) -> Option<Parts> {
    let text = present(field).unwrap_or("{}");
    let Ok(mut fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) else {
        wrongs.push("data must be an object".to_owned());
        return None;
    };
    let value = match fields.remove("value") {
        Some(value) => value.to_owned(),
        None => RawValue::from_string("1".to_owned()).ok()?,
    };
    let rest = if fields.is_empty() {
        None
    } else {
        serde_json::to_string(&fields).ok().and_then(|text| RawValue::from_string(text).ok())
    };
    Some((value, rest))
}
