//! API keys: who may ask what.
//!
//! Guarantees: secrets are kept and compared as hashes, in a time that tells nothing of them, and are never shown or
//! logged. Without keys everybody on this machine may ask, and [`crate::http::serve`] serves nobody else; a page of
//! another site that a browser shows here is somebody else. Leaves to others: which path needs which scope.

use std::fmt;
use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use logmill_meter::settings::check_name;
use logmill_meter::sources::ConfiguredKey;

/// The header of a key, if it is not `Authorization: Bearer`.
const KEY_HEADER: &str = "x-apikey";
/// The header in which browsers tell whose page asks.
const SITE_HEADER: &str = "sec-fetch-site";
/// Shorter secrets can be guessed.
const SECRET_SIGNS_MIN: usize = 16;
/// How much of a hash tells keys apart.
const FINGERPRINT_BYTES: usize = 16;
/// The most keys.
const KEYS_MAX: usize = 10_000;

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// To ask.
    Read,
    /// To send usage.
    Usage,
    /// To change how the server works; all of the others too.
    Admin,
}

impl Scope {
    fn of_name(name: &str) -> Option<Self> {
        [Self::Read, Self::Usage, Self::Admin].into_iter().find(|scope| scope.name() == name)
    }

    /// The name that people write.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Usage => "usage",
            Self::Admin => "admin",
        }
    }
}

/// All keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Keys(Vec<Key>);

#[derive(Clone, PartialEq, Eq)]
struct Key {
    name: String,
    /// `blake3::Hash` compares in constant time.
    secret: blake3::Hash,
    scopes: Vec<Scope>,
    /// As who it sends usage, if the configuration says so.
    source: Option<String>,
}

impl Key {
    /// What tells this secret from others and does not lead back to it.
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

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no key, or a wrong one.
    Unknown,
    /// The key does not allow this.
    Forbidden,
    /// There are no keys, and a page of another site asks.
    Foreign,
}

impl Keys {
    /// Of a setting: `NAME:SECRET:SCOPES` or `NAME:SECRET:SCOPES:SOURCE`, with commas between.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut keys: Vec<Key> = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            // A source may have colons, as addresses and names of chains do.
            let mut parts = entry.splitn(4, ':');
            let (Some(name), Some(secret), Some(scopes), source) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(
                    "a key is NAME:SECRET:SCOPES or NAME:SECRET:SCOPES:SOURCE, and several have commas between",
                );
            };
            if source.is_some_and(|source| check_name("source", source).is_err()) {
                return Err("a source has 1 to 200 bytes and no control characters");
            }
            if name.is_empty() || keys.iter().any(|key| key.name == name) {
                return Err("every key has a name of its own");
            }
            if secret.len() < SECRET_SIGNS_MIN {
                return Err("a secret has at least 16 signs");
            }
            let scopes: Option<Vec<Scope>> = scopes.split('+').map(Scope::of_name).collect();
            let scopes =
                scopes.ok_or("the scopes of a key are read, usage and admin, with + between")?;
            let secret = blake3::hash(secret.as_bytes());
            let source = source.map(str::to_owned);
            keys.push(Key { name: name.to_owned(), secret, scopes, source });
        }
        if keys.len() > KEYS_MAX {
            return Err("there are more than 10000 keys");
        }
        Ok(Self(keys))
    }

    /// The keys that may send usage, for [`logmill_meter::Meter::sync_key_sources`].
    pub(crate) fn senders(&self) -> Vec<ConfiguredKey> {
        let senders = self.0.iter().filter(|key| key.allows(Scope::Usage));
        let configured = senders.map(|key| ConfiguredKey {
            name: key.name.clone(),
            fingerprint: key.fingerprint(),
            source: key.source.clone(),
        });
        configured.collect()
    }

    /// Whether there are none, so that everybody may ask.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these headers may do what needs a scope; gives the name of its key.
    pub(crate) fn check(&self, headers: &HeaderMap, scope: Scope) -> Result<Option<&str>, Refused> {
        if self.is_empty() {
            return if is_foreign(headers) { Err(Refused::Foreign) } else { Ok(None) };
        }
        let given = secret_of(headers).ok_or(Refused::Unknown)?;
        let given = blake3::hash(given);
        // All are compared, so that the time does not tell which one it was.
        let mut found = None;
        for key in &self.0 {
            if key.secret == given {
                found = Some(key);
            }
        }
        let key = found.ok_or(Refused::Unknown)?;
        match key.allows(scope) {
            true => Ok(Some(&key.name)),
            false => Err(Refused::Forbidden),
        }
    }
}

