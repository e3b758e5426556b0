//! Caches statements rewritten for an engine.
//!
//! Guarantees: at most [`REWRITTEN_MAX`] are cached. Leaves to others: the rewriting ([`super::dialect`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::Engine;
use super::dialect::Dialect;

const REWRITTEN_MAX: usize = 2_048;

#[derive(Debug, Default)]
pub(super) struct StatementCache {
    skew_ms: AtomicI64,
    texts: RwLock<HashMap<String, Arc<str>>>,
}

impl StatementCache {
    /// The statement in the dialect of `engine`.
    pub(super) fn get(&self, text: &str, engine: &Engine) -> Arc<str> {
        let known = self.texts.read().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        known.unwrap_or_else(|| {
            let dialect = match engine {
                Engine::Sqlite(_) => Dialect::Sqlite,
                Engine::Postgres(_) => {
                    Dialect::Postgres { skew_ms: self.skew_ms.load(Ordering::SeqCst) }
                }
            };
            let rewritten: Arc<str> = dialect.rewrite(text).into();
            let mut texts = self.texts.write().unwrap_or_else(PoisonError::into_inner);
            if texts.len() >= REWRITTEN_MAX {
                texts.clear();
            }
            texts.insert(text.to_owned(), Arc::clone(&rewritten));
            rewritten
        })
    }

    /// Shifts the clock that statements on PostgreSQL read.
    pub(super) fn skew_clock(&self, by_ms: i64) {
        self.skew_ms.fetch_add(by_ms, Ordering::SeqCst);
        self.texts.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
