//! Secrets of endpoints, and signatures made with them.
//!
//! Two signatures go with every request, over the same body:
//!
//! | header | signed text | key |
//! |---|---|---|
//! | `webhook-signature: v1,<base64> …` | `id.timestamp.body` | decoded base64 after `whsec_`, or the secret's bytes |
//! | `x-webhook-signature: v1=<hex>` | `timestamp.body` | the secret as it is written |
//!
//! The first lists a signature by every valid secret, newest first, so that a rotation breaks no receiver. The second
//! has room for one: that of the newest.
//!
//! Guarantees: only [`Secret::expose`] reveals a secret. Leaves to others: how long a secret is valid.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use logmill_io::{Entropy, Timestamp};
use sha2::Sha256;

use crate::error::{Error, Result};

/// Prefix of a secret in the format of Standard Webhooks.
const PREFIX: &str = "whsec_";
/// Random bytes of a generated secret.
const KEY_BYTES: usize = 32;
/// Bounds for secrets in the format of Standard Webhooks.
const KEY_BYTES_MIN: usize = 24;
const KEY_BYTES_MAX: usize = 64;
/// Bounds for any other secret.
const TEXT_BYTES_MIN: usize = 16;
const TEXT_BYTES_MAX: usize = 256;

/// A secret shared with an endpoint. It cannot be printed by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Generates a secret in the format of Standard Webhooks.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut key = [0; KEY_BYTES];
        entropy.fill(&mut key);
        Self(format!("{PREFIX}{}", STANDARD.encode(key)))
    }

    /// Parses a secret chosen by the user: `whsec_` and 24 to 64 bytes in base64, or any other text of 16 to 256 bytes.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(key) = decoded(text) {
            if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()) {
                return Err(Error::invalid(format!(
                    "a secret that begins with {PREFIX} must encode {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes"
                )));
            }
        } else if !(TEXT_BYTES_MIN..=TEXT_BYTES_MAX).contains(&text.len()) {
            return Err(Error::invalid(format!(
                "a secret needs {TEXT_BYTES_MIN} to {TEXT_BYTES_MAX} bytes, not {}",
                text.len()
            )));
        } else if let Some(position) = text.chars().position(char::is_control) {
            return Err(Error::invalid(format!(
                "a secret cannot contain control characters: character {} is one",
                position + 1
            )));
        }
        Ok(Self(text.to_owned()))
    }

    /// A secret from the database, not checked again.
    pub(super) fn stored(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The secret itself; only for the one response that shows it to its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.strip_prefix(PREFIX)?).ok()
}

/// A secret prepared for signing.
#[derive(Clone)]
pub(super) struct Signer {
    standard: Hmac<Sha256>,
    plain: Hmac<Sha256>,
    /// From this time on it no longer signs.
    valid_until: Option<Timestamp>,
}

impl Signer {
    pub(super) fn new(secret: &Secret, valid_until: Option<Timestamp>) -> Result<Self> {
        let text = secret.expose().as_bytes();
        let standard = decoded(secret.expose()).map_or_else(|| keyed(text), |key| keyed(&key))?;
        Ok(Self { standard, plain: keyed(text)?, valid_until })
    }

    fn is_valid(&self, at: Timestamp) -> bool {
        self.valid_until.is_none_or(|until| at < until)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("valid_until", &self.valid_until).finish_non_exhaustive()
    }
}

fn keyed(key: &[u8]) -> Result<Hmac<Sha256>> {
    Hmac::new_from_slice(key).map_err(|_| Error::corrupt("a secret cannot be used for signing"))
}

/// Values of the signature headers of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignatureHeaders {
    /// Seconds since 1970.
    pub(super) timestamp: String,
    /// `v1,<base64>` for every valid secret, newest first.
    pub(super) standard: String,
    /// `v1=<hex>` for the newest.
    pub(super) plain: String,
}

