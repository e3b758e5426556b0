//! Operations on endpoints: create, read, change, test, rotate, disable, delete.
//!
//! Guarantees: every change is one transaction that also raises the change counter ([`super::targets`]). A secret is
//! returned by the call that created it, and when that call is repeated, and never again. Unsettled deliveries of an
//! endpoint that is disabled or deleted are cancelled, and can be replayed. Declarations of the configuration are not
//! changed here. Leaves to others: authorization.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Tx, millis, params};
use serde_json::{Value as Json, json};

use super::endpoint::{COLUMNS, ENDPOINTS_MAX, Endpoint, EndpointChange, NewEndpoint};
use super::endpoint::{KEY_MISSING, NOT_WANTED, is_key_missing};
use super::endpoint::{disable_row, from_row, raise_version, to_list};
use super::message::{NewMessage, message_id};
use super::publish::Recipients;
use super::secret::Secret;
use super::settings::OVERLAP_MAX;
use super::status::LIST_MAX;
use super::{Webhooks, storable};
use crate::error::{Error, Result};
use crate::store::requests::{self, KeyedRequest};

/// Number of an endpoint's first secret.
const FIRST_SECRET: i64 = 1;
/// Maximum number of old secrets that sign beside the newest.
const OLD_SECRETS_MAX: i64 = 10;
/// Deliveries cancelled per statement.
const CANCEL_BATCH: i64 = 5_000;

impl Webhooks {
    /// Creates an endpoint. Returns it with its secret, which is not returned again.
    pub async fn create(&self, new: &NewEndpoint) -> Result<(Endpoint, Secret)> {
        let secret = new.secret.clone().unwrap_or_else(|| self.generate());
        let id = self.prepare(new)?;
        let made = self.sql().write(|tx| {
            let (id, secret) = (&id, &secret);
            async move {
                raise_version(&tx).await?;
                self.create_in(&tx, id, new, secret).await
            }
        });
        Ok((made.await?, secret))
    }

    /// Creates an endpoint, unless an identical one exists or the request was processed before.
    pub async fn create_once(
        &self,
        new: &NewEndpoint,
        request: Option<&KeyedRequest>,
    ) -> Result<CreatedEndpoint> {
        let secret = new.secret.clone().unwrap_or_else(|| self.generate());
        let id = self.prepare(new)?;
        let made = self.sql().write(|tx| {
            let (id, secret) = (&id, &secret);
            async move {
                raise_version(&tx).await?;
                if let Some(outcome) = requests::claim_in(&tx, request).await? {
                    return self.created_before(&tx, &outcome).await;
                }
                if let Some(endpoint) = self.same_in(&tx, new).await? {
                    let outcome = json!({ "endpoint": endpoint.id });
                    requests::keep_in(&tx, request, &outcome).await?;
                    return Ok(CreatedEndpoint { endpoint, secret: None, is_new: false });
                }
                let endpoint = self.create_in(&tx, id, new, secret).await?;
                let outcome = json!({ "endpoint": id, "secret": FIRST_SECRET });
                requests::keep_in(&tx, request, &outcome).await?;
                Ok(CreatedEndpoint { endpoint, secret: Some(secret.clone()), is_new: true })
            }
        });
        made.await
    }

    fn prepare(&self, new: &NewEndpoint) -> Result<String> {
        new.check(&self.client)?;
        Ok(self.endpoint_id())
    }

    pub(super) fn generate(&self) -> Secret {
        Secret::generate(&**self.sql().entropy())
    }

    pub(super) fn endpoint_id(&self) -> String {
        format!("ep_{:016x}", self.sql().entropy().next_u64())
    }

    pub async fn get(&self, id: &str) -> Result<Endpoint> {
        let text =
            format!("SELECT {COLUMNS} FROM webhook_endpoint WHERE id = $1 AND deleted_at IS NULL");
        let found = self.sql().query(&text, params![id]).await?;
        let row = found.rows.first().ok_or_else(|| no_such(id))?;
        Ok(from_row(row)?.1)
    }

