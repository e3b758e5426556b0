//! API keys and their scopes.
//!
//! Guarantees: secrets are kept and compared as hashes, in constant time, and are never shown or logged. Without keys
//! every client on this machine has access, and [`crate::http::serve_with_health`] serves no other. A page of another
//! site in a local browser counts as foreign unless its origin is allowed ([`super::cors`]). Leaves to others: which
//! path needs which scope.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use logmill_meter::settings::check_name;
use logmill_meter::sources::ConfiguredKey;

use super::cors::Origins;

/// Header of a key, as an alternative to `Authorization: Bearer`.
const KEY_HEADER: &str = "x-apikey";
/// WebSocket subprotocol that is chosen if the client offers it.
pub(super) const PROTOCOL: &str = "logmill.v1";
/// Prefix of a WebSocket subprotocol that carries a key, because pages cannot set headers of a WebSocket. The secret
/// follows in base64url without padding, because subprotocols allow few characters.
const KEY_PROTOCOL: &str = "logmill.key.";
/// Header in which browsers report the site of the requesting page.
const SITE_HEADER: &str = "sec-fetch-site";
/// Minimum length of a secret; shorter ones can be guessed.
const SECRET_CHARS_MIN: usize = 16;
/// Length of the fingerprint that distinguishes keys.
const FINGERPRINT_BYTES: usize = 16;
const KEYS_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Read data.
    Read,
    /// Send usage.
    Usage,
    /// Change how the server works; includes the other scopes.
    Admin,
}

impl Scope {
    fn of_name(name: &str) -> Option<Self> {
        [Self::Read, Self::Usage, Self::Admin].into_iter().find(|scope| scope.name() == name)
    }

    /// Name in the settings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Usage => "usage",
            Self::Admin => "admin",
        }
    }
}

/// All keys, and the origins whose pages have access.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys(Vec<Key>, Origins);

#[derive(Clone, PartialEq, Eq)]
struct Key {
    name: String,
    /// `blake3::Hash` compares in constant time.
    secret: blake3::Hash,
    scopes: Vec<Scope>,
    /// Source of the usage it sends, if configured.
    source: Option<String>,
}

impl Key {
    /// Identifies this secret without revealing it.
    fn fingerprint(&self) -> String {
        let hash = blake3::derive_key("logmill api key fingerprint", self.secret.as_bytes());
        hash[..FINGERPRINT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn allows(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|has| *has == scope || *has == Scope::Admin)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.name)).finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRejection {
    /// No key, or an unknown one.
    Unknown,
    /// The key lacks the required scope.
    Forbidden,
    /// No keys are configured, and the request comes from a page of another site.
    Foreign,
}

impl Keys {
    /// Parses a setting: `NAME:SECRET:SCOPES` or `NAME:SECRET:SCOPES:SOURCE`, separated by commas.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let mut keys: Vec<Key> = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            // A source may contain colons, as addresses and chain names do.
            let mut parts = entry.splitn(4, ':');
            let (Some(name), Some(secret), Some(scopes), source) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(
                    "a key must be NAME:SECRET:SCOPES or NAME:SECRET:SCOPES:SOURCE, with commas between keys",
                );
            };
            if source.is_some_and(|source| check_name("source", source).is_err()) {
                return Err("a source must have 1 to 200 bytes and no control characters");
            }
            if name.is_empty() || keys.iter().any(|key| key.name == name) {
                return Err("every key needs a name that no other key has");
            }
            if secret.len() < SECRET_CHARS_MIN {
                return Err("a secret needs at least 16 characters");
            }
            let scopes: Option<Vec<Scope>> = scopes.split('+').map(Scope::of_name).collect();
            let scopes =
                scopes.ok_or("the scopes of a key must be read, usage or admin, joined by +")?;
            let secret = blake3::hash(secret.as_bytes());
            let source = source.map(str::to_owned);
            keys.push(Key { name: name.to_owned(), secret, scopes, source });
        }
        if keys.len() > KEYS_MAX {
            return Err("too many keys, at most 10000");
        }
        Ok(Self(keys, Origins::default()))
    }

    /// The keys that may send usage, for [`logmill_meter::Meter::sync_key_sources`].
    pub fn senders(&self) -> Vec<ConfiguredKey> {
        let senders = self.0.iter().filter(|key| key.allows(Scope::Usage));
        let configured = senders.map(|key| ConfiguredKey {
            name: key.name.clone(),
            fingerprint: key.fingerprint(),
            source: key.source.clone(),
        });
        configured.collect()
    }

    /// The same keys, with origins whose pages have access.
    pub fn with_origins(self, origins: Origins) -> Self {
        Self(self.0, origins)
    }

    pub(super) fn origins(&self) -> &Origins {
        &self.1
    }

    /// Without keys, every client on this machine has access.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these headers has a scope. Returns the name of its key.
    pub(crate) fn check(
        &self,
        headers: &HeaderMap,
        scope: Scope,
    ) -> Result<Option<&str>, KeyRejection> {
        if self.is_empty() {
            let is_foreign = is_foreign(headers, &self.1);
            return if is_foreign { Err(KeyRejection::Foreign) } else { Ok(None) };
        }
        let given = secret_of(headers).ok_or(KeyRejection::Unknown)?;
        let given = blake3::hash(&given);
        // Compares all keys, so that the duration does not reveal which one matched.
        let mut found = None;
        for key in &self.0 {
            if key.secret == given {
                found = Some(key);
            }
        }
        let key = found.ok_or(KeyRejection::Unknown)?;
        match key.allows(scope) {
            true => Ok(Some(&key.name)),
            false => Err(KeyRejection::Forbidden),
        }
    }
}

