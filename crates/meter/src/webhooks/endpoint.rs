//! Endpoints: where messages go, and which ones.
//!
//! Guarantees: an endpoint that passed its check can be stored and called; an endpoint read back contains no
//! secrets. Leaves to others: the operations on them ([`super::admin`]).

use logmill_io::sql::Execute;
use logmill_io::wire::GuardedClient;
use logmill_io::{Row, Timestamp, Tx, params};

use super::message::check_kind;
use super::secret::Secret;
use super::storable;
use crate::error::{Error, Result};
use crate::settings::check_name;

pub(super) const ENDPOINTS_MAX: usize = 10_000;
const URL_BYTES_MAX: usize = 2_048;
const DESCRIPTION_BYTES_MAX: usize = 1_000;
/// Maximum number of kinds, and of customers, in the filters of an endpoint.
const FILTER_MAX: usize = 100;
const WHY_BYTES_MAX: usize = 500;
/// Prefix of the reason stored for an endpoint that is disabled because its key is missing.
pub(super) const KEY_MISSING: &str = "its secret is encrypted with a key that is not configured";
/// Reason stored for an endpoint that the config disables or no longer contains.
pub(super) const NOT_WANTED: &str = "the config does not have it enabled";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEndpoint {
    /// URL to which messages are posted.
    pub url: String,
    pub description: String,
    /// Message kinds to send; empty means all.
    pub kinds: Vec<String>,
    /// Customers whose messages are sent; empty means all messages, including those about no customer.
    pub customers: Vec<String>,
    /// Whether a message is sent only after the previous one is settled.
    pub ordered: bool,
    pub enabled: bool,
    /// Generated if none is given.
    pub secret: Option<Secret>,
}

impl NewEndpoint {
    /// An endpoint that gets everything, in any order.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            description: String::new(),
            kinds: Vec::new(),
            customers: Vec::new(),
            ordered: false,
            enabled: true,
            secret: None,
        }
    }

    pub(super) fn check(&self, client: &GuardedClient) -> Result<()> {
        check_url(&self.url, client)?;
        check_description(&self.description)?;
        check_kinds(&self.kinds)?;
        check_customers(&self.customers)
    }
}

/// Changes of an endpoint; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointChange {
    pub url: Option<String>,
    pub description: Option<String>,
    pub kinds: Option<Vec<String>>,
    pub customers: Option<Vec<String>>,
    pub ordered: Option<bool>,
    pub enabled: Option<bool>,
}

impl EndpointChange {
    pub(super) fn check(&self, client: &GuardedClient) -> Result<()> {
        self.url.as_deref().map_or(Ok(()), |url| check_url(url, client))?;
        self.description.as_deref().map_or(Ok(()), check_description)?;
        self.kinds.as_deref().map_or(Ok(()), check_kinds)?;
        self.customers.as_deref().map_or(Ok(()), check_customers)
    }
}

/// An endpoint, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub id: String,
    /// URL to which messages are posted.
    pub url: String,
    pub description: String,
    /// Message kinds to send; empty means all.
    pub kinds: Vec<String>,
    /// Customers whose messages are sent; empty means all.
    pub customers: Vec<String>,
    /// Whether a message is sent only after the previous one is settled.
    pub ordered: bool,
    pub enabled: bool,
    /// Whether it comes from the config.
    pub configured: bool,
    pub disabled_why: Option<String>,
    /// Time since which every attempt has failed.
    pub failing_since: Option<Timestamp>,
    pub last_error: Option<String>,
    pub last_error_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

pub(super) const COLUMNS: &str = "seq, id, url, description, kinds, customers, ordered, enabled,
    configured, disabled_why, failing_since, last_error, last_error_at, created_at, updated_at";

/// Sequence number and endpoint of a row of [`COLUMNS`].
pub(super) fn from_row(row: &Row) -> Result<(i64, Endpoint)> {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let endpoint = Endpoint {
        id: row.text(1)?.to_owned(),
        url: row.text(2)?.to_owned(),
        description: row.text(3)?.to_owned(),
        kinds: from_list(row.text(4)?)?,
        customers: from_list(row.text(5)?)?,
        ordered: row.int(6)? != 0,
        enabled: row.int(7)? != 0,
        configured: row.int(8)? != 0,
        disabled_why: owned(row.opt_text(9)?),
        failing_since: row.opt_time(10)?,
        last_error: owned(row.opt_text(11)?),
        last_error_at: row.opt_time(12)?,
        created_at: row.time(13)?,
        updated_at: row.time(14)?,
    };
    Ok((row.int(0)?, endpoint))
}

/// Raises the change counter of endpoints and secrets. Must be the first statement of every transaction that changes
/// them, so that such transactions are serialized.
pub(super) async fn raise_version(tx: &Tx) -> Result<()> {
    let text = "UPDATE webhook_version SET version = version + 1 WHERE name = 'endpoints'";
    tx.execute(text, params![]).await?;
    Ok(())
}

/// Disables an enabled endpoint; returns its id and the time since which it has failed.
pub(super) async fn disable_row(
    tx: &Tx,
    seq: i64,
    why: &str,
) -> Result<Option<(String, Option<i64>)>> {
    let text = "UPDATE webhook_endpoint SET enabled = 0, disabled_why = $2, updated_at = now_ms()
        WHERE seq = $1 AND enabled = 1 RETURNING id, failing_since";
    let rows = tx.execute(text, params![seq, storable(why, WHY_BYTES_MAX)]).await?.rows;
    rows.first().map(|row| Ok((row.text(0)?.to_owned(), row.opt_int(1)?))).transpose()
}

/// Whether an endpoint is disabled only because the key of its secret is missing: its messages are held.
pub(super) fn is_key_missing(disabled_why: Option<&str>) -> bool {
    disabled_why.is_some_and(|why| why.starts_with(KEY_MISSING))
}

/// Encodes a list as it is stored.
pub(super) fn to_list(names: &[String]) -> String {
    serde_json::Value::from(names).to_string()
}

pub(super) fn from_list(text: &str) -> Result<Vec<String>> {
    serde_json::from_str(text)
        .map_err(|_| Error::corrupt("a stored filter of an endpoint is not a list"))
}

fn check_url(url: &str, client: &GuardedClient) -> Result<()> {
    if url.len() > URL_BYTES_MAX {
        let bytes = url.len();
        return Err(Error::invalid(format!(
            "a URL can have at most {URL_BYTES_MAX} bytes, not {bytes}"
        )));
    }
    // Its error names a control character and its position.
    client.check_address(url)?;
    Ok(())
}

fn check_description(description: &str) -> Result<()> {
    let bytes = description.len();
    if bytes > DESCRIPTION_BYTES_MAX {
        let why =
            format!("a description can have at most {DESCRIPTION_BYTES_MAX} bytes, not {bytes}");
        return Err(Error::invalid(why));
    }
    if description.contains('\0') {
        return Err(Error::invalid("a description cannot contain the character U+0000"));
    }
    Ok(())
}

fn check_kinds(kinds: &[String]) -> Result<()> {
    check_length("kinds", kinds)?;
    kinds.iter().try_for_each(|kind| check_kind(kind))
}

fn check_customers(customers: &[String]) -> Result<()> {
    check_length("customers", customers)?;
    customers.iter().try_for_each(|customer| check_name("a customer", customer))
}

fn check_length(what: &str, names: &[String]) -> Result<()> {
    if names.len() > FILTER_MAX {
        return Err(Error::invalid(format!("an endpoint can name at most {FILTER_MAX} {what}")));
    }
    Ok(())
}