    /// Endpoints in the order of their ids, after the given one; at most `LIST_MAX`.
    pub async fn list(&self, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
        let text = format!(
            "SELECT {COLUMNS} FROM webhook_endpoint WHERE deleted_at IS NULL AND id > $1
             ORDER BY id LIMIT $2"
        );
        let limit = i64::try_from(limit.min(LIST_MAX)).unwrap_or(0);
        let found = self.sql().query(&text, params![after.unwrap_or(""), limit]).await?;
        found.rows.iter().map(|row| Ok(from_row(row)?.1)).collect()
    }

    pub async fn update(&self, id: &str, change: &EndpointChange) -> Result<Endpoint> {
        change.check(&self.client)?;
        let updated = self.sql().write(|tx| async move {
            raise_version(&tx).await?;
            let (seq, mut endpoint) = read_in(&tx, id).await?;
            let was = endpoint.clone();
            check_declared(&was, change)?;
            apply(&mut endpoint, change);
            let text = "
                UPDATE webhook_endpoint SET url = $2, description = $3, kinds = $4, customers = $5,
                    ordered = $6, updated_at = now_ms() WHERE seq = $1";
            let params = params![
                seq,
                endpoint.url.as_str(),
                endpoint.description.as_str(),
                to_list(&endpoint.kinds),
                to_list(&endpoint.customers),
                endpoint.ordered,
            ];
            tx.execute(text, params).await?;
            match change.enabled {
                Some(true) if !was.enabled => self.enable_in(&tx, seq).await?,
                Some(false) => disable_by_hand(&tx, seq, &was).await?,
                _ => {}
            }
            Ok::<_, Error>((seq, read_in(&tx, id).await?.1))
        });
        let (seq, endpoint) = updated.await?;
        if !endpoint.enabled {
            self.cancel_open(seq).await?;
        } else if change.ordered == Some(false) {
            self.release_waiting(seq).await?;
        }
        self.wake();
        Ok(endpoint)
    }

    pub async fn enable(&self, id: &str) -> Result<Endpoint> {
        self.update(id, &EndpointChange { enabled: Some(true), ..EndpointChange::default() }).await
    }

    /// Stops sending to an endpoint until it is enabled again.
    pub async fn disable(&self, id: &str) -> Result<Endpoint> {
        self.update(id, &EndpointChange { enabled: Some(false), ..EndpointChange::default() }).await
    }

    /// Removes an endpoint and its secrets. Its deliveries remain readable.
    pub async fn delete(&self, id: &str) -> Result<()> {
        let deleted = self.sql().write(|tx| async move {
            raise_version(&tx).await?;
            let (seq, endpoint) = read_in(&tx, id).await?;
            if endpoint.configured {
                return Err(declared(id));
            }
            let text = "UPDATE webhook_endpoint SET enabled = 0, disabled_why = 'it was deleted',
                deleted_at = now_ms(), updated_at = now_ms() WHERE seq = $1";
            tx.execute(text, params![seq]).await?;
            let text = "DELETE FROM webhook_secret WHERE endpoint_seq = $1";
            tx.execute(text, params![seq]).await?;
            Ok(seq)
        });
        let seq = deleted.await?;
        self.cancel_open(seq).await
    }

    /// Sends a `webhook.test` message to one endpoint, regardless of its filters; returns the message's id.
    pub async fn test(&self, id: &str) -> Result<String> {
        self.test_once(id, None).await
    }

    /// Like [`Webhooks::test`], unless the request was processed before.
    pub async fn test_once(&self, id: &str, request: Option<&KeyedRequest>) -> Result<String> {
        let mark = self.sql().entropy().next_u64().to_string();
        let message = NewMessage::new(
            message_id(&["webhook.test", id, &mark]),
            "webhook.test",
            self.now(),
            &json!({ "endpointId": id, "message": "this is a test" }),
        )?;
        let published = self.sql().write(|tx| {
            let message = &message;
            async move {
                if let Some(outcome) = requests::claim_in(&tx, request).await? {
                    return text_of(&outcome, "message");
                }
                let (seq, endpoint) = read_in(&tx, id).await?;
                if !endpoint.enabled {
                    return Err(Error::conflict(format!("the endpoint {id} is disabled")));
                }
                self.publish_to(&tx, std::slice::from_ref(message), Recipients::Only(seq)).await?;
                requests::keep_in(&tx, request, &json!({ "message": message.id })).await?;
                Ok(message.id.clone())
            }
        });
        let id = published.await?;
        self.wake();
        Ok(id)
    }

