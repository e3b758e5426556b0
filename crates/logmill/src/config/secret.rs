//! Secrets of the configuration: which keys hold them, and how they are redacted.
//!
//! Guarantees: the text that [`redact`] returns contains no password, even if the address is malformed. Leaves to
//! others: redacting values before they are printed.

use std::fmt;

use serde::Deserialize;
use toml::Value;

/// Replaces a secret.
const HIDDEN: &str = "***";

/// A secret setting, which cannot be printed by accident.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// The expected form of a key whose value must not appear in an error; `None` if the value may appear.
pub(super) fn expected_form(key: &str) -> Option<&'static str> {
    match key {
        "database.url" => Some(
            "expected one string, for example url = \"postgresql://USER:PASSWORD@HOST/DATABASE\"",
        ),
        "blobs.secret_key" => Some("expected one string, for example secret_key = \"SECRET\""),
        "chain.rpc_urls" => Some(
            "expected one string, with commas between URLs, for example \
             rpc_urls = \"http://127.0.0.1:8545,https://node.example.com\"",
        ),
        "chain.historic_rpc_urls" => Some(
            "expected one string, with commas between URLs, for example \
             historic_rpc_urls = \"http://127.0.0.1:8545,https://node.example.com\"",
        ),
        "server.keys" => Some(
            "expected one string, with commas between keys of the form NAME:SECRET:SCOPES, for example \
             keys = \"billing:16-OR-MORE-CHARACTERS:usage+read,ops:16-OR-MORE-CHARACTERS:admin\"",
        ),
        "secrets.keys" => Some(
            "expected one string, with commas between keys, the first of which encrypts, for example \
             keys = \"NEW-KEY,OLD-KEY\"; `logmill secrets generate` prints a new key",
        ),
        "meter.webhooks" => Some(
            "expected a list of tables, each with url and secret, and optionally enabled and events, for \
             example [[meter.webhooks]] with url = \"https://example.com/hook\" and secret = \"SECRET\"",
        ),
        "chains" => Some("expected a list of tables, each with id and rpc_urls"),
        _ => None,
    }
}

/// The value of a key with secrets redacted.
pub(super) fn redact(key: &str, value: &str) -> String {
    match key {
        "database.url" => redact_url(value),
        "blobs.endpoint" | "derive.ipfs_gateways" | "derive.arweave_gateways" => {
            let each = value.split(',').map(str::trim).filter(|url| !url.is_empty());
            each.map(redact_path).collect::<Vec<_>>().join(",")
        }
        "chain.rpc_urls" | "chain.historic_rpc_urls" => super::chain::redacted_nodes(value),
        "blobs.secret_key" | "server.keys" | "secrets.keys" if !value.is_empty() => {
            HIDDEN.to_owned()
        }
        _ => value.to_owned(),
    }
}

/// The value of a key that is not text, with the secrets in its tables redacted.
pub(super) fn redact_list(key: &str, mut value: Value) -> Value {
    match key {
        "meter.webhooks" => {}
        "chains" => return redact_chains(value),
        _ => return value,
    }
    for entry in value.as_array_mut().into_iter().flatten() {
        for (name, value) in entry.as_table_mut().into_iter().flatten() {
            // A URL may contain a password, and its path may be the only protection.
            match (name.as_str(), &*value) {
                ("secret", _) => *value = Value::String(HIDDEN.to_owned()),
                ("url", Value::String(url)) => *value = Value::String(redact_path(url)),
                _ => {}
            }
        }
    }
    value
}

/// The list of chains with the secrets in node addresses redacted. An entry has the keys of the section `chain`.
fn redact_chains(mut list: Value) -> Value {
    for entry in list.as_array_mut().into_iter().flatten() {
        for (name, value) in entry.as_table_mut().into_iter().flatten() {
            if let Value::String(text) = value {
                *text = redact(&format!("chain.{name}"), text);
            }
        }
    }
    list
}

