//! Endpoints: where messages go, and which ones.
//!
//! Guarantees: an endpoint that passed its check can be stored and asked; what is read back says nothing of secrets.
//! Leaves to others: storing them ([`super::admin`]).

use logmill_io::wire::GuardedClient;
use logmill_io::{Row, Timestamp};

use super::message::check_kind;
use super::secret::Secret;
use crate::error::{Error, Result};
use crate::settings::check_name;

/// The most endpoints.
pub const ENDPOINTS_MAX: usize = 10_000;
/// The longest address of an endpoint.
const URL_BYTES_MAX: usize = 2_048;
/// The longest description.
const DESCRIPTION_BYTES_MAX: usize = 1_000;
/// The most kinds, and the most customers, that an endpoint names.
const FILTER_MAX: usize = 100;

/// An endpoint to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEndpoint {
    /// Where messages are posted to.
    pub url: String,
    /// What it is for.
    pub description: String,
    /// The kinds of messages that it gets; all if none is named.
    pub kinds: Vec<String>,
    /// The customers about whom it gets messages; messages about anybody and nobody if none is named.
    pub customers: Vec<String>,
    /// Whether a message is sent only once the one before it is settled.
    pub ordered: bool,
    /// Whether it gets anything yet.
    pub enabled: bool,
    /// Its secret; one is made if none is given.
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

/// What is to be changed of an endpoint; what is none stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointChange {
    /// Where messages are posted to.
    pub url: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The kinds of messages that it gets.
    pub kinds: Option<Vec<String>>,
    /// The customers about whom it gets messages.
    pub customers: Option<Vec<String>>,
    /// Whether a message is sent only once the one before it is settled.
    pub ordered: Option<bool>,
    /// Whether it gets anything.
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
    /// Its name for callers.
    pub id: String,
    /// Where messages are posted to.
    pub url: String,
    /// What it is for.
    pub description: String,
    /// The kinds of messages that it gets; all if none is named.
    pub kinds: Vec<String>,
    /// The customers about whom it gets messages; all if none is named.
    pub customers: Vec<String>,
    /// Whether a message is sent only once the one before it is settled.
    pub ordered: bool,
    /// Whether it gets anything.
    pub enabled: bool,
    /// Whether it comes from the config.
    pub configured: bool,
    /// Why it was disabled.
    pub disabled_why: Option<String>,
    /// Since when every attempt has failed.
    pub failing_since: Option<Timestamp>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed.
    pub updated_at: Timestamp,
}

pub(super) const COLUMNS: &str = "seq, id, url, description, kinds, customers, ordered, enabled,
    configured, disabled_why, failing_since, last_error, last_error_at, created_at, updated_at";

/// Number and endpoint of a row of [`COLUMNS`].
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

/// A list as it is stored.
pub(super) fn to_list(names: &[String]) -> String {
    serde_json::Value::from(names).to_string()
}

pub(super) fn from_list(text: &str) -> Result<Vec<String>> {
    serde_json::from_str(text).map_err(|_| Error::corrupt("a filter of an endpoint is no list"))
}

fn check_url(url: &str, client: &GuardedClient) -> Result<()> {
    if url.len() > URL_BYTES_MAX {
        let bytes = url.len();
        return Err(Error::invalid(format!(
            "an address has at most {URL_BYTES_MAX} bytes, not {bytes}"
        )));
    }
    // It names a control character and its place.
    client.check_address(url)?;
    Ok(())
}

fn check_description(description: &str) -> Result<()> {
    let bytes = description.len();
    if bytes > DESCRIPTION_BYTES_MAX {
        let why = format!("a description has at most {DESCRIPTION_BYTES_MAX} bytes, not {bytes}");
        return Err(Error::invalid(why));
    }
    if description.contains('\0') {
        return Err(Error::invalid("a description cannot have the character U+0000 (zero)"));
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
        return Err(Error::invalid(format!("an endpoint names at most {FILTER_MAX} {what}")));
    }
    Ok(())
}
