//! Endpoints that stand in the config.
//!
//! Guarantees: to say the same again changes nothing. What the config disables is disabled, and enabled when the config
//! enables it; what was disabled for another reason stays so. An endpoint that is no longer in the config is disabled.
//! Leaves to others: reading the config.

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};

use super::Webhooks;
use super::admin::disable_row;
use super::endpoint::{NewEndpoint, to_list};
use super::secret::Secret;
use super::targets::changed;
use crate::error::{Error, Result};

/// Why an endpoint is disabled that the config does not want.
pub(super) const NOT_WANTED: &str = "the config does not have it enabled";

/// An endpoint of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredEndpoint {
    /// Whether it gets anything.
    pub enabled: bool,
    /// Where messages are posted to.
    pub url: String,
    /// Its secret.
    pub secret: Secret,
    /// The kinds of messages that it gets; all if none is named.
    pub kinds: Vec<String>,
}

impl ConfiguredEndpoint {
    fn new_endpoint(&self) -> NewEndpoint {
        NewEndpoint { kinds: self.kinds.clone(), ..NewEndpoint::new(&self.url) }
    }
}

impl Webhooks {
    /// Makes the endpoints of the config what it says, by their addresses.
    pub async fn sync_configured(&self, configured: &[ConfiguredEndpoint]) -> Result<()> {
        for (index, endpoint) in configured.iter().enumerate() {
            endpoint.new_endpoint().check(&self.client)?;
            if configured[..index].iter().any(|other| other.url == endpoint.url) {
                return Err(Error::invalid("two webhooks of the config have the same address"));
            }
        }
        let synced = self.sql().write(|tx| async move {
            changed(&tx).await?;
            let mut unwanted = Vec::new();
            for endpoint in configured {
                let seq = self.sync_one(&tx, endpoint).await?;
                if !endpoint.enabled {
                    unwanted.push(seq);
                }
            }
            unwanted.extend(not_among(&tx, configured).await?);
            for seq in &unwanted {
                disable_row(&tx, *seq, NOT_WANTED).await?;
            }
            Ok(unwanted)
        });
        for seq in synced.await? {
            self.cancel_open(seq).await?;
        }
        self.wake();
        Ok(())
    }

    async fn sync_one(&self, tx: &Tx, endpoint: &ConfiguredEndpoint) -> Result<i64> {
        let text = "
            SELECT seq, enabled, disabled_why FROM webhook_endpoint
            WHERE url = $1 AND configured = 1 AND deleted_at IS NULL FOR UPDATE";
        let found = tx.execute(text, params![endpoint.url.as_str()]).await?;
        let Some(row) = found.rows.first() else {
            let new = endpoint.new_endpoint();
            return self.insert_in(tx, &self.endpoint_id(), &new, &endpoint.secret, true).await;
        };
        let seq = row.int(0)?;
        let text = "UPDATE webhook_endpoint SET kinds = $2 WHERE seq = $1 AND kinds <> $2";
        tx.execute(text, params![seq, to_list(&endpoint.kinds)]).await?;
        let newest = self.newest_secret_in(tx, seq).await?.map(|(_, secret)| secret);
        if newest.as_ref() != Some(&endpoint.secret) {
            self.rotate_in(tx, seq, &endpoint.secret, self.settings.overlap).await?;
        }
        let was_unwanted = row.int(1)? == 0 && row.opt_text(2)? == Some(NOT_WANTED);
        if endpoint.enabled && was_unwanted {
            self.enable_in(tx, seq).await?;
        }
        Ok(seq)
    }
}

/// Endpoints that came from the config and are not in it any longer.
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