/// An address without credentials, path and query.
pub(crate) fn redact_path(url: &str) -> String {
    match logmill_io::wire::Endpoint::parse(url) {
        Ok(endpoint) => endpoint.to_string(),
        Err(_) => HIDDEN.to_owned(),
    }
}

/// The reason why a database address is invalid, without any part of it.
pub(super) fn url_fault(url: &str) -> Option<&'static str> {
    if url.is_empty() {
        return None;
    }
    let Some(("postgresql" | "postgres", rest)) = url.split_once("://") else {
        return Some("must start with postgresql://, or be empty for SQLite");
    };
    let user_and_password = rest.rsplit_once('@').map_or("", |(before, _)| before);
    // Unescaped, a part of the password would be parsed as the host and appear in an error.
    if user_and_password.contains(|c: char| "/?#@".contains(c) || c.is_whitespace()) {
        return Some(
            "write the characters / ? # @ and space in user and password as %2F %3F %23 %40 %20",
        );
    }
    None
}

fn redact_url(url: &str) -> String {
    if url.is_empty() {
        return String::new();
    }
    let Some((scheme, rest)) = url.split_once("://").filter(|_| url_fault(url).is_none()) else {
        return HIDDEN.to_owned();
    };
    let (user, place) = match rest.rsplit_once('@') {
        None => (String::new(), rest),
        Some((before, place)) => match before.split_once(':') {
            None => (format!("{before}@"), place),
            Some((user, _)) => (format!("{user}:{HIDDEN}@"), place),
        },
    };
    let Some((place, options)) = place.split_once('?') else {
        return format!("{scheme}://{user}{place}");
    };
    let options = options.split('&').map(|option| match option.split_once('=') {
        Some((name, _)) if name.contains("password") => format!("{name}={HIDDEN}"),
        _ => option.to_owned(),
    });
    format!("{scheme}://{user}{place}?{}", options.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_printed() {
        for (url, shown) in [
            ("", ""),
            ("postgresql://h/d", "postgresql://h/d"),
            ("postgresql://me@h/d", "postgresql://me@h/d"),
            ("postgresql://me:tiger@h:5432/d", "postgresql://me:***@h:5432/d"),
            ("postgres://me:ti%2Fger@h/d?a=b", "postgres://me:***@h/d?a=b"),
            ("postgresql://h/d?password=tiger&user=me", "postgresql://h/d?password=***&user=me"),
            ("postgresql://h/d?password=ti@ger", "***"),
            ("postgresql://me:ti/ger@h/d", "***"),
            ("postgresql://me:ti@ger@h/d", "***"),
            ("host=h password=tiger", "***"),
        ] {
            assert_eq!(redact("database.url", url), shown, "{url}");
        }
        assert_eq!(redact("blobs.secret_key", "tiger"), "***");
        assert_eq!(redact("blobs.secret_key", ""), "");
        assert_eq!(redact("server.keys", "me:tiger:read"), "***");
        assert_eq!(redact("secrets.keys", "tiger"), "***");
        assert_eq!(redact("blobs.bucket", "b"), "b");
        assert_eq!(redact("blobs.endpoint", "https://AK:SK@s3.example"), "https://s3.example:443");
        assert_eq!(redact("blobs.endpoint", ""), "");
        let gateways = "https://a.example/KEY, https://b.example";
        let shown = redact("derive.ipfs_gateways", gateways);
        assert_eq!(shown, "https://a.example:443,https://b.example:443");
    }

    #[test]
    fn an_address_that_could_be_misread_is_refused() {
        for (url, fine) in [
            ("", true),
            ("postgresql://me:tiger@h/d", true),
            ("postgres:///d?host=h", true),
            ("mysql://h/d", false),
            ("h/d", false),
            ("postgresql://me:ti/ger@h/d", false),
            ("postgresql://me:ti@ger@h/d", false),
            ("postgresql://me:ti ger@h/d", false),
        ] {
            assert_eq!(url_fault(url).is_none(), fine, "{url}");
        }
    }
}