/// Signs a body with the secrets that are valid at a time, given newest first.
pub(super) fn sign(signers: &[Signer], id: &str, at: Timestamp, body: &[u8]) -> SignatureHeaders {
    let timestamp = at.millis().div_euclid(1_000).to_string();
    let mut standard = String::new();
    let mut plain = String::new();
    for signer in signers.iter().filter(|signer| signer.is_valid(at)) {
        let mut mac = signer.standard.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        let space = if standard.is_empty() { "" } else { " " };
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        standard.push_str(&format!("{space}v1,{signature}"));
        if plain.is_empty() {
            let mut mac = signer.plain.clone();
            for part in [timestamp.as_bytes(), b".", body] {
                mac.update(part);
            }
            plain = format!("v1={}", hex(&mac.finalize().into_bytes()));
        }
    }
    SignatureHeaders { timestamp, standard, plain }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use logmill_io::SeededEntropy;

    use super::*;

    const AT: Timestamp = Timestamp(1_614_265_330_123);

    fn signer(secret: &str) -> Signer {
        Signer::new(&Secret::parse(secret).expect("a secret"), None).expect("it signs")
    }

    /// The test vector that the libraries of Standard Webhooks share.
    #[test]
    fn the_test_vector_of_standard_webhooks_matches() {
        let signer = signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signed = sign(&[signer], id, AT, br#"{"test": 2432232314}"#);
        assert_eq!(signed.timestamp, "1614265330");
        assert_eq!(signed.standard, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    /// Computed by `printf '1614265330.{}' | openssl dgst -sha256 -hmac your_webhook_secret`.
    #[test]
    fn the_plain_signature_takes_the_secret_as_it_is_written() {
        let signed = sign(&[signer("your_webhook_secret")], "m", AT, b"{}");
        assert_eq!(signed.plain, PLAIN);
    }

    const PLAIN: &str = "v1=b321ae60d50f821a69aafc11b18cad6d76e64b793a68cc03e666534810a5323f";

    #[test]
    fn every_valid_secret_signs_and_the_newest_first() {
        let (new, old) = (signer("new secret of sixteen"), signer("old secret of sixteen"));
        let ending = Signer { valid_until: Some(Timestamp(AT.0 + 1)), ..old.clone() };
        let ended = Signer { valid_until: Some(AT), ..old.clone() };
        let alone = sign(std::slice::from_ref(&new), "m", AT, b"{}");
        assert_eq!(sign(&[new.clone(), ended], "m", AT, b"{}"), alone);
        let both = sign(&[new, ending], "m", AT, b"{}");
        let old = sign(&[old], "m", AT, b"{}");
        assert_eq!(both.standard, format!("{} {}", alone.standard, old.standard));
        assert_eq!(both.plain, alone.plain);
    }

    #[test]
    fn secrets_are_of_one_form_or_the_other() {
        let of_bytes = |length: usize| format!("{PREFIX}{}", STANDARD.encode(vec![7; length]));
        for fine in [of_bytes(24), of_bytes(64), "your_webhook_secret".to_owned(), "x".repeat(256)]
        {
            Secret::parse(&fine).expect("a secret");
        }
        let control = "0123456789abcdef\n".to_owned();
        for wrong in [of_bytes(23), of_bytes(65), "short".to_owned(), "x".repeat(257), control] {
            let error = Secret::parse(&wrong).expect_err("no secret").to_string();
            assert!(!error.contains(wrong.trim()), "{error}");
        }
    }

    #[test]
    fn secrets_that_we_make_differ_and_are_never_printed() {
        let entropy = SeededEntropy::shared(1);
        let (one, other) = (Secret::generate(&*entropy), Secret::generate(&*entropy));
        assert_ne!(one, other);
        Secret::parse(one.expose()).expect("it has the form");
        let printed = format!("{one:?} {:?}", Signer::new(&one, Some(AT)).expect("it signs"));
        assert!(!printed.contains(&one.expose()[PREFIX.len()..]), "{printed}");
    }
}
