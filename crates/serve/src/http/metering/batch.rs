//! JSON of one or many events, parsed without copying, and checked.
//!
//! Guarantees: memory is bounded by the body size and by the maximum batch size, however many events the body has;
//! an event must be an object; all events of a request get the same arrival time; text is borrowed from the body until
//! an event is built. Leaves to others: the rules for events ([`logmill_meter::event`]).

use std::fmt;
use std::marker::PhantomData;

use logmill_io::{Entropy, Timestamp};
use logmill_meter::event::{CloudEvent, Event, RawEvent, Sender, ValidationErrors, from_cloud};
use logmill_meter::record::ReceivedEvent;
use logmill_meter::settings::Settings;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventFormat {
    /// The seed's format.
    Plain,
    /// CloudEvents 1.0.
    Cloud,
}

#[derive(Clone, Copy)]
pub(super) struct Checks<'a> {
    pub(super) settings: &'a Settings,
    pub(super) source: &'a str,
    pub(super) entropy: &'a dyn Entropy,
    pub(super) now: Timestamp,
    /// The `Idempotency-Key` of the request: the id of a single event without one, and the prefix of the ids in a
    /// batch.
    pub(super) key: Option<&'a str>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventRejection {
    /// The body is not a JSON object.
    NotJson(String),
    /// The event is invalid.
    Invalid(ValidationErrors),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BatchRejection {
    /// The body is not a JSON array.
    NotJson(String),
    Empty,
    TooMany {
        received: usize,
    },
    /// Some events are invalid.
    Invalid {
        /// By index in the batch.
        errors: Vec<(usize, ValidationErrors)>,
        /// Number of events in the batch.
        received: usize,
    },
}

/// Parses the event of a body; `event_type` comes from the path, if it has one.
pub(super) fn one(
    body: &[u8],
    form: EventFormat,
    event_type: Option<&str>,
    checks: &Checks<'_>,
) -> Result<ReceivedEvent, EventRejection> {
    let text = text(body).map_err(EventRejection::NotJson)?;
    let event = match form {
        EventFormat::Plain => {
            let Object(mut event) = serde_json::from_str::<Object<RawEvent<'_>>>(text)
                .map_err(|error| EventRejection::NotJson(not_an_object(&error)))?;
            let id = checks.key.and_then(raw_text);
            if let Some(id) = &id {
                event.or_id(id);
            }
            event.check(checks.settings, event_type, &checks.sender())
        }
        EventFormat::Cloud => {
            let Object(event) = serde_json::from_str::<Object<CloudEvent<'_>>>(text)
                .map_err(|error| EventRejection::NotJson(not_an_object(&error)))?;
            from_cloud(&event, checks.settings, &checks.sender())
        }
    };
    Ok(checks.received(event.map_err(EventRejection::Invalid)?))
}

/// Parses the events of a body. Fails if any of them is invalid.
pub(super) fn many(
    body: &[u8],
    form: EventFormat,
    checks: &Checks<'_>,
) -> Result<Vec<ReceivedEvent>, BatchRejection> {
    let text = text(body).map_err(BatchRejection::NotJson)?;
    match form {
        EventFormat::Plain => read::<RawEvent<'_>>(text, checks, |index, event| {
            let mut event = event;
            let id = checks.key.and_then(|key| raw_text(&format!("{key}.{index}")));
            if let Some(id) = &id {
                event.or_id(id);
            }
            event.check(checks.settings, None, &checks.sender())
        }),
        EventFormat::Cloud => read::<CloudEvent<'_>>(text, checks, |_, event| {
            from_cloud(&event, checks.settings, &checks.sender())
        }),
    }
}

impl Checks<'_> {
    fn sender(&self) -> Sender<'_> {
        Sender { source: self.source, now: self.now, entropy: self.entropy }
    }

    fn received(&self, event: Event) -> ReceivedEvent {
        ReceivedEvent { event, received_at: self.now }
    }
}

fn read<'a, T: Deserialize<'a>>(
    text: &'a str,
    checks: &Checks<'_>,
    check: impl Fn(usize, T) -> Result<Event, ValidationErrors>,
) -> Result<Vec<ReceivedEvent>, BatchRejection> {
    let max = checks.settings.batch_max;
    let (items, received) = match array::<Object<T>>(text, max) {
        Ok((items, received)) => {
            (items.into_iter().map(|Object(item)| Ok(item)).collect(), received)
        }
        // Rare and slower: finds the events that cannot be parsed.
        Err(_) => one_by_one(text, max)?,
    };
    if received == 0 {
        return Err(BatchRejection::Empty);
    }
    if received > max {
        return Err(BatchRejection::TooMany { received });
    }
    let mut events = Vec::with_capacity(items.len());
    let mut errors = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        match item.and_then(|item| check(index, item)) {
            Ok(event) => events.push(checks.received(event)),
            Err(wrong) => errors.push((index, wrong)),
        }
    }
    match errors.is_empty() {
        true => Ok(events),
        false => Err(BatchRejection::Invalid { errors, received }),
    }
}

