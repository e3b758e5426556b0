//! `Record`: the declaration of a response object: names, forms, and the columns of its values.
//!
//! The columns of the query, the JSON of its rows and the schema in `docs/openapi.json` all come from this declaration,
//! so they cannot diverge.
//!
//! | form | JSON |
//! |---|---|
//! | [`Form::Number`] | a number: heights, indexes, counts, seconds since 1970 |
//! | [`Form::Amount`] | a string of decimal digits, possibly negative: values that may exceed 256 bits |
//! | [`Form::Bytes`], [`Form::Address`] | `0x…` in lower case |
//! | [`Form::Date`] | `2026-01-31`, from a day number |
//!
//! Guarantees: a value missing in a row is null, and a field that is not nullable is never null. Leaves to others:
//! fields without a column, which the handler adds.

use alloy_primitives::{Address, hex};
use logmill_io::Row;
use serde_json::{Map, Value};

use super::error::{ApiError, ApiResult};

pub(super) type Object = Map<String, Value>;

#[derive(Debug)]
pub(super) struct Record {
    /// Name in the schema.
    pub(super) name: &'static str,
    /// Description in the schema.
    pub(super) about: &'static str,
    /// Record whose fields it includes before its own.
    pub(super) base: Option<&'static Record>,
    pub(super) fields: &'static [Field],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// Source column; `None` if computed.
    column: Option<&'static str>,
    pub(super) is_nullable: bool,
    /// Description in the schema.
    pub(super) about: &'static str,
}

/// JSON form of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Number,
    Amount,
    Text,
    Bytes,
    Address,
    /// Boolean, stored as 0 or 1.
    Flag,
    /// A date, stored as days since 1970-01-01.
    Date,
    /// A word, stored as its number.
    Word(&'static [(i64, &'static str)]),
    /// A list of words, stored as a bit set.
    Words(fn(i64) -> Vec<&'static str>),
    Object(&'static Record),
    List(&'static Form),
}

/// A field read from a column.
pub(super) const fn column(
    name: &'static str,
    form: Form,
    column: &'static str,
    about: &'static str,
) -> Field {
    Field { name, form, column: Some(column), is_nullable: false, about }
}

/// A field that the handler computes.
pub(super) const fn computed(name: &'static str, form: Form, about: &'static str) -> Field {
    Field { name, form, column: None, is_nullable: false, about }
}

impl Field {
    /// The same field, nullable.
    pub(super) const fn or_null(self) -> Self {
        Self { is_nullable: true, ..self }
    }
}

impl Record {
    /// All fields, those of the base first.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static Field> {
        let base = self.base.map_or(&[][..], |base| base.fields);
        base.iter().chain(self.fields)
    }

    fn columns(&self) -> impl Iterator<Item = (&'static Field, &'static str)> {
        self.all().filter_map(|field| Some((field, field.column?)))
    }

    /// Number of columns it occupies in a query.
    pub(super) fn width(&self) -> usize {
        self.columns().count()
    }

    /// Its columns as SQL, for rows aliased `s`.
    pub(super) fn select(&self) -> String {
        let column = |(field, column): (&Field, &str)| match field.form {
            Form::Address => format!("(SELECT address FROM address WHERE id = s.{column})"),
            _ => format!("s.{column}"),
        };
        self.columns().map(column).collect::<Vec<_>>().join(", ")
    }

    /// Converts a row that begins with these columns.
    pub(super) fn read(&self, row: &Row) -> ApiResult<Object> {
        let mut object = Object::new();
        for (place, (field, _)) in self.columns().enumerate() {
            let value = value(field.form, row, place)?;
            if value.is_null() && !field.is_nullable {
                let what = format!("{} of {} is null", field.name, self.name);
                return Err(ApiError::internal(&what));
            }
            object.insert(field.name.to_owned(), value);
        }
        Ok(object)
    }

    /// An object in which every nullable field is null.
    pub(super) fn empty(&self) -> Object {
        let nullable = self.all().filter(|field| field.is_nullable);
        nullable.map(|field| (field.name.to_owned(), Value::Null)).collect()
    }
}

fn value(form: Form, row: &Row, place: usize) -> ApiResult<Value> {
    if row.is_null(place) {
        return Ok(Value::Null);
    }
    Ok(match form {
        Form::Number => row.int(place)?.into(),
        Form::Amount => row.amount(place)?.to_string().into(),
        Form::Text => row.text(place)?.into(),
        Form::Bytes | Form::Address => bytes(&row.blob(place)?),
        Form::Flag => (row.int(place)? != 0).into(),
        Form::Date => date(row.int(place)?),
        Form::Word(words) => {
            let number = row.int(place)?;
            let word = words.iter().find(|(of, _)| *of == number).map(|(_, word)| *word);
            word.ok_or_else(|| ApiError::internal("a stored number has no name"))?.into()
        }
        Form::Words(words) => words(row.int(place)?).into(),
        Form::Object(_) | Form::List(_) => {
            return Err(ApiError::internal("a column cannot hold an object or a list"));
        }
    })
}

/// Bytes as `0x…`.
pub(super) fn bytes(bytes: &[u8]) -> Value {
    hex::encode_prefixed(bytes).into()
}

/// Address as `0x…`.
pub(super) fn address(address: &Address) -> Value {
    bytes(address.as_slice())
}

/// The address in a field, if it contains one.
pub(super) fn address_in(object: &Object, field: &str) -> Option<Address> {
    object.get(field)?.as_str()?.parse().ok()
}

/// A day as `YYYY-MM-DD`; null outside the calendar's range.
fn date(day: i64) -> Value {
    const DAY_S: i64 = 86_400;
    let start = day.checked_mul(DAY_S).and_then(|s| jiff::Timestamp::from_second(s).ok());
    let date = start.map(|start| jiff::tz::Offset::UTC.to_datetime(start).date());
    date.map_or(Value::Null, |date| date.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_number_is_a_date_within_the_calendar() {
        for (day, expected) in [
            (0, Value::from("1970-01-01")),
            (19_782, "2024-02-29".into()),
            (-1, "1969-12-31".into()),
            (i64::MAX, Value::Null),
            (i64::MAX / 86_400, Value::Null),
        ] {
            assert_eq!(date(day), expected, "{day}");
        }
    }

    #[test]
    fn a_rendered_address_is_read_back() {
        let who = Address::repeat_byte(0xab);
        let object = Object::from_iter([("who".to_owned(), address(&who))]);
        assert_eq!(object["who"], format!("0x{}", "ab".repeat(20)));
        assert_eq!(address_in(&object, "who"), Some(who));
        assert_eq!(address_in(&object, "nobody"), None);
    }
}
