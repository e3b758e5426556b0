//! The address of a server: a URL or a socket, printed without its secrets.
//!
//! Guarantees: [`Endpoint`] prints as scheme, host and port; its credentials, path and query are never printed,
//! and [`Endpoint::redact`] removes them from texts of a server ([`secrets`]). Leaves to others: connecting.

mod secrets;

use std::fmt;
use std::path::{Path, PathBuf};

use reqwest::Url;

use crate::error::{Error, Result};
use secrets::Secrets;

const ADDRESS_LENGTH_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `http://` or `https://`.
    Http,
    /// `ws://` or `wss://`.
    WebSocket,
    /// A Unix socket: `ipc://` and a path, or a path.
    Ipc,
}

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
    /// Parses an address. The error does not repeat it.
    pub fn parse(address: &str) -> Result<Self> {
        let address = address.trim();
        if address.is_empty() || address.len() > ADDRESS_LENGTH_MAX {
            return Err(Error::invalid("an address must have 1 to 4096 characters"));
        }
        refuse_control_characters(address)?;
        let path = address.strip_prefix("ipc://").or((!address.contains("://")).then_some(address));
        if let Some(path) = path {
            return Self::socket(path);
        }
        // A URL parser would take the first segment of the path for the host, and hosts are printed.
        if address.contains(":///") {
            return Err(Error::invalid("the address has no host"));
        }
        let url = Url::parse(address)
            .map_err(|error| Error::invalid(format!("not a valid URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https" | "ws" | "wss") {
            let expected = "expected http, https, ws, wss or ipc";
            return Err(Error::invalid(format!("the address has an unknown scheme: {expected}")));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(Error::invalid("the address has no host"));
        }
        Ok(Self { form: Form::Url(url) })
    }

    fn socket(path: &str) -> Result<Self> {
        if !(path.starts_with('/') || path.starts_with('.')) {
            let expected = "expected a URL, or a path that starts with / or .";
            return Err(Error::invalid(format!("the address has no scheme: {expected}")));
        }
        Ok(Self { form: Form::Path(PathBuf::from(path)) })
    }

    pub fn scheme(&self) -> Scheme {
        match &self.form {
            Form::Path(_) => Scheme::Ipc,
            Form::Url(url) if url.scheme().starts_with("ws") => Scheme::WebSocket,
            Form::Url(_) => Scheme::Http,
        }
    }

    /// Host and port, or the file name of the socket: safe to show.
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

    /// The same address with an HTTP scheme, if it is a WebSocket address.
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

    /// Removes the secrets of this address from a text of the server.
    pub fn redact(&self, text: &str) -> String {
        match &self.form {
            Form::Url(url) => Secrets::of(url).redact(text),
            Form::Path(_) => text.to_owned(),
        }
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

/// Refuses an address with control characters: a URL parser drops some of them and would then request something
/// else. The error names the character and its position, and repeats nothing of the address.
pub(super) fn refuse_control_characters(address: &str) -> Result<()> {
    let Some((position, found)) = address.chars().enumerate().find(|(_, c)| c.is_control()) else {
        return Ok(());
    };
    let name = match found {
        '\0' => " (zero)",
        '\t' => " (tab)",
        '\n' => " (line feed)",
        '\r' => " (carriage return)",
        '\u{1b}' => " (escape)",
        '\u{7f}' => " (delete)",
        _ => "",
    };
    let (code, position) = (u32::from(found), position + 1);
    Err(Error::invalid(format!(
        "an address cannot have control characters: character {position} is U+{code:04X}{name}"
    )))
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
            let endpoint = Endpoint::parse(address).expect("a valid address");
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!(format!("{endpoint:?}"), shown);
        }
    }

    #[test]
    fn invalid_addresses_are_refused_without_repeating_them() {
        for address in
            ["", "ftp://host/SECRET", "node.example/SECRET", "http:///SECRET?", "http://"]
        {
            let error = Endpoint::parse(address).expect_err(address).to_string();
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn a_control_character_in_an_address_is_named_with_its_position() {
        for (address, said) in [
            ("http://node.example/a\nb", "character 22 is U+000A (line feed)"),
            ("http://no\tde.example/", "character 10 is U+0009 (tab)"),
            ("http://node.example/\u{1b}[2J", "character 21 is U+001B (escape)"),
            ("http://node.example/ü\0", "character 22 is U+0000 (zero)"),
            ("http://node.example/\u{85}x", "character 21 is U+0085"),
            ("/run/ge\nth.ipc", "character 8 is U+000A (line feed)"),
        ] {
            let error = Endpoint::parse(address).expect_err(address).to_string();
            assert!(error.ends_with(said), "{error}");
        }
        Endpoint::parse("http://node.example/key\n").expect("what surrounds it is cut off");
    }

    #[test]
    fn a_web_socket_address_converts_to_http() {
        let endpoint = Endpoint::parse("wss://u:p@node.example:99/key").expect("fine");
        assert_eq!(endpoint.as_http(), Endpoint::parse("https://u:p@node.example:99/key").unwrap());
        let plain = Endpoint::parse("http://node.example/key").expect("fine");
        assert_eq!(plain.as_http(), plain);
    }

    proptest! {
        #[test]
        fn secrets_that_a_server_repeats_are_removed(
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