/// Parsed items or their errors, and the number of items in the array.
type Items<T> = (Vec<Result<T, ValidationErrors>>, usize);

fn one_by_one<'a, T: Deserialize<'a>>(
    text: &'a str,
    max: usize,
) -> Result<Items<T>, BatchRejection> {
    let (items, received) = array::<&RawValue>(text, max).map_err(|error| {
        BatchRejection::NotJson(match error.is_data() {
            true => "Request body must be an array of events".to_owned(),
            false => format!("Request body is not JSON: {error}"),
        })
    })?;
    let items = items.into_iter().map(|item| {
        let read = serde_json::from_str::<Object<T>>(item.get());
        read.map(|Object(item)| item).map_err(|error| vec![format!("event: {error}")])
    });
    Ok((items.collect(), received))
}

fn raw_text(text: &str) -> Option<Box<RawValue>> {
    serde_json::to_string(text).and_then(RawValue::from_string).ok()
}

fn text(body: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(body).map_err(|error| match body {
        [0x1f, 0x8b, ..] => "Request body is compressed: send Content-Encoding: gzip".to_owned(),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "Request body is compressed with zstd: send it uncompressed or with gzip".to_owned()
        }
        _ => format!("Request body is not UTF-8: see byte {}", error.valid_up_to() + 1),
    })
}

fn not_an_object(error: &serde_json::Error) -> String {
    match error.is_data() {
        true => format!("Request body must be a JSON object: {error}"),
        false => format!("Request body is not JSON: {error}"),
    }
}

/// The first `max` items of an array, and the number of all.
fn array<'a, T: Deserialize<'a>>(text: &'a str, max: usize) -> serde_json::Result<(Vec<T>, usize)> {
    let mut json = serde_json::Deserializer::from_str(text);
    let read = FirstItems { max, items: PhantomData }.deserialize(&mut json)?;
    json.end()?;
    Ok(read)
}

struct FirstItems<T> {
    max: usize,
    items: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for FirstItems<T> {
    type Value = (Vec<T>, usize);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for FirstItems<T> {
    type Value = (Vec<T>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < self.max {
            let Some(item) = seq.next_element()? else {
                let received = items.len();
                return Ok((items, received));
            };
            items.push(item);
        }
        let mut received = items.len();
        while seq.next_element::<IgnoredAny>()?.is_some() {
            received += 1;
        }
        Ok((items, received))
    }
}

/// A value that must be a JSON object; serde would also accept an array of the fields in order.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        from.deserialize_map(Fields(PhantomData)).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use logmill_io::SeededEntropy;
    use logmill_meter::settings::{EventType, Op};

    use super::*;

    fn settings() -> Settings {
        let events = [("a".to_owned(), EventType::new(Op::Sum))].into();
        Settings { events, batch_max: 3, ..Settings::default() }
    }

    fn check(body: &str) -> Result<usize, BatchRejection> {
        let (settings, entropy) = (settings(), SeededEntropy::shared(1));
        let now = Timestamp(1_790_000_000_000);
        let checks =
            Checks { settings: &settings, source: "me", entropy: &*entropy, now, key: None };
        many(body.as_bytes(), EventFormat::Plain, &checks).map(|events| events.len())
    }

    const FINE: &str = r#"{"eventType":"a","customerId":"c","value":1}"#;

    #[test]
    fn a_batch_is_an_array_of_objects() {
        assert_eq!(check(&format!("[{FINE},{FINE}]")), Ok(2));
        assert_eq!(check(" [ ] "), Err(BatchRejection::Empty));
        for body in ["{}", "1", "null", "\"x\"", "", "[", "[1,", "[] x"] {
            assert!(matches!(check(body), Err(BatchRejection::NotJson(_))), "{body}");
        }
        // An array of fields in order is rejected, although serde could read a struct from it.
        for item in [r#"["a","c",1,null,null,null,null]"#, "1", "null", "[]"] {
            let Err(BatchRejection::Invalid { errors, received }) =
                check(&format!("[{FINE},{item}]"))
            else {
                panic!("{item}");
            };
            assert_eq!((errors.len(), errors[0].0, received), (1, 1, 2), "{item}");
        }
    }

    #[test]
    fn all_events_of_a_batch_that_is_too_large_are_counted() {
        let all = [FINE; 7].join(",");
        assert_eq!(check(&format!("[{all}]")), Err(BatchRejection::TooMany { received: 7 }));
        let others = ["1"; 7].join(",");
        assert_eq!(check(&format!("[{others}]")), Err(BatchRejection::TooMany { received: 7 }));
    }
}
