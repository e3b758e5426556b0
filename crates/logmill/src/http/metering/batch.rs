//! JSON of events, single and many: read without copying, and checked.
//!
//! Guarantees: what is read is bounded by the body and by the most events of a batch, however many there are in it; an
//! event is an object and nothing else; all events of a request came at one moment; text is borrowed from the body
//! until an event is made of it. Leaves to others: what an event must be ([`logmill_meter::event`]).

use std::fmt;
use std::marker::PhantomData;

use logmill_io::{Entropy, Timestamp};
use logmill_meter::event::{CloudEvent, Event, Incoming, Sender, Wrongs, from_cloud};
use logmill_meter::record::Arrived;
use logmill_meter::settings::Settings;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the seed has them.
    Plain,
    /// As CloudEvents 1.0.
    Cloud,
}

/// What checking needs to know.
#[derive(Clone, Copy)]
pub(super) struct Checks<'a> {
    pub(super) settings: &'a Settings,
    pub(super) source: &'a str,
    pub(super) entropy: &'a dyn Entropy,
    pub(super) now: Timestamp,
    /// The `Idempotency-Key` of the request: the id of an event that has none, and the beginning of the ids of many.
    pub(super) key: Option<&'a str>,
}

/// Why there is no event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoEvent {
    /// The body is not a JSON object.
    NotJson(String),
    /// It is one that is wrong.
    Wrong(Wrongs),
}

/// Why there are no events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoBatch {
    /// The body is not a JSON array.
    NotJson(String),
    /// It is one of nothing.
    Empty,
    /// It is one of too many.
    TooMany {
        /// How many there are.
        received: usize,
    },
    /// Some are wrong, by their indexes.
    Wrong {
        /// Which, and how.
        wrongs: Vec<(usize, Wrongs)>,
        /// How many there are in all.
        received: usize,
    },
}

/// Reads the event of a body; `event_type` is that of the path, where there is one.
pub(super) fn one(
    body: &[u8],
    form: Form,
    event_type: Option<&str>,
    checks: &Checks<'_>,
) -> Result<Arrived, NoEvent> {
    let text = text(body).map_err(NoEvent::NotJson)?;
    let event = match form {
        Form::Plain => {
            let Object(mut event) = serde_json::from_str::<Object<Incoming<'_>>>(text)
                .map_err(|error| NoEvent::NotJson(not_an_object(&error)))?;
            let id = checks.key.and_then(raw_text);
            if let Some(id) = &id {
                event.or_id(id);
            }
            event.check(checks.settings, event_type, &checks.sender())
        }
        Form::Cloud => {
            let Object(event) = serde_json::from_str::<Object<CloudEvent<'_>>>(text)
                .map_err(|error| NoEvent::NotJson(not_an_object(&error)))?;
            from_cloud(&event, checks.settings, &checks.sender())
        }
    };
    Ok(checks.arrived(event.map_err(NoEvent::Wrong)?))
}

/// Reads the events of a body, all of which are fine or none is given.
pub(super) fn many(body: &[u8], form: Form, checks: &Checks<'_>) -> Result<Vec<Arrived>, NoBatch> {
    let text = text(body).map_err(NoBatch::NotJson)?;
    match form {
        Form::Plain => read::<Incoming<'_>>(text, checks, |index, event| {
            let mut event = event;
            let id = checks.key.and_then(|key| raw_text(&format!("{key}.{index}")));
            if let Some(id) = &id {
                event.or_id(id);
            }
            event.check(checks.settings, None, &checks.sender())
        }),
        Form::Cloud => read::<CloudEvent<'_>>(text, checks, |_, event| {
            from_cloud(&event, checks.settings, &checks.sender())
        }),
    }
}

impl Checks<'_> {
    fn sender(&self) -> Sender<'_> {
        Sender { source: self.source, now: self.now, entropy: self.entropy }
    }

    fn arrived(&self, event: Event) -> Arrived {
        Arrived { event, received: self.now }
    }
}