    /// Replaces the secret of an endpoint by the given one or a generated one; the old secret also signs for `overlap`,
    /// at most seven days. Returns the new secret, which is not returned again.
    pub async fn rotate(
        &self,
        id: &str,
        secret: Option<Secret>,
        overlap: Option<Duration>,
    ) -> Result<Secret> {
        self.rotate_once(id, secret, overlap, None).await
    }

    /// Like [`Webhooks::rotate`], unless the request was processed before.
    pub async fn rotate_once(
        &self,
        id: &str,
        secret: Option<Secret>,
        overlap: Option<Duration>,
        request: Option<&KeyedRequest>,
    ) -> Result<Secret> {
        let overlap = overlap.unwrap_or(self.settings.overlap);
        if overlap > OVERLAP_MAX {
            return Err(Error::invalid("the overlap of an old secret is at most 7 days"));
        }
        let secret = secret.unwrap_or_else(|| self.generate());
        let rotated = self.sql().write(|tx| {
            let secret = &secret;
            async move {
                raise_version(&tx).await?;
                let before = requests::claim_in(&tx, request).await?;
                let (seq, endpoint) = read_in(&tx, id).await?;
                if let Some(outcome) = before {
                    let newest = self.newest_secret_in(&tx, seq).await?;
                    let newest = newest.filter(|(number, _)| outcome["number"] == *number);
                    let again = || Error::conflict("the secret was rotated again since");
                    return Ok((newest.ok_or_else(again)?.1, false));
                }
                if endpoint.configured {
                    return Err(declared(id));
                }
                self.rotate_in(&tx, seq, secret, overlap).await?;
                let was_held = is_key_missing(endpoint.disabled_why.as_deref());
                if was_held {
                    // The new secret does not depend on the missing key.
                    self.enable_in(&tx, seq).await?;
                }
                let number = self.newest_secret_in(&tx, seq).await?.map(|(number, _)| number);
                requests::keep_in(&tx, request, &json!({ "number": number })).await?;
                Ok((secret.clone(), was_held))
            }
        });
        let (secret, was_held) = rotated.await?;
        while was_held && self.retry_now(id).await?.more {}
        Ok(secret)
    }

    async fn create_in(
        &self,
        tx: &Tx,
        id: &str,
        new: &NewEndpoint,
        secret: &Secret,
    ) -> Result<Endpoint> {
        let count = "SELECT count(*) FROM webhook_endpoint WHERE deleted_at IS NULL";
        let count = tx.execute(count, params![]).await?.row()?.count(0)?;
        if usize::try_from(count).unwrap_or(usize::MAX) >= ENDPOINTS_MAX {
            return Err(Error::conflict(format!(
                "there are already {count} endpoints, which is the maximum"
            )));
        }
        self.insert_in(tx, id, new, secret, false).await?;
        Ok(read_in(tx, id).await?.1)
    }

    /// The endpoint that an earlier request created.
    async fn created_before(&self, tx: &Tx, outcome: &Json) -> Result<CreatedEndpoint> {
        let (seq, endpoint) = read_in(tx, &text_of(outcome, "endpoint")?).await?;
        let is_new = outcome["secret"].is_i64();
        // A secret newer than the request's own is only for the request that created it.
        let newest = self.newest_secret_in(tx, seq).await?;
        let newest = newest.filter(|(number, _)| outcome["secret"] == *number);
        Ok(CreatedEndpoint { endpoint, secret: newest.map(|(_, secret)| secret), is_new })
    }

