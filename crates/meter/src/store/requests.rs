//! Repeatable requests: the outcomes of requests with an `Idempotency-Key`.
//!
//! Guarantees: the key and the effects of the request are written in one transaction, so that a repeated request finds
//! both or neither; of two concurrent ones the second waits for the first. A key that was used for another request is a
//! conflict. No secret is kept: an outcome names what was created, not its secrets. Outcomes are kept for `KEPT`, at
//! most `REQUESTS_MAX` of them: the oldest are removed. Leaves to others: building a response from an outcome.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Sql, Tx, millis, params};
use serde_json::Value as Json;

use crate::error::{Error, Result};

/// How long an outcome is kept.
const KEPT: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of outcomes.
const REQUESTS_MAX: i64 = 100_000;
/// Maximum number of outcomes that one statement removes.
const REMOVED_AT_ONCE: i64 = 5_000;
/// Maximum length of a client's key.
pub const KEY_BYTES_MAX: usize = 255;

/// A request with a key chosen by its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedRequest {
    /// A hash of the sender and its key.
    key: String,
    /// A hash of path and body.
    request: String,
}

impl KeyedRequest {
    pub fn new(sender: &str, key: &str, path: &str, body: &[u8]) -> Result<Self> {
        let is_fine = !key.is_empty()
            && key.len() <= KEY_BYTES_MAX
            && key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if !is_fine {
            return Err(Error::invalid(format!(
                "Idempotency-Key must have 1 to {KEY_BYTES_MAX} printable ASCII characters"
            )));
        }
        Ok(Self {
            key: hash(&[sender.as_bytes(), key.as_bytes()]),
            request: hash(&[path.as_bytes(), body]),
        })
    }

    /// Claims the key for this transaction; returns the outcome if the request was done before.
    pub(crate) async fn claim_in(&self, tx: &Tx) -> Result<Option<Json>> {
        let text = "DELETE FROM meter_request WHERE key = $1 AND at_ms <= now_ms() - $2";
        tx.execute(text, params![self.key.as_str(), millis(KEPT)]).await?;
        // Waits for another transaction that has claimed the key.
        let text = "INSERT INTO meter_request (key, request, outcome, at_ms)
            VALUES ($1, $2, '', now_ms()) ON CONFLICT (key) DO NOTHING RETURNING key";
        let params = params![self.key.as_str(), self.request.as_str()];
        if !tx.execute(text, params).await?.rows.is_empty() {
            return Ok(None);
        }
        let text = "SELECT request, outcome FROM meter_request WHERE key = $1";
        let found = tx.execute(text, params![self.key.as_str()]).await?;
        let row = found.row()?;
        if row.text(0)? != self.request {
            return Err(Error::conflict(
                "this Idempotency-Key was used for another request in the last 24 hours",
            ));
        }
        let outcome = serde_json::from_str(row.text(1)?);
        Ok(Some(outcome.map_err(|error| Error::corrupt(format!("an outcome: {error}")))?))
    }

    /// Stores the outcome, in the transaction that claimed the key.
    pub(crate) async fn keep_in(&self, tx: &Tx, outcome: &Json) -> Result<()> {
        let text = "UPDATE meter_request SET outcome = $2 WHERE key = $1";
        tx.execute(text, params![self.key.as_str(), outcome.to_string()]).await?;
        Ok(())
    }
}

/// Claims the key of a request that may have one.
pub(crate) async fn claim_in(tx: &Tx, request: Option<&KeyedRequest>) -> Result<Option<Json>> {
    match request {
        Some(request) => request.claim_in(tx).await,
        None => Ok(None),
    }
}

/// Stores the outcome of a request that may have a key.
pub(crate) async fn keep_in(tx: &Tx, request: Option<&KeyedRequest>, outcome: &Json) -> Result<()> {
    match request {
        Some(request) => request.keep_in(tx, outcome).await,
        None => Ok(()),
    }
}

/// Releases a key that was claimed in this transaction and not used.
pub(crate) async fn release_in(tx: &Tx, request: Option<&KeyedRequest>) -> Result<()> {
    if let Some(request) = request {
        let text = "DELETE FROM meter_request WHERE key = $1";
        tx.execute(text, params![request.key.as_str()]).await?;
    }
    Ok(())
}

/// Executes a request unless it was done before; returns the outcome. For idempotent work of several transactions:
/// if this process dies in the middle, a repeated request does the rest.
pub(crate) async fn once(
    sql: &Sql,
    request: Option<&KeyedRequest>,
    work: impl Future<Output = Result<Json>>,
) -> Result<Json> {
    let Some(request) = request else { return work.await };
    let text = "SELECT request, outcome FROM meter_request
        WHERE key = $1 AND at_ms > now_ms() - $2";
    let params = params![request.key.as_str(), millis(KEPT)];
    if !sql.query(text, params).await?.rows.is_empty() {
        let before = sql.write(|tx| async move { request.claim_in(&tx).await });
        if let Some(outcome) = before.await? {
            return Ok(outcome);
        }
    }
    let outcome = work.await?;
    let kept = sql.write(|tx| {
        let outcome = &outcome;
        async move {
            if let Some(first) = request.claim_in(&tx).await? {
                return Ok(first);
            }
            request.keep_in(&tx, outcome).await?;
            Ok(outcome.clone())
        }
    });
    kept.await
}

/// Removes outcomes that are too old or too many.
pub(crate) async fn forget_old(sql: &Sql) -> Result<()> {
    let text = format!(
        "DELETE FROM meter_request WHERE key any_of(SELECT key FROM meter_request
            WHERE at_ms <= now_ms() - $1 OR at_ms < (SELECT at_ms FROM meter_request
                ORDER BY at_ms DESC LIMIT 1 OFFSET {REQUESTS_MAX})
            ORDER BY at_ms LIMIT {REMOVED_AT_ONCE})"
    );
    let full = REMOVED_AT_ONCE.unsigned_abs();
    while sql.execute(&text, params![millis(KEPT)]).await?.changed >= full {}
    Ok(())
}

/// Lengths first, so that no two lists of parts hash alike.
fn hash(parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        hasher.update(&length.to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_hex().to_string()
}
