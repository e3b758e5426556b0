//! `Tx`: a transaction, and the errors that its body may return.
//!
//! Guarantees: a transaction with a failed or dropped statement does not commit. Leaves to others: beginning, retrying
//! and timing it ([`Sql::write`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use super::postgres::PostgresTx;
use super::sqlite::SqliteTx;
use super::{Execute, Sql, StatementResult, Value};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::params;

/// Error of a transaction's body: the store's, or a caller's own that may carry one.
pub trait TransactionError: From<Error> {
    /// The store's error, which decides whether the transaction runs again, or else the caller's own.
    fn into_store(self) -> Result<Error, Self>;
}

impl TransactionError for Error {
    fn into_store(self) -> Result<Error, Self> {
        Ok(self)
    }
}

/// A transaction. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Tx {
    pub(super) engine: Arc<TxEngine>,
    pub(super) sql: Sql,
    /// Statements that failed, were dropped, or are still running.
    pub(super) unfinished: Arc<AtomicUsize>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per transaction, on the heap")]
pub(super) enum TxEngine {
    Sqlite(SqliteTx),
    Postgres(PostgresTx),
}

#[async_trait]
impl Execute for Tx {
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        self.step(self.one(text, params)).await
    }
}

impl Tx {
    /// Awaits a statement; the transaction cannot commit unless it succeeds.
    pub(super) async fn step<T>(&self, statement: impl Future<Output = Result<T>>) -> Result<T> {
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        // An error, or a dropped caller, leaves the statement counted.
        let done = statement.await?;
        self.unfinished.fetch_sub(1, Ordering::SeqCst);
        Ok(done)
    }

    async fn one(&self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        let text = self.sql.rewrite(text);
        let run = async {
            match &*self.engine {
                TxEngine::Sqlite(tx) => tx.one(text, params).await,
                TxEngine::Postgres(tx) => tx.one(&text, &params).await,
            }
        };
        self.sql.faulty(run).await
    }

    /// Runs one statement for each set of parameters; returns how many rows each changed.
    pub async fn execute_many(
        &self,
        text: &str,
        sets: impl Into<Arc<[Vec<Value>]>>,
    ) -> Result<Vec<u64>> {
        let sets = sets.into();
        if sets.is_empty() {
            return Ok(Vec::new());
        }
        let text = self.sql.rewrite(text);
        let run = async {
            match &*self.engine {
                TxEngine::Sqlite(tx) => tx.many(text, sets).await,
                TxEngine::Postgres(tx) => tx.many(&text, &sets).await,
            }
        };
        self.step(self.sql.faulty(run)).await
    }

    /// Makes the commit conditional on `fence`: no process can raise its counter before the transaction ends.
    pub async fn hold(&self, fence: &Fence) -> Result<()> {
        // The lock is essential: with a plain read a stale writer could commit after a take-over.
        let text = "SELECT counter FROM meta_fence WHERE name = $1 FOR SHARE";
        self.step(async {
            let found = self.one(text, params![fence.name.as_str()]).await?;
            match found.rows.first().map(|row| row.int(0)).transpose()? {
                Some(counter) if counter == fence.counter => Ok(()),
                _ => Err(fence.stale()),
            }
        })
        .await
    }

    pub(super) async fn commit(&self) -> Result<()> {
        if self.unfinished.load(Ordering::SeqCst) > 0 {
            drop(self.rollback().await);
            return Err(Error::TransactionOver {
                why: "one of its statements failed or was dropped",
            });
        }
        self.sql.faulty(self.end(true)).await
    }

    pub(super) async fn rollback(&self) -> Result<()> {
        self.end(false).await
    }

    async fn end(&self, commit: bool) -> Result<()> {
        match &*self.engine {
            TxEngine::Sqlite(tx) => tx.end(commit).await,
            TxEngine::Postgres(tx) => tx.end(commit).await,
        }
    }
}
