//! Records in the SQL tables `meta_record` and `meta_fence`, which every database has (`sql/store_tables.rs`).
//!
//! Guarantees: those of the trait. A batch is one transaction; the fence is read with a lock that a take-over
//! has to wait for. A check for absence inserts the key and deletes it again, because only the unique index can
//! keep another transaction from inserting it meanwhile.

use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Batch, Condition, Key, KeyRange, MetaStore, Op, Record, SCAN_LIMIT_MAX, Version};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::params;
use crate::sql::{Row, Sql, Tx, Value};

#[derive(Debug)]
pub struct SqlMeta {
    sql: Sql,
}

impl SqlMeta {
    pub fn shared(sql: Sql) -> Arc<dyn MetaStore> {
        Arc::new(Self { sql })
    }
}

#[async_trait]
impl MetaStore for SqlMeta {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        let text = "SELECT value, version FROM meta_record WHERE key = $1";
        let found = self.sql.query(text, params![key.to_bytes()]).await?;
        found.rows.first().map(|row| record(row, 0)).transpose()
    }

    async fn scan(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Record)>> {
        let mut conditions = Vec::new();
        let mut params = Vec::new();
        let mut add = |operator: &str, key: &Key| {
            params.push(Value::Blob(key.to_bytes()));
            conditions.push(format!("key {operator} ${}", params.len()));
        };
        match &range.start {
            Bound::Included(key) => add(">=", key),
            Bound::Excluded(key) => add(">", key),
            Bound::Unbounded => {}
        }
        match &range.end {
            Bound::Included(key) => add("<=", key),
            Bound::Excluded(key) => add("<", key),
            Bound::Unbounded => {}
        }
        if conditions.is_empty() {
            conditions.push("TRUE".to_owned());
        }
        let limit = limit.min(SCAN_LIMIT_MAX);
        params.push(Value::Int(i64::try_from(limit).unwrap_or(i64::MAX)));
        let text = format!(
            "SELECT key, value, version FROM meta_record WHERE {} ORDER BY key LIMIT ${}",
            conditions.join(" AND "),
            params.len()
        );
        let found = self.sql.query(&text, params).await?;
        let records = found.rows.iter();
        records.map(|row| Ok((Key(row.blob(0)?), record(row, 1)?))).collect()
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Option<Version>>> {
        batch.validate()?;
        // Drawn once, so that a retried transaction writes the same versions.
        let versions: Vec<Option<Version>> = batch
            .ops
            .iter()
            .map(|op| matches!(op, Op::Put { .. }).then(|| Version(self.sql.entropy().mark())))
            .collect();
        let plan = Plan::of(&batch.ops, &versions);
        self.sql
            .write(|tx| {
                let (plan, fence) = (&plan, &batch.fence);
                async move {
                    if let Some(fence) = fence {
                        tx.hold(fence).await?;
                    }
                    plan.run(&tx).await
                }
            })
            .await?;
        Ok(versions)
    }

    async fn now(&self) -> Result<Timestamp> {
        self.sql.now().await
    }

    async fn is_gone(&self, owner: &str) -> Result<bool> {
        self.sql.is_gone(owner).await
    }
}

fn record(row: &Row, column: usize) -> Result<Record> {
    Ok(Record { value: row.blob(column)?, version: Version(row.int(column + 1)?) })
}

/// The operations of a batch grouped by statement, so that each statement runs once for all its keys.
struct Plan {
    steps: Vec<Step>,
}

struct Step {
    text: &'static str,
    sets: Vec<Vec<Value>>,
    /// The object of each set, for the error if it changes nothing; `None` if it may change nothing.
    must_change: Option<Vec<String>>,
}

