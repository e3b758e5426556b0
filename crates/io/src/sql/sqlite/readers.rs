//! The reading connections of a SQLite file.
//!
//! Guarantees: a query sees every commit that was acknowledged before it; at most [`READERS_MAX`] run at a
//! time. Leaves to others: the writer.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{SqliteSettings, connect, gone};
use crate::clock::Clock;
use crate::error::{Error, Result};

const READERS_MAX: usize = 4;

/// A few read-only connections, opened when first needed.
#[derive(Debug)]
pub(super) struct Readers {
    settings: SqliteSettings,
    clock: Arc<dyn Clock>,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(super) fn new(settings: SqliteSettings, clock: Arc<dyn Clock>) -> Self {
        let permits = Arc::new(Semaphore::new(READERS_MAX));
        Self { settings, clock, permits, idle: Arc::default() }
    }

    pub(super) async fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| gone())?;
        let idle = Arc::clone(&self.idle);
        let (settings, clock) = (self.settings.clone(), Arc::clone(&self.clock));
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let waiting = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match waiting {
                Some(connection) => connection,
                None => connect(&settings, &clock, true).map_err(|source| Error::Sqlite {
                    doing: "open a reading connection".to_owned(),
                    source,
                })?,
            };
            let answer = call(&connection);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            answer
        });
        reading.await.map_err(|_| gone())?
    }
}
