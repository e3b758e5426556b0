//! Secrets of the configuration: which keys hold them, and how they are shown.
//!
//! Guarantees: what [`hidden`] gives holds no password, also when the address is malformed. Leaves to others: not
//! printing what was not hidden.

use std::fmt;

use serde::Deserialize;
use toml::Value;

/// Stands where a secret was.
const HIDDEN: &str = "***";

/// A secret among settings. It can not be printed by accident.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl Secret {
    /// The secret itself, for who needs it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// What a key needs whose value must not be part of an error; none if it may be.
pub(super) fn needed(key: &str) -> Option<&'static str> {
    match key {
        "database.url"
        | "blobs.secret_key"
        | "chain.rpc_urls"
        | "chain.historic_rpc_urls"
        | "server.keys"
        | "secrets.keys" => Some("text is needed"),
        "meter.webhooks" => Some(
            "a list of tables is needed, each with url and secret, and maybe enabled and events",
        ),
        _ => None,
    }
}

/// The value of a key as it may be shown.
pub(super) fn hidden(key: &str, value: &str) -> String {
    match key {
        "database.url" => hidden_url(value),
        "chain.rpc_urls" | "chain.historic_rpc_urls" => super::chain::shown_nodes(value),
        "blobs.secret_key" | "server.keys" | "secrets.keys" if !value.is_empty() => {
            HIDDEN.to_owned()
        }
        _ => value.to_owned(),
    }
}

/// The value of a key that is not text as it may be shown: without the secrets in its tables.
pub(super) fn hidden_list(key: &str, mut value: Value) -> Value {
    if key != "meter.webhooks" {
        return value;
    }
    for entry in value.as_array_mut().into_iter().flatten() {
        for (name, value) in entry.as_table_mut().into_iter().flatten() {
            // An address may hold a password, and its path may be all that keeps others out.
            match (name.as_str(), &*value) {
                ("secret", _) => *value = Value::String(HIDDEN.to_owned()),
                ("url", Value::String(url)) => *value = Value::String(hidden_path(url)),
                _ => {}
            }
        }
    }
    value
}

/// An address without credentials, path and query.
pub(crate) fn hidden_path(url: &str) -> String {
    match logmill_io::wire::Endpoint::parse(url) {
        Ok(endpoint) => endpoint.to_string(),
        Err(_) => HIDDEN.to_owned(),
    }
}

/// What is wrong with a database address, said without any part of it.
pub(super) fn url_fault(url: &str) -> Option<&'static str> {
    if url.is_empty() {
        return None;
    }
    let Some(("postgresql" | "postgres", rest)) = url.split_once("://") else {
        return Some("it starts with postgresql://, or is empty for SQLite");
    };
    let user_and_password = rest.rsplit_once('@').map_or("", |(before, _)| before);
    // Otherwise a part of the password would be taken for the host, and be named in an error.
    if user_and_password.contains(|sign: char| "/?#@".contains(sign) || sign.is_whitespace()) {
        return Some(
            "in user and password the signs / ? # @ and spaces are written %2F %3F %23 %40 %20",
        );
    }
    None
}

fn hidden_url(url: &str) -> String {
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
    fn no_password_is_shown() {
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
            assert_eq!(hidden("database.url", url), shown, "{url}");
        }
        assert_eq!(hidden("blobs.secret_key", "tiger"), "***");
        assert_eq!(hidden("blobs.secret_key", ""), "");
        assert_eq!(hidden("server.keys", "me:tiger:read"), "***");
        assert_eq!(hidden("secrets.keys", "tiger"), "***");
        assert_eq!(hidden("blobs.bucket", "b"), "b");
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
