//! Where a server is: a URL or a socket, printed without its secrets.
//!
//! Guarantees: [`Endpoint`] prints as scheme, host and port; credentials, path and query of it are printed nowhere,
//! and [`Endpoint::redact`] takes them out of texts that a server gave. Leaves to others: connecting.

use std::fmt;
use std::path::{Path, PathBuf};

use reqwest::Url;

use crate::error::{Error, Result};

/// Parts of a path shorter than this are words such as `v3`, not secrets.
const PATH_SECRET_LENGTH_MIN: usize = 6;

/// Values of a query shorter than this are numbers and flags.
const QUERY_SECRET_LENGTH_MIN: usize = 3;

/// The most characters that an address may have.
const ADDRESS_LENGTH_MAX: usize = 4096;

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `http://` or `https://`.
    Http,
    /// `ws://` or `wss://`.
    WebSocket,
    /// A Unix socket: `ipc://` and a path, or a path.
    Ipc,
}

/// The address of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    form: Form,
}

#[derive(Clone, PartialEq, Eq)]
enum Form {
    Url(Url),
    Path(PathBuf),
}

impl Endpoint {
    /// Reads an address. An error does not repeat it.
    pub fn parse(address: &str) -> Result<Self> {
        let address = address.trim();
        if address.is_empty() || address.len() > ADDRESS_LENGTH_MAX {
            return Err(Error::invalid("an address must have 1 to 4096 characters"));
        }
        let path = address.strip_prefix("ipc://").or((!address.contains("://")).then_some(address));
        if let Some(path) = path {
            return Self::socket(path);
        }
        // A URL parser takes the first word of the path for the host then, and a host is shown.
        if address.contains(":///") {
            return Err(Error::invalid("an address without a host"));
        }
        let url = Url::parse(address)
            .map_err(|error| Error::invalid(format!("an address that is no URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https" | "ws" | "wss") {
            let expected = "expected http, https, ws, wss or ipc";
            return Err(Error::invalid(format!("an address of an unknown scheme: {expected}")));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(Error::invalid("an address without a host"));
        }
        Ok(Self { form: Form::Url(url) })
    }

    fn socket(path: &str) -> Result<Self> {
        if !(path.starts_with('/') || path.starts_with('.')) {
            let expected = "expected a URL, or a path that starts with / or .";
            return Err(Error::invalid(format!("an address without a scheme: {expected}")));
        }
        Ok(Self { form: Form::Path(PathBuf::from(path)) })
    }

    /// How it is spoken to.
    pub fn scheme(&self) -> Scheme {
        match &self.form {
            Form::Path(_) => Scheme::Ipc,
            Form::Url(url) if url.scheme().starts_with("ws") => Scheme::WebSocket,
            Form::Url(_) => Scheme::Http,
        }
    }

    /// Host and port, or the name of the socket's file: what may be shown.
    pub fn place(&self) -> String {
        match &self.form {
            Form::Path(path) => path
                .file_name()
                .map_or_else(|| "socket".to_owned(), |name| name.to_string_lossy().into_owned()),
            Form::Url(url) => {
                let host = url.host_str().unwrap_or_default();
                url.port_or_known_default()
                    .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
            }
        }
    }

    /// The same address by HTTP, if it is one of a WebSocket.
    #[must_use]
    pub fn as_http(&self) -> Self {
        let Form::Url(url) = &self.form else {
            return self.clone();
        };
        let mut url = url.clone();
        let scheme = match url.scheme() {
            "ws" => "http",
            "wss" => "https",
            _ => return self.clone(),
        };
        // Both pairs are special schemes, between which a URL may always change.
        match url.set_scheme(scheme) {
            Ok(()) => Self { form: Form::Url(url) },
            Err(()) => self.clone(),
        }
    }

    /// A text of the server, without the secrets of this address.
    pub fn redact(&self, text: &str) -> String {
        self.secrets()
            .into_iter()
            .fold(text.to_owned(), |text, secret| text.replace(&secret, "***"))
    }

    fn secrets(&self) -> Vec<String> {
        let Form::Url(url) = &self.form else {
            return Vec::new();
        };
        let path = url.path_segments().into_iter().flatten().map(str::to_owned);
        let path = path.filter(|part| part.len() >= PATH_SECRET_LENGTH_MIN);
        let values = url.query_pairs().map(|(_, value)| value.into_owned());
        let query = values.chain(url.query().map(str::to_owned));
        let query = query.filter(|value| value.len() >= QUERY_SECRET_LENGTH_MIN);
        let mut secrets: Vec<String> = path.chain(query).collect();
        // A user name or a password is one however short it is.
        let login = [url.username(), url.password().unwrap_or_default()];
        secrets.extend(login.iter().filter(|part| !part.is_empty()).map(|part| (*part).to_owned()));
        // The longest first: one may be a part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets
    }

    pub(super) fn url(&self) -> Option<&Url> {
        match &self.form {
            Form::Url(url) => Some(url),
            Form::Path(_) => None,
        }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        match &self.form {
            Form::Path(path) => Some(path),
            Form::Url(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match &self.form {
            Form::Url(url) => url.scheme(),
            Form::Path(_) => "ipc",
        };
        write!(f, "{scheme}://{}", self.place())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_prints_without_its_secrets() {
        let cases = [
            ("https://user:pass@node.example/v2/KEY?apikey=abc", "https://node.example:443"),
            ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
            ("wss://node.example/ws/KEY", "wss://node.example:443"),
            ("ws://[::1]:8546/", "ws://[::1]:8546"),
            ("/run/geth/geth.ipc", "ipc://geth.ipc"),
            ("ipc:///run/geth/geth.ipc", "ipc://geth.ipc"),
        ];
        for (address, shown) in cases {
            let endpoint = Endpoint::parse(address).expect("a fine address");
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!(format!("{endpoint:?}"), shown);
        }
    }

    #[test]
    fn wrong_addresses_are_refused_without_repeating_them() {
        for address in
            ["", "ftp://host/SECRET", "node.example/SECRET", "http:///SECRET?", "http://"]
        {
            let error = Endpoint::parse(address).expect_err(address).to_string();
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn a_web_socket_address_has_one_of_http() {
        let endpoint = Endpoint::parse("wss://u:p@node.example:99/key").expect("fine");
        assert_eq!(endpoint.as_http(), Endpoint::parse("https://u:p@node.example:99/key").unwrap());
        let plain = Endpoint::parse("http://node.example/key").expect("fine");
        assert_eq!(plain.as_http(), plain);
    }

    proptest! {
        #[test]
        fn what_a_server_repeats_of_the_address_is_taken_out(
            user in "[a-z]{3,8}", pass in "[A-Z0-9]{6,12}", key in "[a-f0-9]{16,32}", token in "[A-Za-z0-9]{12,20}",
        ) {
            let address = format!("https://{user}q:{pass}@host.example/v2/{key}?token={token}");
            let endpoint = Endpoint::parse(&address).expect("fine");
            let said = endpoint.redact(&format!("no such project {key} at {address} ({token}, {pass})"));
            for secret in [&pass, &key, &token] {
                prop_assert!(!said.contains(secret.as_str()), "{said}");
            }
            let shown = format!("{endpoint} {endpoint:?}");
            prop_assert!(!shown.contains(key.as_str()));
        }
    }
}
