//! Targets: endpoints and their secrets, cached in memory until they change.
//!
//! Guarantees: a snapshot is what the database held when its change counter was read; data read by a transaction that
//! may not commit is not cached. Leaves to others: raising the counter with every change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use logmill_io::sql::{Execute, StatementResult};
use logmill_io::{Row, Sql, Tx, Value, params};

use super::endpoint::{from_list, is_key_missing};
use super::message::NewMessage;
use super::secret::Signer;
use super::vault::{COLUMNS, SecretKeys};
use crate::error::Result;

/// An endpoint that exists, enabled or not.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) seq: i64,
    pub(super) id: String,
    pub(super) url: String,
    kinds: Vec<String>,
    customers: Vec<String>,
    pub(super) ordered: bool,
    /// Whether it gets messages. True if it is disabled only because its key is missing: its messages are held.
    pub(super) enabled: bool,
    /// Whether it was failing when this was read.
    pub(super) failing: bool,
    /// How often an immediate retry was requested.
    pub(super) retries: i64,
    /// Newest first.
    pub(super) signers: Vec<Signer>,
}

impl Target {
    /// Whether this process can sign for it. Nothing is sent unsigned.
    pub(super) fn can_sign(&self) -> bool {
        !self.signers.is_empty()
    }

    /// Whether its filters match a message. A message about no customer matches only endpoints without a customer
    /// filter.
    pub(super) fn wants(&self, message: &NewMessage) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.contains(&message.kind);
        let of = message.customer.as_ref();
        let customer = self.customers.is_empty()
            || of.is_some_and(|customer| self.customers.contains(customer));
        self.enabled && kind && customer
    }
}

/// All targets at one value of the change counter.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) version: i64,
    pub(super) by_seq: BTreeMap<i64, Arc<Target>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Targets {
    snapshot: Arc<RwLock<Option<Arc<Snapshot>>>>,
    /// Failing endpoints, as far as this process knows.
    failing: Arc<RwLock<BTreeSet<i64>>>,
}

#[derive(Clone, Copy)]
pub(super) enum Connection<'a> {
    Sql(&'a Sql),
    Tx(&'a Tx),
}

impl Connection<'_> {
    pub(super) async fn query(self, text: &str, params: Vec<Value>) -> Result<StatementResult> {
        Ok(match self {
            Self::Sql(sql) => sql.query(text, params).await?,
            Self::Tx(tx) => tx.execute(text, params).await?,
        })
    }
}

impl Targets {
    pub(super) async fn current(
        &self,
        on: Connection<'_>,
        keys: &SecretKeys,
    ) -> Result<Arc<Snapshot>> {
        let text = "SELECT version FROM webhook_version WHERE name = 'endpoints'";
        let version = on.query(text, params![]).await?.row()?.int(0)?;
        let known = self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|known| known.version == version) {
            return Ok(known);
        }
        let read = Arc::new(read(on, keys, version).await?);
        if let Connection::Sql(_) = on {
            let mut snapshot = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
            *snapshot = Some(Arc::clone(&read));
        }
        Ok(read)
    }

    pub(super) fn is_failing(&self, endpoint: i64) -> bool {
        self.failing.read().unwrap_or_else(PoisonError::into_inner).contains(&endpoint)
    }

    pub(super) fn set_failing(&self, endpoint: i64, failing: bool) {
        if self.is_failing(endpoint) == failing {
            return;
        }
        let mut all = self.failing.write().unwrap_or_else(PoisonError::into_inner);
        if failing {
            all.insert(endpoint);
        } else {
            all.remove(&endpoint);
        }
    }
}

async fn read(on: Connection<'_>, keys: &SecretKeys, version: i64) -> Result<Snapshot> {
    // Secrets first: a change in between raises the counter again, and the next call reads it.
    let text = format!(
        "SELECT {COLUMNS}, s.endpoint_seq, s.valid_until FROM webhook_secret s
         JOIN webhook_endpoint e ON e.seq = s.endpoint_seq
         ORDER BY s.endpoint_seq, s.number DESC"
    );
    let mut signers: BTreeMap<i64, Vec<Signer>> = BTreeMap::new();
    for row in &on.query(&text, params![]).await?.rows {
        let (seq, valid_until) = (row.int(4)?, row.opt_time(5)?);
        match keys.open_row(row)? {
            Some(secret) => {
                // Nothing is signed with an old secret alone.
                if valid_until.is_none() || signers.contains_key(&seq) {
                    let signer = Signer::new(&secret, valid_until)?;
                    signers.entry(seq).or_default().push(signer);
                }
            }
            None => tracing::warn!(
                endpoint = row.text(0)?,
                "the secret of a webhook endpoint cannot be decrypted"
            ),
        }
    }
    let text = "SELECT seq, url, kinds, customers, ordered, enabled, failing_since, id, retries,
            disabled_why FROM webhook_endpoint WHERE deleted_at IS NULL";
    let mut by_seq = BTreeMap::new();
    for row in &on.query(text, params![]).await?.rows {
        let target = target(row, &mut signers)?;
        by_seq.insert(target.seq, Arc::new(target));
    }
    Ok(Snapshot { version, by_seq })
}

fn target(row: &Row, signers: &mut BTreeMap<i64, Vec<Signer>>) -> Result<Target> {
    let seq = row.int(0)?;
    let signers = signers.remove(&seq).unwrap_or_default();
    Ok(Target {
        seq,
        id: row.text(7)?.to_owned(),
        url: row.text(1)?.to_owned(),
        kinds: from_list(row.text(2)?)?,
        customers: from_list(row.text(3)?)?,
        ordered: row.int(4)? != 0,
        enabled: row.int(5)? != 0 || is_key_missing(row.opt_text(9)?),
        failing: !row.is_null(6),
        retries: row.int(8)?,
        signers,
    })
}
