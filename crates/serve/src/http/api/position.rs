//! `Position`: a position in the order of a list, and the cursor that carries it to the next request.
//!
//! A cursor is a JSON array in base64url: the name of the list, then the values of the columns in the list's order. It
//! is opaque to clients.
//!
//! Guarantees: a cursor of another list, or one that does not decode to a position, is rejected; any decoded position
//! is safe, because it is only compared. Leaves to others: the statements ([`super::list`]).

use alloy_primitives::hex;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use logmill_io::{Amount, Row, Value};
use logmill_pipeline::derive::Kind;
use serde_json::Value as Json;

use super::error::{ApiError, ApiResult};

/// Maximum length of a cursor: the name of a list and a few values of at most 320 bits.
const CURSOR_BYTES_MAX: usize = 512;

/// A position in the order of a list. Positions of one list sort in ascending order of its rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position(pub(super) Vec<OrderValue>);

/// The value of one ordering column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OrderValue {
    Int(i64),
    Amount(Amount),
    Bytes(Bytes),
}

impl OrderValue {
    /// The lower or upper bound of all values of a kind.
    pub(super) fn end(kind: Kind, above: bool) -> Self {
        match (kind, above) {
            (Kind::Int | Kind::Address, true) => Self::Int(i64::MAX),
            (Kind::Int | Kind::Address, false) => Self::Int(i64::MIN),
            (Kind::Amount, true) => Self::Amount(Amount::MAX),
            (Kind::Amount, false) => Self::Amount(Amount::MIN),
            // No list is in descending order of bytes.
            (Kind::Bytes | Kind::Text, _) => Self::Bytes(Bytes::new()),
        }
    }

    pub(super) fn read(kind: Kind, row: &Row, column: usize) -> ApiResult<Self> {
        Ok(match kind {
            Kind::Int | Kind::Address => Self::Int(row.int(column)?),
            Kind::Amount => Self::Amount(row.amount(column)?),
            Kind::Bytes | Kind::Text => Self::Bytes(row.blob(column)?),
        })
    }

    /// As an SQL parameter.
    pub(super) fn value(&self) -> Value {
        match self {
            Self::Int(value) => Value::Int(*value),
            Self::Amount(value) => Value::Amount(*value),
            Self::Bytes(value) => Value::Blob(value.clone()),
        }
    }

    fn to_json(&self) -> Json {
        match self {
            Self::Int(value) => (*value).into(),
            Self::Amount(value) => value.to_string().into(),
            Self::Bytes(value) => hex::encode(value).into(),
        }
    }

    fn of_json(kind: Kind, json: &Json) -> Option<Self> {
        Some(match kind {
            Kind::Int | Kind::Address => Self::Int(json.as_i64()?),
            Kind::Amount => Self::Amount(json.as_str()?.parse().ok()?),
            Kind::Bytes | Kind::Text => Self::Bytes(hex::decode(json.as_str()?).ok()?.into()),
        })
    }
}

impl Position {
    /// The cursor that continues after this position.
    pub(super) fn cursor(&self, list: &str) -> String {
        let places = self.0.iter().map(OrderValue::to_json);
        let all: Vec<Json> = std::iter::once(Json::from(list)).chain(places).collect();
        BASE64_URL_SAFE_NO_PAD.encode(Json::from(all).to_string())
    }

    /// Decodes a cursor of this list, whose ordering columns have these kinds.
    pub(super) fn of_cursor(list: &str, kinds: &[Kind], cursor: &str) -> ApiResult<Self> {
        Self::parse(list, kinds, cursor).ok_or_else(ApiError::cursor)
    }

    fn parse(list: &str, kinds: &[Kind], cursor: &str) -> Option<Self> {
        if cursor.len() > CURSOR_BYTES_MAX {
            return None;
        }
        let text = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let all: Vec<Json> = serde_json::from_slice(&text).ok()?;
        let (name, places) = all.split_first()?;
        if name != list || places.len() != kinds.len() {
            return None;
        }
        let places = kinds.iter().zip(places).map(|(kind, json)| OrderValue::of_json(*kind, json));
        places.collect::<Option<_>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 3] = [Kind::Int, Kind::Amount, Kind::Bytes];

    fn encoded(text: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(text)
    }

    #[test]
    fn a_cursor_decodes_to_its_position() {
        for (int, amount, bytes) in [
            (0, Amount::ZERO, Bytes::new()),
            (i64::MIN, Amount::MIN, Bytes::from_static(&[0, 255])),
            (i64::MAX, Amount::MAX, Bytes::from_static(&[7; 32])),
        ] {
            let places =
                vec![OrderValue::Int(int), OrderValue::Amount(amount), OrderValue::Bytes(bytes)];
            let position = Position(places);
            let cursor = position.cursor("a list");
            assert!(cursor.len() <= CURSOR_BYTES_MAX, "{cursor}");
            assert_eq!(Position::of_cursor("a list", &KINDS, &cursor), Ok(position));
            assert_eq!(
                Position::of_cursor("another", &KINDS, &cursor),
                Err(ApiError::cursor()),
                "it is of one list"
            );
        }
    }

    #[test]
    fn an_invalid_cursor_is_refused() {
        let good = encoded(r#"["a list",1,"2","03"]"#);
        assert!(Position::of_cursor("a list", &KINDS, &good).is_ok());
        for bad in [
            String::new(),
            "!!".to_owned(),
            "ü".to_owned(),
            format!("{good}="),
            good[1..].to_owned(),
            encoded(""),
            encoded("[]"),
            encoded("{}"),
            encoded(r#"["a list"]"#),
            encoded(r#"["a list",1,"2"]"#),
            encoded(r#"["a list",1,"2","03",4]"#),
            encoded(r#"["a list","1","2","03"]"#),
            encoded(r#"["a list",1.5,"2","03"]"#),
            encoded(r#"["a list",9223372036854775808,"2","03"]"#),
            encoded(r#"["a list",1,2,"03"]"#),
            encoded(r#"["a list",1,"x","03"]"#),
            encoded(r#"["a list",1,"2","0"]"#),
            encoded(r#"["a list",1,"2","' OR 1=1 --"]"#),
            encoded(&format!(r#"["a list",1,"{}","03"]"#, "9".repeat(100))),
            encoded(&format!(r#"["a list",1,"2","{}"]"#, "00".repeat(400))),
        ] {
            let refused = Position::of_cursor("a list", &KINDS, &bad);
            assert_eq!(refused, Err(ApiError::cursor()), "{bad}");
        }
    }
}
