//! A database as an [`Execute`] for reads.
//!
//! Guarantees: a read sees the last commit and does not wait for the writer. Leaves to others: the statements,
//! which must not write.

use async_trait::async_trait;

use super::{Execute, Sql, StatementResult, Value};
use crate::error::Result;

/// Runs statements as reads.
#[derive(Clone, Copy, Debug)]
pub struct ReadExecutor<'a>(pub(super) &'a Sql);

#[async_trait]
impl Execute for ReadExecutor<'_> {
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        self.0.query(text, params).await
    }
}
