//! Parameters of statements and rows of answers, the same for both engines.
//!
//! Guarantees: reading a value with the wrong type, or a missing one, is an error that names the column. Leaves
//! to others: what the values mean. There are deliberately no floats.

use bytes::{BufMut, Bytes, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::amount::Amount;
use crate::clock::Timestamp;
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
    Blob(Bytes),
    Amount(Amount),
}

impl Value {
    /// A list for `json_list($n)`: the values of many rows in one parameter.
    pub fn json(list: &serde_json::Value) -> Self {
        Self::Text(list.to_string())
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Int(_) => "a whole number",
            Self::Text(_) => "text",
            Self::Blob(_) => "bytes",
            Self::Amount(_) => "an amount",
        }
    }
}

macro_rules! values_from {
    ($($from:ty => |$value:ident| $into:expr;)*) => {
        $(impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $into
            }
        })*
    };
}

values_from! {
    i64 => |value| Self::Int(value);
    i32 => |value| Self::Int(value.into());
    u32 => |value| Self::Int(value.into());
    bool => |value| Self::Int(value.into());
    &str => |value| Self::Text(value.to_owned());
    String => |value| Self::Text(value);
    Bytes => |value| Self::Blob(value);
    Vec<u8> => |value| Self::Blob(value.into());
    &[u8] => |value| Self::Blob(Bytes::copy_from_slice(value));
    Amount => |value| Self::Amount(value);
    Timestamp => |value| Self::Int(value.millis());
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The parameters of a statement: `params![kind, 5_i64]`.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::Value::from($value)),*]
    };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub(super) Vec<Value>);

impl Row {
    fn value(&self, column: usize) -> Result<&Value> {
        self.0.get(column).ok_or_else(|| Error::corrupt(format!("a row has no column {column}")))
    }

    fn wrong(&self, column: usize, wanted: &str) -> Error {
        let found = self.0.get(column).map_or("missing", Value::type_name);
        Error::corrupt(format!("column {column} of a row is {found}, not {wanted}"))
    }

    pub fn is_null(&self, column: usize) -> bool {
        matches!(self.0.get(column), None | Some(Value::Null))
    }

    pub fn int(&self, column: usize) -> Result<i64> {
        match self.value(column)? {
            Value::Int(value) => Ok(*value),
            _ => Err(self.wrong(column, "a whole number")),
        }
    }

    pub fn opt_int(&self, column: usize) -> Result<Option<i64>> {
        if self.is_null(column) { Ok(None) } else { self.int(column).map(Some) }
    }

    /// A non-negative integer.
    pub fn count(&self, column: usize) -> Result<u64> {
        u64::try_from(self.int(column)?).map_err(|_| self.wrong(column, "a count"))
    }

    pub fn time(&self, column: usize) -> Result<Timestamp> {
        self.int(column).map(Timestamp)
    }

    pub fn opt_time(&self, column: usize) -> Result<Option<Timestamp>> {
        Ok(self.opt_int(column)?.map(Timestamp))
    }

    pub fn text(&self, column: usize) -> Result<&str> {
        match self.value(column)? {
            Value::Text(value) => Ok(value),
            _ => Err(self.wrong(column, "text")),
        }
    }

    pub fn opt_text(&self, column: usize) -> Result<Option<&str>> {
        if self.is_null(column) { Ok(None) } else { self.text(column).map(Some) }
    }

    pub fn blob(&self, column: usize) -> Result<Bytes> {
        match self.value(column)? {
            Value::Blob(value) => Ok(value.clone()),
            _ => Err(self.wrong(column, "bytes")),
        }
    }

    pub fn opt_blob(&self, column: usize) -> Result<Option<Bytes>> {
        if self.is_null(column) { Ok(None) } else { self.blob(column).map(Some) }
    }

    pub fn amount(&self, column: usize) -> Result<Amount> {
        match self.value(column)? {
            Value::Amount(value) => Ok(*value),
            // SQLite stores amounts as bytes.
            Value::Blob(bytes) => Amount::decode(bytes),
            _ => Err(self.wrong(column, "an amount")),
        }
    }

    pub fn opt_amount(&self, column: usize) -> Result<Option<Amount>> {
        if self.is_null(column) { Ok(None) } else { self.amount(column).map(Some) }
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        use rusqlite::types::{ToSqlOutput, Value as Owned, ValueRef};
        Ok(match self {
            Self::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Self::Int(value) => ToSqlOutput::Borrowed(ValueRef::Integer(*value)),
            Self::Text(value) => {
                without_nul(value).map_err(rusqlite::Error::ToSqlConversionFailure)?;
                ToSqlOutput::Borrowed(ValueRef::Text(value.as_bytes()))
            }
            Self::Blob(value) => ToSqlOutput::Borrowed(ValueRef::Blob(value)),
            Self::Amount(value) => ToSqlOutput::Owned(Owned::Blob(value.encode())),
        })
    }
}

impl rusqlite::types::FromSql for Value {
    fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
        use rusqlite::types::ValueRef;
        match value {
            ValueRef::Null => Ok(Self::Null),
            ValueRef::Integer(value) => Ok(Self::Int(value)),
            // A value that we never write is damage. Returned as bytes, it is rejected when the row is read,
            // where the error can name the row.
            ValueRef::Text(bytes) => Ok(match std::str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Blob(Bytes::copy_from_slice(bytes)),
            }),
            ValueRef::Blob(bytes) => Ok(Self::Blob(Bytes::copy_from_slice(bytes))),
            ValueRef::Real(real) => Ok(Self::Blob(Bytes::copy_from_slice(&real.to_be_bytes()))),
        }
    }
}

type BoxError = Box<dyn std::error::Error + Sync + Send>;

/// PostgreSQL cannot store NUL in text, so SQLite must not either.
fn without_nul(text: &str) -> Result<(), BoxError> {
    if text.contains('\0') {
        Err("text with a NUL character; bytes may hold it".into())
    } else {
        Ok(())
    }
}

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        match (self, ty) {
            (Self::Null, _) => return Ok(IsNull::Yes),
            (Self::Int(value), &Type::INT8) => out.put_i64(*value),
            (Self::Int(value), &Type::INT4) => out.put_i32(i32::try_from(*value)?),
            (Self::Int(value), &Type::INT2) => out.put_i16(i16::try_from(*value)?),
            (Self::Text(value), &Type::TEXT | &Type::VARCHAR) => {
                without_nul(value)?;
                out.put_slice(value.as_bytes());
            }
            (Self::Blob(value), &Type::BYTEA) => out.put_slice(value),
            (Self::Amount(value), &Type::NUMERIC) => out.put_slice(&value.to_numeric()),
            (value, ty) => {
                return Err(
                    format!("{} does not fit a parameter of type {ty}", value.type_name()).into()
                );
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        Ok(match *ty {
            Type::INT8 => Self::Int(i64::from_sql(ty, raw)?),
            Type::INT4 => Self::Int(i32::from_sql(ty, raw)?.into()),
            Type::INT2 => Self::Int(i16::from_sql(ty, raw)?.into()),
            Type::BOOL => Self::Int(bool::from_sql(ty, raw)?.into()),
            Type::TEXT | Type::VARCHAR | Type::NAME => Self::Text(String::from_sql(ty, raw)?),
            Type::BYTEA => Self::Blob(Bytes::copy_from_slice(raw)),
            Type::NUMERIC => Self::Amount(Amount::from_numeric(raw)?),
            _ => return Err(format!("a column of type {ty}, which no table of ours has").into()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, BoxError> {
        Ok(Self::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
