//! A database for whoever reads, in a transaction or without.
//!
//! Guarantees: what is read sees the last commit, and does not wait for the writer. Leaves to others: statements, which
//! must not write.

use async_trait::async_trait;

use super::{Answer, Execute, Sql, Value};
use crate::error::Result;

/// A database whose statements are reads.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a>(pub(super) &'a Sql);

#[async_trait]
impl Execute for Reading<'_> {
    async fn execute(&self, text: &str, params: Vec<Value>) -> Result<Answer> {
        self.0.query(text, params).await
    }
}