/// Whether a browser sends this request for a page of another site that is not allowed, or under a host name that
/// another site pointed at this machine (DNS rebinding).
fn is_foreign(headers: &HeaderMap, origins: &Origins) -> bool {
    let text = |value: Option<&axum::http::HeaderValue>| {
        value.map(|value| value.to_str().unwrap_or_default().to_owned())
    };
    let by_other_name = text(headers.get(HOST)).is_some_and(|host| !is_local(&host));
    let of_other_origin = text(headers.get(ORIGIN)).is_some_and(|origin| {
        !origin.split_once("://").is_some_and(|(_, authority)| is_local(authority))
    });
    let of_other_site = text(headers.get(SITE_HEADER)).is_some_and(|site| site == "cross-site");
    let is_allowed = origins.allowed(headers).is_some();
    by_other_name || (!is_allowed && (of_other_origin || of_other_site))
}

/// Whether a host, with or without a port, is this machine.
fn is_local(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(host, _)| host),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    let host = host.to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn secret_of(headers: &HeaderMap) -> Option<Cow<'_, [u8]>> {
    if let Some(key) = headers.get(KEY_HEADER) {
        return Some(Cow::Borrowed(key.as_bytes()));
    }
    if let Some(given) = headers.get(AUTHORIZATION) {
        let (scheme, secret) = given.as_bytes().split_at_checked("bearer ".len())?;
        let secret = Cow::Borrowed(secret.trim_ascii());
        return scheme.eq_ignore_ascii_case(b"bearer ").then_some(secret);
    }
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
    let offered = offered.filter_map(|value| value.to_str().ok());
    let mut offered = offered.flat_map(|value| value.split(',')).map(str::trim);
    let secret = offered.find_map(|name| name.strip_prefix(KEY_PROTOCOL))?;
    URL_SAFE_NO_PAD.decode(secret).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(name),
            value.parse().expect("a header"),
        )])
    }

    #[test]
    fn a_key_allows_exactly_its_scopes() {
        let keys = "me:0123456789abcdef:read, boss:fedcba9876543210:read+admin, \
            app:aaaaaaaaaaaaaaaa:usage, both:bbbbbbbbbbbbbbbb:usage+read";
        let keys = Keys::parse(keys).expect("four keys");
        for (name, value, scope, expected) in [
            ("authorization", "Bearer 0123456789abcdef", Scope::Read, Ok(Some("me"))),
            ("authorization", "bearer 0123456789abcdef", Scope::Read, Ok(Some("me"))),
            ("x-apikey", "0123456789abcdef", Scope::Read, Ok(Some("me"))),
            ("x-apikey", "0123456789abcdef", Scope::Admin, Err(KeyRejection::Forbidden)),
            ("x-apikey", "0123456789abcdef", Scope::Usage, Err(KeyRejection::Forbidden)),
            ("x-apikey", "fedcba9876543210", Scope::Admin, Ok(Some("boss"))),
            ("x-apikey", "fedcba9876543210", Scope::Usage, Ok(Some("boss"))),
            ("x-apikey", "aaaaaaaaaaaaaaaa", Scope::Usage, Ok(Some("app"))),
            ("x-apikey", "aaaaaaaaaaaaaaaa", Scope::Read, Err(KeyRejection::Forbidden)),
            ("x-apikey", "bbbbbbbbbbbbbbbb", Scope::Usage, Ok(Some("both"))),
            ("x-apikey", "bbbbbbbbbbbbbbbb", Scope::Read, Ok(Some("both"))),
            ("x-apikey", "bbbbbbbbbbbbbbbb", Scope::Admin, Err(KeyRejection::Forbidden)),
            ("x-apikey", "0123456789abcde", Scope::Read, Err(KeyRejection::Unknown)),
            ("x-apikey", "", Scope::Read, Err(KeyRejection::Unknown)),
            ("authorization", "Basic 0123456789abcdef", Scope::Read, Err(KeyRejection::Unknown)),
            ("authorization", "Bearer", Scope::Read, Err(KeyRejection::Unknown)),
            ("cookie", "0123456789abcdef", Scope::Read, Err(KeyRejection::Unknown)),
            // As pages do, which cannot set headers of a WebSocket.
            (
                "sec-websocket-protocol",
                "logmill.v1, logmill.key.MDEyMzQ1Njc4OWFiY2RlZg",
                Scope::Read,
                Ok(Some("me")),
            ),
            (
                "sec-websocket-protocol",
                "logmill.key.MDEyMzQ1Njc4OWFiY2RlZg",
                Scope::Admin,
                Err(KeyRejection::Forbidden),
            ),
            (
                "sec-websocket-protocol",
                "logmill.key.0123456789abcdef",
                Scope::Read,
                Err(KeyRejection::Unknown),
            ),
            ("sec-websocket-protocol", "0123456789abcdef", Scope::Read, Err(KeyRejection::Unknown)),
        ] {
            assert_eq!(keys.check(&headers(name, value), scope), expected, "{name}: {value}");
        }
        assert!(Keys::default().check(&HeaderMap::new(), Scope::Admin).is_ok(), "no keys: open");
        assert!(!format!("{keys:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn malformed_keys_are_refused() {
        for text in [
            "me",
            "me:0123456789abcdef",
            "me:short:read",
            ":0123456789abcdef:read",
            "me:0123456789abcdef:write",
            "me:0123456789abcdef:",
            "me:0123456789abcdef:read+",
            "me:0123456789abcdef:read,usage",
            "me:0123456789abcdef:read:",
            "a:0123456789abcdef:read,a:0123456789abcdef:read",
        ] {
            assert!(Keys::parse(text).is_err(), "{text}");
        }
        assert!(Keys::parse(" , ").expect("none").is_empty());
        let long = format!("me:0123456789abcdef:usage:{}", "x".repeat(1_000));
        assert!(Keys::parse(&long).is_err());
    }

    #[test]
    fn a_key_that_sends_usage_has_a_fingerprint_and_maybe_a_source() {
        let senders = |text: &str| Keys::parse(text).expect("keys").senders();
        let one = senders("a:0123456789abcdef:usage,r:bbbbbbbbbbbbbbbb:read").remove(0);
        assert_eq!((one.name.as_str(), &one.source), ("a", &None));
        assert!(!one.fingerprint.contains("0123456789abcdef"));
        let renamed = senders("b:0123456789abcdef:admin:app:eu").remove(0);
        assert_eq!((renamed.name.as_str(), renamed.source.as_deref()), ("b", Some("app:eu")));
        assert_eq!(renamed.fingerprint, one.fingerprint, "by its secret");
        assert_ne!(senders("a:0123456789abcdeg:usage")[0].fingerprint, one.fingerprint);
        assert!(senders("r:bbbbbbbbbbbbbbbb:read").is_empty());
    }

    #[test]
    fn pages_of_allowed_origins_have_access_but_not_under_another_host_name() {
        let origins = Origins::parse("https://app.example").expect("one");
        let keys = Keys::default().with_origins(origins);
        for (given, expected) in [
            (&[("origin", "https://app.example"), ("sec-fetch-site", "cross-site")][..], Ok(None)),
            (&[("origin", "https://app.example"), ("host", "localhost")][..], Ok(None)),
            (&[("origin", "https://evil.example")][..], Err(KeyRejection::Foreign)),
            // A page without an origin may belong to any site, and a host name may have been rebound.
            (&[("sec-fetch-site", "cross-site")][..], Err(KeyRejection::Foreign)),
            (
                &[("origin", "https://app.example"), ("host", "rebound.example")][..],
                Err(KeyRejection::Foreign),
            ),
        ] {
            let headers = given.iter().map(|(name, value)| {
                (axum::http::HeaderName::from_static(name), value.parse().expect("a header"))
            });
            let headers: HeaderMap = headers.collect();
            assert_eq!(keys.check(&headers, Scope::Read), expected, "{given:?}");
        }
    }

    #[test]
    fn without_keys_pages_of_other_sites_are_refused() {
        let none = Keys::default();
        let keys = Keys::parse("one:0123456789abcdef:read").expect("keys");
        for (name, value, foreign) in [
            ("host", "localhost:8645", false),
            ("host", "LocalHost", false),
            ("host", "logmill.localhost:8645", false),
            ("host", "127.0.0.1:8645", false),
            ("host", "127.8.8.8", false),
            ("host", "[::1]:8645", false),
            ("host", "[::ffff:127.0.0.1]", false),
            ("host", "rebound.example:8645", true),
            ("host", "localhost.example", true),
            ("host", "127.0.0.1.example:8645", true),
            ("host", "10.0.0.1:8645", true),
            ("host", "[::2]:8645", true),
            ("host", "", true),
            ("origin", "http://localhost:3000", false),
            ("origin", "http://[::1]:3000", false),
            ("origin", "https://evil.example", true),
            ("origin", "https://localhost.evil.example:8645", true),
            ("origin", "null", true),
            ("sec-fetch-site", "cross-site", true),
            ("sec-fetch-site", "same-origin", false),
            ("sec-fetch-site", "none", false),
            ("user-agent", "curl/8", false),
        ] {
            let given = headers(name, value);
            let expected = if foreign { Err(KeyRejection::Foreign) } else { Ok(None) };
            assert_eq!(none.check(&given, Scope::Admin), expected, "{name}: {value}");
            // If keys are configured, only the key counts.
            assert_eq!(
                keys.check(&given, Scope::Read),
                Err(KeyRejection::Unknown),
                "{name}: {value}"
            );
        }
    }
}