impl Plan {
    fn of(ops: &[Op], versions: &[Option<Version>]) -> Self {
        let mut steps: Vec<Step> = Vec::new();
        let mut ordered: Vec<(&Op, Option<Version>)> =
            ops.iter().zip(versions.iter().copied()).collect();
        // All writers use one order; otherwise two batches could deadlock.
        ordered.sort_by_key(|(op, _)| op.key());
        for (op, version) in ordered {
            for (text, set, must_change) in statements(op, version) {
                let step = match steps.iter_mut().find(|step| step.text == text) {
                    Some(step) => step,
                    None => {
                        let must_change = must_change.as_ref().map(|_| Vec::new());
                        steps.push(Step { text, sets: Vec::new(), must_change });
                        let last = steps.len() - 1;
                        &mut steps[last]
                    }
                };
                step.sets.push(set);
                if let (Some(all), Some(what)) = (&mut step.must_change, must_change) {
                    all.push(what);
                }
            }
        }
        Self { steps }
    }

    async fn run(&self, tx: &Tx) -> Result<()> {
        for step in &self.steps {
            let changed = tx.execute_many(step.text, step.sets.clone()).await?;
            let Some(whats) = &step.must_change else {
                continue;
            };
            if let Some((_, what)) = changed.iter().zip(whats).find(|(changed, _)| **changed == 0) {
                return Err(Error::Conflict { what: what.clone() });
            }
        }
        Ok(())
    }
}

const UPSERT: &str = "INSERT INTO meta_record (key, value, version) VALUES ($1, $2, $3)
     ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version";
const INSERT: &str = "INSERT INTO meta_record (key, value, version) VALUES ($1, $2, $3)
     ON CONFLICT (key) DO NOTHING";
const UPDATE: &str =
    "UPDATE meta_record SET value = $2, version = $3 WHERE key = $1 AND version = $4";
const DELETE_ANY: &str = "DELETE FROM meta_record WHERE key = $1";
const DELETE_VERSION: &str = "DELETE FROM meta_record WHERE key = $1 AND version = $2";
const CHECK_VERSION: &str =
    "UPDATE meta_record SET version = version WHERE key = $1 AND version = $2";
const INSERT_ABSENT: &str =
    "INSERT INTO meta_record (key, value, version) VALUES ($1, '', 0) ON CONFLICT (key) DO NOTHING";
const DELETE_ABSENT: &str = "DELETE FROM meta_record WHERE key = $1 AND version = 0";
const RAISE: &str = "INSERT INTO meta_fence (name, counter) VALUES ($1, $2)
     ON CONFLICT (name) DO UPDATE SET counter = excluded.counter
     WHERE meta_fence.counter < excluded.counter";

type Statement = (&'static str, Vec<Value>, Option<String>);

fn statements(op: &Op, version: Option<Version>) -> Vec<Statement> {
    let mark = version.map_or(0, |version| version.0);
    match op {
        Op::Put { key, value, condition } => {
            let mut set = params![key.to_bytes(), value.clone(), mark];
            vec![match condition {
                Condition::Any => (UPSERT, set, None),
                Condition::Absent => (INSERT, set, changed(key)),
                Condition::Version(version) => {
                    set.push(Value::Int(version.0));
                    (UPDATE, set, changed(key))
                }
            }]
        }
        Op::Delete { key, condition } => vec![match condition {
            Condition::Version(version) => {
                (DELETE_VERSION, params![key.to_bytes(), version.0], changed(key))
            }
            Condition::Any | Condition::Absent => (DELETE_ANY, params![key.to_bytes()], None),
        }],
        Op::Check { key, condition } => match condition {
            Condition::Any => Vec::new(),
            Condition::Version(version) => {
                vec![(CHECK_VERSION, params![key.to_bytes(), version.0], changed(key))]
            }
            Condition::Absent => vec![
                (INSERT_ABSENT, params![key.to_bytes()], changed(key)),
                (DELETE_ABSENT, params![key.to_bytes()], None),
            ],
        },
        Op::Raise(fence) => {
            let what = Some(format!("the fence {}", fence.name));
            vec![(RAISE, params![fence.name.as_str(), fence.counter], what)]
        }
    }
}

fn changed(key: &Key) -> Option<String> {
    Some(format!("the record {key}"))
}
