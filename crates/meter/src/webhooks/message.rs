//! Messages: notifications sent to endpoints.
//!
//! The body combines the fields of the seed and of Standard Webhooks:
//!
//! ```json
//! {"type": "aggregation.completed", "timestamp": "2026-01-13T00:00:00Z", "customerId": "acme", "period": "daily",
//!  "data": {"…": "…"}, "created": 1768262400}
//! ```
//!
//! Guarantees: a body is built once, and is the same bytes for every endpoint and attempt; numbers in `data` are
//! sent digit by digit as they were received. Leaves to others: the content of `data`.

use logmill_io::Timestamp;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::error::{Error, Result};
use crate::settings::check_name;

const BODY_BYTES_MAX: usize = 64 << 10;
const MESSAGE_ID_BYTES_MAX: usize = 128;
/// Every kind of message that is ever published; a filter that names another kind would never match.
pub const MESSAGE_KINDS: [&str; 5] = [
    "aggregation.completed",
    "aggregation.corrected",
    "alert.triggered",
    "endpoint.disabled",
    "webhook.test",
];

#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Identity of the message: published twice, it is sent once. Letters, digits, `-` and `_`.
    pub id: String,
    /// Event kind, such as `aggregation.completed`.
    pub kind: String,
    /// Customer that the message is about.
    pub customer: Option<String>,
    /// Kind of the period that it is about.
    pub period: Option<String>,
    /// When the event happened.
    pub timestamp: Timestamp,
    /// Event data, as JSON.
    pub data: Box<RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    r#type: &'a str,
    timestamp: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    customer_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<&'a str>,
    data: &'a RawValue,
    created: i64,
}

impl NewMessage {
    /// A message without customer and period.
    pub fn new(
        id: impl Into<String>,
        kind: impl Into<String>,
        timestamp: Timestamp,
        data: &impl Serialize,
    ) -> Result<Self> {
        let data = to_raw_value(data).map_err(|error| {
            Error::invalid(format!("the data of a message cannot be encoded: {error}"))
        })?;
        let (id, kind) = (id.into(), kind.into());
        Ok(Self { id, kind, customer: None, period: None, timestamp, data })
    }

    /// Builds the body; an error says why the message cannot be sent.
    pub(super) fn body(&self, created: Timestamp) -> Result<String> {
        self.check()?;
        let timestamp = jiff::Timestamp::from_millisecond(self.timestamp.millis())
            .map_err(|error| Error::invalid(format!("the time of message {}: {error}", self.id)))?;
        let body = Body {
            r#type: &self.kind,
            timestamp: timestamp.to_string(),
            customer_id: self.customer.as_deref(),
            period: self.period.as_deref(),
            data: &self.data,
            created: created.millis().div_euclid(1_000),
        };
        let body = serde_json::to_string(&body)
            .map_err(|error| Error::invalid(format!("the body of {}: {error}", self.id)))?;
        if body.len() > BODY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "message {} has a body of {} bytes: at most {BODY_BYTES_MAX}",
                self.id,
                body.len()
            )));
        }
        Ok(body)
    }

    fn check(&self) -> Result<()> {
        // A dot would make the signed text ambiguous.
        let plain = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_');
        if self.id.is_empty() || self.id.len() > MESSAGE_ID_BYTES_MAX || !self.id.chars().all(plain)
        {
            return Err(Error::invalid(format!(
                "the id of a message must have 1 to {MESSAGE_ID_BYTES_MAX} letters, digits, - and _"
            )));
        }
        check_kind(&self.kind)?;
        self.customer.as_deref().map_or(Ok(()), |customer| check_name("a customer", customer))?;
        self.period.as_deref().map_or(Ok(()), |period| check_name("a period", period))
    }
}

/// Refuses a kind that is not in [`MESSAGE_KINDS`], for messages and for the filters of endpoints.
pub fn check_kind(kind: &str) -> Result<()> {
    if MESSAGE_KINDS.contains(&kind) {
        return Ok(());
    }
    let known = MESSAGE_KINDS.join(", ");
    Err(Error::invalid(format!("no such kind of message; it must be one of {known}")))
}

/// Derives an id from the parts that identify a message: equal parts yield equal ids, different parts different
/// ones.
pub(crate) fn message_id(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        // The length before each part makes the encoding of the list unambiguous.
        hasher.update(&part.len().to_le_bytes());
        hasher.update(part.as_bytes());
    }
    format!("msg_{}", &hasher.finalize().to_hex()[..32])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(data: &str) -> NewMessage {
        NewMessage {
            id: "m-1".to_owned(),
            kind: "aggregation.completed".to_owned(),
            customer: Some("acme".to_owned()),
            period: Some("daily".to_owned()),
            timestamp: Timestamp(1_768_262_400_000),
            data: RawValue::from_string(data.to_owned()).expect("JSON"),
        }
    }

    #[test]
    fn the_body_has_the_fields_of_both_formats_and_keeps_every_digit() {
        let data = r#"{"events":{"api.calls":12345678901234567890.123456789012345678}}"#;
        let body = message(data).body(Timestamp(1_768_262_401_999)).expect("a body");
        let head = r#"{"type":"aggregation.completed","timestamp":"2026-01-13T00:00:00Z","#;
        let about = r#""customerId":"acme","period":"daily","data":"#;
        let wanted = format!("{head}{about}{data},\"created\":1768262401}}");
        assert_eq!(body, wanted);
    }

    #[test]
    fn a_message_about_no_customer_has_no_customer_field() {
        let test = NewMessage::new("t", "webhook.test", Timestamp(0), &()).expect("a message");
        let body = test.body(Timestamp(0)).expect("a body");
        let wanted =
            r#"{"type":"webhook.test","timestamp":"1970-01-01T00:00:00Z","data":null,"created":0}"#;
        assert_eq!(body, wanted);
    }

    #[test]
    fn messages_that_could_not_be_sent_are_refused() {
        let long = "x".repeat(MESSAGE_ID_BYTES_MAX + 1);
        for id in ["", "a.b", "a b", "é", "a\n", &long] {
            let wrong = NewMessage { id: id.to_owned(), ..message("{}") };
            wrong.body(Timestamp(0)).expect_err("its id");
        }
        for kind in ["", "aggregation", "alert.triggered ", "x.y", &long] {
            let wrong = NewMessage { kind: kind.to_owned(), ..message("{}") };
            wrong.body(Timestamp(0)).expect_err("its kind");
        }
        let large = format!("\"{}\"", "x".repeat(BODY_BYTES_MAX));
        message(&large).body(Timestamp(0)).expect_err("its size");
        let late = NewMessage { timestamp: Timestamp(i64::MAX), ..message("{}") };
        late.body(Timestamp(0)).expect_err("its time");
        let nobody = NewMessage { customer: Some(String::new()), ..message("{}") };
        nobody.body(Timestamp(0)).expect_err("its customer");
    }

    #[test]
    fn different_parts_yield_different_ids() {
        let id = message_id(&["ab", "c"]);
        assert_eq!((id.len(), &id[..4]), (36, "msg_"));
        assert_eq!(id, message_id(&["ab", "c"]));
        assert_ne!(id, message_id(&["a", "bc"]));
        assert_ne!(id, message_id(&["abc"]));
        let named = NewMessage { id, ..message("{}") };
        named.body(Timestamp(0)).expect("it is an id");
    }
}
