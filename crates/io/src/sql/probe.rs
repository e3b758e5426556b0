//! Checks whether a database answers.
//!
//! Guarantees: a probe asks once without retries, so that it reports the current state; it writes nothing. It
//! also fails if the handle is poisoned, or if SQLite's writer thread is gone. Leaves to others: how long to
//! wait.

use std::sync::Arc;

use super::{Engine, Sql};
use crate::error::Result;

impl Sql {
    /// Sends the database a trivial query, once.
    pub async fn probe(&self) -> Result<()> {
        let text: Arc<str> = Arc::from("SELECT 1");
        let asked = async {
            match &*self.engine {
                Engine::Sqlite(sqlite) => {
                    sqlite.usable()?;
                    sqlite.query(text, Vec::new()).await
                }
                Engine::Postgres(postgres) => postgres.one(&text, &[]).await,
            }
        };
        self.faulty(asked).await.map(|_| ())
    }
}
