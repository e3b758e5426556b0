//! `Record`: an object of an answer, declared: names, forms, and the columns that its values come from.
//!
//! The declaration makes the columns of the query, the JSON of its rows, and the schema in `docs/openapi.json`, so the
//! three can not differ.
//!
//! | form | JSON |
//! |---|---|
//! | [`Form::Number`] | a number: heights, indexes, counts, seconds since 1970 |
//! | [`Form::Amount`] | a string of decimal digits, possibly negative: what may have 256 bits and more |
//! | [`Form::Bytes`], [`Form::Address`] | `0x…` in lower case |
//! | [`Form::Date`] | `2026-01-31`, of a number of days |
//!
//! Guarantees: what a row lacks is null, and a field that is not nullable is never null. Leaves to others: fields
//! without a column, which whoever makes the answer adds.

use alloy_primitives::{Address, hex};
use logmill_io::Row;
use serde_json::{Map, Value};

use super::error::{ApiError, ApiResult};

/// An object of an answer, as JSON.
pub(super) type Object = Map<String, Value>;

/// An object of an answer.
#[derive(Debug)]
pub(super) struct Record {
    /// Its name in the schema.
    pub(super) name: &'static str,
    /// What it is.
    pub(super) about: &'static str,
    /// Whose fields it has beside its own.
    pub(super) base: Option<&'static Record>,
    /// Its fields.
    pub(super) fields: &'static [Field],
}

/// A field of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// Its name.
    pub(super) name: &'static str,
    /// What its value looks like.
    pub(super) form: Form,
    /// The column that it comes from; none if it is computed.
    column: Option<&'static str>,
    /// Whether it may be null.
    pub(super) is_nullable: bool,
    /// What it means.
    pub(super) about: &'static str,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Number,
    Amount,
    Text,
    Bytes,
    Address,
    /// True or false, of 0 or 1.
    Flag,
    /// A day, of its number since 1970-01-01.
    Date,
    /// A word, of its number.
    Word(&'static [(i64, &'static str)]),
    /// Words, of a set of bits.
    Words(fn(i64) -> Vec<&'static str>),
    Object(&'static Record),
    List(&'static Form),
}

/// A field that comes from a column.
pub(super) const fn column(
    name: &'static str,
    form: Form,
    column: &'static str,
    about: &'static str,
) -> Field {
    Field { name, form, column: Some(column), is_nullable: false, about }
}

/// A field that is computed.
pub(super) const fn computed(name: &'static str, form: Form, about: &'static str) -> Field {
    Field { name, form, column: None, is_nullable: false, about }
}

impl Field {
    /// The same, or null.
    pub(super) const fn or_null(self) -> Self {
        Self { is_nullable: true, ..self }
    }
}

impl Record {
    /// All fields, those of its base first.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static Field> {
        let base = self.base.map_or(&[][..], |base| base.fields);
        base.iter().chain(self.fields)
    }

    fn columns(&self) -> impl Iterator<Item = (&'static Field, &'static str)> {
        self.all().filter_map(|field| Some((field, field.column?)))
    }

    /// How many columns of a query it takes.
    pub(super) fn width(&self) -> usize {
        self.columns().count()
    }

    /// Its columns, of rows that are called `s`.
    pub(super) fn select(&self) -> String {
        let column = |(field, column): (&Field, &str)| match field.form {
            Form::Address => format!("(SELECT address FROM address WHERE id = s.{column})"),
            _ => format!("s.{column}"),
        };
        self.columns().map(column).collect::<Vec<_>>().join(", ")
    }

    /// The object of a row that begins with these columns.
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

    /// The object in which everything is null that may be.
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
            word.ok_or_else(|| ApiError::internal("a number without a word"))?.into()
        }
        Form::Words(words) => words(row.int(place)?).into(),
        Form::Object(_) | Form::List(_) => {
            return Err(ApiError::internal("a column is no object and no list"));
        }
    })
}

/// Bytes as `0x…`.
pub(super) fn bytes(bytes: &[u8]) -> Value {
    hex::encode_prefixed(bytes).into()
}

/// An address as `0x…`.
pub(super) fn address(address: &Address) -> Value {
    bytes(address.as_slice())
}

/// The address in a field, if there is one.
pub(super) fn address_in(object: &Object, field: &str) -> Option<Address> {
    object.get(field)?.as_str()?.parse().ok()
}

/// A day as people write it; null for days that no calendar has.
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
    fn a_day_is_a_date_where_there_is_one() {
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
    fn what_is_written_as_an_address_is_read_as_one() {
        let who = Address::repeat_byte(0xab);
        let object = Object::from_iter([("who".to_owned(), address(&who))]);
        assert_eq!(object["who"], format!("0x{}", "ab".repeat(20)));
        assert_eq!(address_in(&object, "who"), Some(who));
        assert_eq!(address_in(&object, "nobody"), None);
    }
}
