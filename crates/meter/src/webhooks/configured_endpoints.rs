//! Endpoints declared in the config.
//!
//! Guarantees: applying the same config again changes nothing. An endpoint that the config disables is disabled, and
//! enabled when the config enables it; one that was disabled for another reason stays disabled. An endpoint that is no
//! longer in the config is disabled. Leaves to others: reading the config.

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};

use super::Webhooks;
use super::endpoint::{
    NOT_WANTED, NewEndpoint, disable_row, is_key_missing, raise_version, to_list,
};
use super::secret::Secret;
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredEndpoint {
    pub enabled: bool,
    /// URL to which messages are posted.
    pub url: String,
    pub secret: Secret,
    /// Message kinds to send; empty means all.
    pub kinds: Vec<String>,
}

impl ConfiguredEndpoint {
    fn new_endpoint(&self) -> NewEndpoint {
        NewEndpoint { kinds: self.kinds.clone(), ..NewEndpoint::new(&self.url) }
    }
}

impl Webhooks {
    /// Applies the config to the stored endpoints, matched by URL.
    pub async fn sync_configured(&self, configured: &[ConfiguredEndpoint]) -> Result<()> {
        for (index, endpoint) in configured.iter().enumerate() {
            endpoint.new_endpoint().check(&self.client)?;
            if configured[..index].iter().any(|other| other.url == endpoint.url) {
                return Err(Error::invalid("two webhooks of the configuration have the same URL"));
            }
        }
        if self.keys.are_missing() {
            if !configured.is_empty() {
                tracing::warn!(
                    "webhooks of the config are not updated: there is no key for their secrets"
                );
            }
            return Ok(());
        }
        let synced = self.sql().write(|tx| async move {
            raise_version(&tx).await?;
            let (mut unwanted, mut back) = (Vec::new(), Vec::new());
            for endpoint in configured {
                let (seq, was_held) = self.sync_one(&tx, endpoint).await?;
                match endpoint.enabled {
                    true => back.extend(was_held),
                    false => unwanted.push(seq),
                }
            }
            unwanted.extend(not_among(&tx, configured).await?);
            for seq in &unwanted {
                disable_row(&tx, *seq, NOT_WANTED).await?;
            }
            Ok::<_, Error>((unwanted, back))
        });
        let (unwanted, back) = synced.await?;
        for seq in unwanted {
            self.cancel_open(seq).await?;
        }
        for endpoint in back {
            while self.retry_now(&endpoint).await?.more {}
        }
        self.wake();
        Ok(())
    }

    /// Returns the endpoint's number, and its id if it was held because of a missing key and no longer is.
    async fn sync_one(
        &self,
        tx: &Tx,
        endpoint: &ConfiguredEndpoint,
    ) -> Result<(i64, Option<String>)> {
        let text = "
            SELECT seq, enabled, disabled_why, id FROM webhook_endpoint
            WHERE url = $1 AND configured = 1 AND deleted_at IS NULL FOR UPDATE";
        let found = tx.execute(text, params![endpoint.url.as_str()]).await?;
        let Some(row) = found.rows.first() else {
            let new = endpoint.new_endpoint();
            let id = self.endpoint_id();
            return Ok((self.insert_in(tx, &id, &new, &endpoint.secret, true).await?, None));
        };
        let seq = row.int(0)?;
        let text = "UPDATE webhook_endpoint SET kinds = $2 WHERE seq = $1 AND kinds <> $2";
        tx.execute(text, params![seq, to_list(&endpoint.kinds)]).await?;
        let newest = self.newest_secret_in(tx, seq).await?.map(|(_, secret)| secret);
        if newest.as_ref() != Some(&endpoint.secret) {
            self.rotate_in(tx, seq, &endpoint.secret, self.settings.overlap).await?;
        }
        let is_disabled = row.int(1)? == 0;
        let was_unwanted = is_disabled && row.opt_text(2)? == Some(NOT_WANTED);
        let was_held = is_disabled && is_key_missing(row.opt_text(2)?);
        if endpoint.enabled && (was_unwanted || was_held) {
            self.enable_in(tx, seq).await?;
        }
        let held = was_held.then(|| row.text(3)).transpose()?.map(str::to_owned);
        Ok((seq, held))
    }
}

/// Endpoints that came from the config and are no longer in it.
async fn not_among(tx: &Tx, configured: &[ConfiguredEndpoint]) -> Result<Vec<i64>> {
    let text = "SELECT seq, url FROM webhook_endpoint WHERE configured = 1 AND deleted_at IS NULL";
    let mut gone = Vec::new();
    for row in &tx.execute(text, params![]).await?.rows {
        let url = row.text(1)?;
        if !configured.iter().any(|endpoint| endpoint.url == url) {
            gone.push(row.int(0)?);
        }
    }
    Ok(gone)
}