    /// An endpoint created by the API that equals the new one, if any. A secret, if given, must match too.
    async fn same_in(&self, tx: &Tx, new: &NewEndpoint) -> Result<Option<Endpoint>> {
        let text = "SELECT id FROM webhook_endpoint
            WHERE deleted_at IS NULL AND configured = 0 AND url = $1 AND description = $2
                AND kinds = $3 AND customers = $4 AND ordered = $5 AND enabled = $6
            ORDER BY seq LIMIT 1";
        let params = params![
            new.url.as_str(),
            new.description.as_str(),
            to_list(&new.kinds),
            to_list(&new.customers),
            new.ordered,
            new.enabled,
        ];
        let found = tx.execute(text, params).await?;
        let Some(row) = found.rows.first() else { return Ok(None) };
        let (seq, endpoint) = read_in(tx, row.text(0)?).await?;
        let Some(secret) = &new.secret else { return Ok(Some(endpoint)) };
        let newest = self.newest_secret_in(tx, seq).await?;
        if newest.is_some_and(|(_, newest)| newest == *secret) {
            return Ok(Some(endpoint));
        }
        Err(Error::conflict(format!(
            "the endpoint {} is identical except for its secret: rotate its secret instead",
            endpoint.id
        )))
    }

    pub(super) async fn insert_in(
        &self,
        tx: &Tx,
        id: &str,
        new: &NewEndpoint,
        secret: &Secret,
        configured: bool,
    ) -> Result<i64> {
        let text = "
            INSERT INTO webhook_endpoint (id, url, description, kinds, customers, ordered, enabled,
                configured, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms(), now_ms()) RETURNING seq";
        let params = params![
            id,
            new.url.as_str(),
            new.description.as_str(),
            to_list(&new.kinds),
            to_list(&new.customers),
            new.ordered,
            new.enabled,
            configured,
        ];
        let seq = tx.execute(text, params).await?.row()?.int(0)?;
        self.rotate_in(tx, seq, secret, Duration::ZERO).await?;
        Ok(seq)
    }

    /// Makes a secret the newest of an endpoint.
    pub(super) async fn rotate_in(
        &self,
        tx: &Tx,
        seq: i64,
        secret: &Secret,
        overlap: Duration,
    ) -> Result<()> {
        let text = "UPDATE webhook_secret SET valid_until = now_ms() + $2
            WHERE endpoint_seq = $1 AND valid_until IS NULL";
        tx.execute(text, params![seq, millis(overlap)]).await?;
        // Changes of endpoints are serialized, so no other transaction takes this number.
        let text =
            "SELECT COALESCE(max(number), 0) + 1 FROM webhook_secret WHERE endpoint_seq = $1";
        let number = tx.execute(text, params![seq]).await?.row()?.int(0)?;
        self.store_secret(tx, seq, number, secret).await?;
        let text = "DELETE FROM webhook_secret
            WHERE endpoint_seq = $1 AND (valid_until <= now_ms() OR number < $2)";
        tx.execute(text, params![seq, number - OLD_SECRETS_MAX]).await?;
        Ok(())
    }

    pub(super) async fn enable_in(&self, tx: &Tx, seq: i64) -> Result<()> {
        let text = "UPDATE webhook_endpoint SET enabled = 1, disabled_why = NULL,
            failing_since = NULL, updated_at = now_ms() WHERE seq = $1";
        tx.execute(text, params![seq]).await?;
        self.advance_in(tx, seq).await?;
        Ok(())
    }

    /// Disables an endpoint because of its failures, and notifies the other endpoints; returns whether it was enabled.
    pub(super) async fn disable_in(&self, tx: &Tx, seq: i64, why: &str) -> Result<bool> {
        raise_version(tx).await?;
        let Some((id, since)) = disable_row(tx, seq, why).await? else {
            return Ok(false);
        };
        let now = tx.execute("SELECT now_ms()", params![]).await?.row()?.time(0)?;
        let at = now.millis().to_string();
        let message = NewMessage::new(
            message_id(&["endpoint.disabled", &id, &at]),
            "endpoint.disabled",
            now,
            // Without its address, which other endpoints must not see.
            &json!({ "endpointId": id, "reason": why, "failingSince": since }),
        )?;
        self.publish_in(tx, &message).await?;
        tracing::warn!(endpoint = id, why, "webhook endpoint disabled");
        Ok(true)
    }