/// Whether a browser asks for a page of another site, or by a name that another site gave this machine.
fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |value: Option<&axum::http::HeaderValue>| {
        value.map(|value| value.to_str().unwrap_or_default().to_owned())
    };
    let by_other_name = text(headers.get(HOST)).is_some_and(|host| !is_local(&host));
    let of_other_origin = text(headers.get(ORIGIN)).is_some_and(|origin| {
        !origin.split_once("://").is_some_and(|(_, authority)| is_local(authority))
    });
    let of_other_site = text(headers.get(SITE_HEADER)).is_some_and(|site| site == "cross-site");
    by_other_name || of_other_origin || of_other_site
}

/// Whether a host, perhaps with a port, is this machine.
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

fn secret_of(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get(KEY_HEADER) {
        return Some(key.as_bytes());
    }
    let (scheme, secret) =
        headers.get(AUTHORIZATION)?.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(secret.trim_ascii())
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
    fn a_key_opens_what_its_scopes_say_and_nothing_else() {
        let keys = "me:0123456789abcdef:read, boss:fedcba9876543210:read+admin, \
            app:aaaaaaaaaaaaaaaa:usage, both:bbbbbbbbbbbbbbbb:usage+read";
        let keys = Keys::parse(keys).expect("four keys");
        for (name, value, scope, expected) in [
            ("authorization", "Bearer 0123456789abcdef", Scope::Read, Ok(Some("me"))),
            ("authorization", "bearer 0123456789abcdef", Scope::Read, Ok(Some("me"))),
            ("x-apikey", "0123456789abcdef", Scope::Read, Ok(Some("me"))),
            ("x-apikey", "0123456789abcdef", Scope::Admin, Err(Refused::Forbidden)),
            ("x-apikey", "0123456789abcdef", Scope::Usage, Err(Refused::Forbidden)),
            ("x-apikey", "fedcba9876543210", Scope::Admin, Ok(Some("boss"))),
            ("x-apikey", "fedcba9876543210", Scope::Usage, Ok(Some("boss"))),
            ("x-apikey", "aaaaaaaaaaaaaaaa", Scope::Usage, Ok(Some("app"))),
            ("x-apikey", "aaaaaaaaaaaaaaaa", Scope::Read, Err(Refused::Forbidden)),
            ("x-apikey", "bbbbbbbbbbbbbbbb", Scope::Usage, Ok(Some("both"))),
            ("x-apikey", "bbbbbbbbbbbbbbbb", Scope::Read, Ok(Some("both"))),
            ("x-apikey", "bbbbbbbbbbbbbbbb", Scope::Admin, Err(Refused::Forbidden)),
            ("x-apikey", "0123456789abcde", Scope::Read, Err(Refused::Unknown)),
            ("x-apikey", "", Scope::Read, Err(Refused::Unknown)),
            ("authorization", "Basic 0123456789abcdef", Scope::Read, Err(Refused::Unknown)),
            ("authorization", "Bearer", Scope::Read, Err(Refused::Unknown)),
            ("cookie", "0123456789abcdef", Scope::Read, Err(Refused::Unknown)),
        ] {
            assert_eq!(keys.check(&headers(name, value), scope), expected, "{name}: {value}");
        }
        assert!(Keys::default().check(&HeaderMap::new(), Scope::Admin).is_ok(), "no keys: open");
        assert!(!format!("{keys:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn keys_that_are_not_keys_are_refused() {
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
            let expected = if foreign { Err(Refused::Foreign) } else { Ok(None) };
            assert_eq!(none.check(&given, Scope::Admin), expected, "{name}: {value}");
            // With keys it is the key that counts.
            assert_eq!(keys.check(&given, Scope::Read), Err(Refused::Unknown), "{name}: {value}");
        }
    }
}