fn read<'a, T: Deserialize<'a>>(
    text: &'a str,
    checks: &Checks<'_>,
    check: impl Fn(usize, T) -> Result<Event, Wrongs>,
) -> Result<Vec<Arrived>, NoBatch> {
    let max = checks.settings.batch_max;
    let (items, received) = match array::<Object<T>>(text, max) {
        Ok((items, received)) => {
            (items.into_iter().map(|Object(item)| Ok(item)).collect(), received)
        }
        // Rare, and slower: which of them can not be read?
        Err(_) => one_by_one(text, max)?,
    };
    if received == 0 {
        return Err(NoBatch::Empty);
    }
    if received > max {
        return Err(NoBatch::TooMany { received });
    }
    let mut events = Vec::with_capacity(items.len());
    let mut wrongs = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        match item.and_then(|item| check(index, item)) {
            Ok(event) => events.push(checks.arrived(event)),
            Err(wrong) => wrongs.push((index, wrong)),
        }
    }
    match wrongs.is_empty() {
        true => Ok(events),
        false => Err(NoBatch::Wrong { wrongs, received }),
    }
}

/// Items that were read, or what is wrong with them, and how many there are in all.
type Items<T> = (Vec<Result<T, Wrongs>>, usize);

fn one_by_one<'a, T: Deserialize<'a>>(text: &'a str, max: usize) -> Result<Items<T>, NoBatch> {
    let (items, received) = array::<&RawValue>(text, max).map_err(|error| {
        NoBatch::NotJson(match error.is_data() {
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

/// A text as JSON.
fn raw_text(text: &str) -> Option<Box<RawValue>> {
    serde_json::to_string(text).and_then(RawValue::from_string).ok()
}

fn text(body: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(body).map_err(|error| match body {
        [0x1f, 0x8b, ..] => {
            "Request body is compressed: say so with Content-Encoding: gzip".to_owned()
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "Request body is compressed with zstd: send it with gzip or as it is".to_owned()
        }
        _ => format!("Request body is not text in UTF-8: see byte {}", error.valid_up_to() + 1),
    })
}

fn not_an_object(error: &serde_json::Error) -> String {
    match error.is_data() {
        true => format!("Request body must be a JSON object: {error}"),
        false => format!("Request body is not JSON: {error}"),
    }
}

/// The first `max` items of an array, and how many there are.
fn array<'a, T: Deserialize<'a>>(text: &'a str, max: usize) -> serde_json::Result<(Vec<T>, usize)> {
    let mut json = serde_json::Deserializer::from_str(text);
    let read = First { max, items: PhantomData }.deserialize(&mut json)?;
    json.end()?;
    Ok(read)
}

struct First<T> {
    max: usize,
    items: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for First<T> {
    type Value = (Vec<T>, usize);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for First<T> {
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

/// What is written as an object; an array of its fields in order will not do.
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

    fn check(body: &str) -> Result<usize, NoBatch> {
        let (settings, entropy) = (settings(), SeededEntropy::shared(1));
        let now = Timestamp(1_790_000_000_000);
        let checks =
            Checks { settings: &settings, source: "me", entropy: &*entropy, now, key: None };
        many(body.as_bytes(), Form::Plain, &checks).map(|events| events.len())
    }

    const FINE: &str = r#"{"eventType":"a","customerId":"c","value":1}"#;

    #[test]
    fn a_batch_is_an_array_of_objects() {
        assert_eq!(check(&format!("[{FINE},{FINE}]")), Ok(2));
        assert_eq!(check(" [ ] "), Err(NoBatch::Empty));
        for body in ["{}", "1", "null", "\"x\"", "", "[", "[1,", "[] x"] {
            assert!(matches!(check(body), Err(NoBatch::NotJson(_))), "{body}");
        }
        // An array of fields in order is no event, though a struct could be read from it.
        for item in [r#"["a","c",1,null,null,null,null]"#, "1", "null", "[]"] {
            let Err(NoBatch::Wrong { wrongs, received }) = check(&format!("[{FINE},{item}]"))
            else {
                panic!("{item}");
            };
            assert_eq!((wrongs.len(), wrongs[0].0, received), (1, 1, 2), "{item}");
        }
    }

    #[test]
    fn all_of_too_many_are_counted() {
        let all = [FINE; 7].join(",");
        assert_eq!(check(&format!("[{all}]")), Err(NoBatch::TooMany { received: 7 }));
        let others = ["1"; 7].join(",");
        assert_eq!(check(&format!("[{others}]")), Err(NoBatch::TooMany { received: 7 }));
    }
}
