//! Many rows at once: prepared statements on SQLite, binary `COPY` through a staging table on PostgreSQL.
//!
//! Guarantees: one call has the effect of inserting its rows one by one with the conflict clause, in any order.
//! With a clause that updates, keys must be distinct within one call (PostgreSQL requires it, so we refuse
//! duplicates on both engines). Without a clause an existing key is an error. Leaves to others: the conflict
//! clause, in the common notation.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;

use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use super::postgres::failed;
use super::{Tx, TxEngine, Value};
use crate::error::{Error, Result};

/// Fewer rows are not worth a staging table.
const COPY_ROWS_MIN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    Int,
    /// `{name}` or `TEXT`.
    Text,
    Blob,
    Amount,
}

impl ColumnType {
    fn postgres(self) -> (Type, &'static str) {
        match self {
            Self::Int => (Type::INT8, "BIGINT"),
            Self::Text => (Type::TEXT, "TEXT"),
            Self::Blob => (Type::BYTEA, "BYTEA"),
            Self::Amount => (Type::NUMERIC, "NUMERIC"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Bulk {
    pub table: Cow<'static, str>,
    /// In the order of the values of each row. `Int` columns may be narrower in the table.
    pub columns: Cow<'static, [(&'static str, ColumnType)]>,
    /// Number of leading columns that form the key.
    pub key_columns: usize,
    /// The clause after `ON CONFLICT (key)`: `DO NOTHING`, or `DO UPDATE SET … [WHERE …]`; empty if no key
    /// exists yet, which is fastest.
    pub on_conflict: Cow<'static, str>,
}

impl Bulk {
    fn names(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }

    fn conflict(&self) -> String {
        if self.on_conflict.is_empty() {
            return String::new();
        }
        let key: Vec<&str> =
            self.columns[..self.key_columns].iter().map(|(name, _)| *name).collect();
        format!("ON CONFLICT ({}) {}", key.join(", "), self.on_conflict)
    }

    fn insert_one(&self) -> String {
        let places: Vec<String> =
            (1..=self.columns.len()).map(|number| format!("${number}")).collect();
        format!(
            "INSERT INTO {} ({}) VALUES ({}) {}",
            self.table,
            self.names(),
            places.join(", "),
            self.conflict()
        )
    }

    /// Name of the staging table: one per table and choice of columns, with a bounded length.
    fn stage(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.table.hash(&mut hasher);
        for (name, ty) in self.columns.iter() {
            (name, ty.postgres().1).hash(&mut hasher);
        }
        format!("stage_{:016x}", hasher.finish())
    }

    fn validate(&self, rows: &[Vec<Value>]) -> Result<()> {
        if let Some(row) = rows.iter().find(|row| row.len() != self.columns.len()) {
            return Err(Error::invalid(format!(
                "a row has {} values for {} columns of {}",
                row.len(),
                self.columns.len(),
                self.table
            )));
        }
        if self.on_conflict.is_empty() || self.on_conflict.starts_with("DO NOTHING") {
            return Ok(());
        }
        let mut seen = HashSet::with_capacity(rows.len());
        let twice = rows.iter().find(|row| !seen.insert(RowKey(&row[..self.key_columns])));
        twice.map_or(Ok(()), |row| {
            Err(Error::invalid(format!(
                "the key {:?} occurs twice in one bulk write to {}",
                &row[..self.key_columns],
                self.table
            )))
        })
    }
}

#[derive(PartialEq, Eq)]
struct RowKey<'a>(&'a [Value]);

impl Hash for RowKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for value in self.0 {
            match value {
                Value::Null => 0.hash(state),
                Value::Int(value) => value.hash(state),
                Value::Text(value) => value.hash(state),
                Value::Blob(value) => value.hash(state),
                Value::Amount(value) => value.hash(state),
            }
        }
    }
}

impl Tx {
    /// Inserts many rows; returns how many were inserted or updated.
    pub async fn bulk(&self, bulk: &Bulk, rows: impl Into<Arc<[Vec<Value>]>>) -> Result<u64> {
        let rows = rows.into();
        bulk.validate(&rows)?;
        if let TxEngine::Postgres(tx) = &*self.engine
            && rows.len() >= COPY_ROWS_MIN
        {
            let copied = async { copy(&*tx.client().await?, bulk, &rows).await };
            return self.step(self.sql.faulty(copied)).await;
        }
        let changed = self.execute_many(&bulk.insert_one(), rows).await?;
        Ok(changed.iter().sum())
    }
}

async fn copy(client: &deadpool_postgres::Object, bulk: &Bulk, rows: &[Vec<Value>]) -> Result<u64> {
    if bulk.on_conflict.is_empty() {
        return copy_into(client, &bulk.table, bulk, rows).await;
    }
    let columns: Vec<String> =
        bulk.columns.iter().map(|(name, ty)| format!("{name} {}", ty.postgres().1)).collect();
    let stage = bulk.stage();
    // The staging table belongs to the connection and is emptied at the end of every transaction.
    let create = format!(
        "CREATE TEMP TABLE IF NOT EXISTS {stage} ({}) ON COMMIT DELETE ROWS; TRUNCATE {stage}",
        columns.join(", ")
    );
    client
        .batch_execute(&create)
        .await
        .map_err(|source| failed("create a staging table", source))?;
    copy_into(client, &stage, bulk, rows).await?;
    let names = bulk.names();
    let merge = format!(
        "INSERT INTO {} ({names}) SELECT {names} FROM {stage} {}",
        bulk.table,
        bulk.conflict()
    );
    client.execute(&merge, &[]).await.map_err(|source| failed(&merge, source))
}

async fn copy_into(
    client: &deadpool_postgres::Object,
    table: &str,
    bulk: &Bulk,
    rows: &[Vec<Value>],
) -> Result<u64> {
    let copy = format!("COPY {table} ({}) FROM STDIN (FORMAT binary)", bulk.names());
    let at = |source| failed(&copy, source);
    let sink = client.copy_in(&copy).await.map_err(at)?;
    let types: Vec<Type> = bulk.columns.iter().map(|(_, ty)| ty.postgres().0).collect();
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
    for row in rows {
        let values: Vec<&(dyn ToSql + Sync)> =
            row.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        writer.as_mut().write(&values).await.map_err(at)?;
    }
    writer.finish().await.map_err(at)
}