    /// Cancels the unsettled deliveries of a disabled endpoint.
    pub(super) async fn cancel_open(&self, seq: i64) -> Result<()> {
        let text = "
            UPDATE webhook_delivery SET state = 4, next_at = NULL, updated_at = now_ms(),
                last_error = COALESCE(last_error, 'the endpoint was disabled')
            WHERE endpoint_seq = $1 AND state IN (0, 1) AND message_seq any_of(
                SELECT message_seq FROM webhook_delivery
                WHERE endpoint_seq = $1 AND state <> 2 AND state IN (0, 1) LIMIT $2)
                AND EXISTS (SELECT 1 FROM webhook_endpoint WHERE seq = $1 AND enabled = 0
                    AND (disabled_why IS NULL OR disabled_why NOT LIKE $3))";
        // Deliveries held because of a missing key are sent when the key is back.
        let held = format!("{KEY_MISSING}%");
        // The state is checked twice because another process may settle a delivery in between. So a batch that is not
        // full does not mean that none is left.
        loop {
            let params = params![seq, CANCEL_BATCH, held.as_str()];
            if self.sql().execute(text, params).await?.changed == 0 {
                return Ok(());
            }
        }
    }
}

/// Outcome of creating an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedEndpoint {
    pub endpoint: Endpoint,
    /// Returned to the request that created the endpoint, also when that request is repeated.
    pub secret: Option<Secret>,
    /// Whether this request, or the one that it repeats, created the endpoint.
    pub is_new: bool,
}

pub(super) fn text_of(outcome: &Json, name: &str) -> Result<String> {
    let text = outcome[name].as_str().map(str::to_owned);
    text.ok_or_else(|| Error::corrupt(format!("an outcome without {name}")))
}

/// Declarations of the configuration are changed there. Disabling because of failures is not a declaration.
fn check_declared(endpoint: &Endpoint, change: &EndpointChange) -> Result<()> {
    let enables = EndpointChange { enabled: Some(true), ..EndpointChange::default() };
    let by_config = endpoint.disabled_why.as_deref() == Some(NOT_WANTED);
    if !endpoint.configured || (*change == enables && !by_config) {
        return Ok(());
    }
    Err(declared(&endpoint.id))
}

fn declared(id: &str) -> Error {
    Error::conflict(format!("the endpoint {id} is declared by the configuration: change it there"))
}

fn apply(endpoint: &mut Endpoint, change: &EndpointChange) {
    let change = change.clone();
    endpoint.url = change.url.unwrap_or_else(|| endpoint.url.clone());
    endpoint.description = change.description.unwrap_or_else(|| endpoint.description.clone());
    endpoint.kinds = change.kinds.unwrap_or_else(|| endpoint.kinds.clone());
    endpoint.customers = change.customers.unwrap_or_else(|| endpoint.customers.clone());
    endpoint.ordered = change.ordered.unwrap_or(endpoint.ordered);
}

/// Sequence number and endpoint; an error if it does not exist.
pub(super) async fn read_in(tx: &Tx, id: &str) -> Result<(i64, Endpoint)> {
    let text = format!(
        "SELECT {COLUMNS} FROM webhook_endpoint WHERE id = $1 AND deleted_at IS NULL FOR UPDATE"
    );
    let found = tx.execute(&text, params![id]).await?;
    from_row(found.rows.first().ok_or_else(|| no_such(id))?)
}

/// Disables an endpoint on request of an operator. If its key is missing, its messages are no longer held.
async fn disable_by_hand(tx: &Tx, seq: i64, was: &Endpoint) -> Result<()> {
    const WHY: &str = "it was disabled by hand";
    if is_key_missing(was.disabled_why.as_deref()) {
        let text = "UPDATE webhook_endpoint SET disabled_why = $2 WHERE seq = $1";
        tx.execute(text, params![seq, WHY]).await?;
    }
    disable_row(tx, seq, WHY).await?;
    Ok(())
}

fn no_such(id: &str) -> Error {
    Error::not_found(format!("endpoint {}", storable(id, 100)))
}
