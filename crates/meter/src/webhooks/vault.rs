//! Secrets at rest: encrypted with a key that is not in the database.
//!
//! | column of `webhook_secret` | encrypted | written before encryption existed, or without a key |
//! |---|---|---|
//! | `secret` | base64 of nonce (24 bytes) and XChaCha20-Poly1305 ciphertext | the secret |
//! | `key_id` | id of the key | `NULL` |
//!
//! The endpoint's id and the secret's number are associated data: a ciphertext that is moved to another row is refused.
//! If there are several keys, the first encrypts and all decrypt, so that a key can be replaced without downtime:
//! `docs/runbooks/webhook-secret-keys.md`.
//!
//! Guarantees: nothing here prints a key or a secret. The start of a server encrypts every plain secret, and disables
//! an endpoint whose secret cannot be decrypted, with the reason. If its key is missing, its messages are held, and
//! sent once a server with the key starts or the secret is rotated. Leaves to others: where keys come from.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use logmill_io::sql::Execute;
use logmill_io::{Entropy, Row, Tx, params};
use logmill_work::Queue;

use super::Webhooks;
use super::endpoint::{KEY_MISSING, disable_row, is_key_missing, raise_version};
use super::secret::Secret;
use super::tables::MIGRATIONS;
use crate::error::{Error, Result};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// Derivation context of a key's id, which reveals nothing about the key.
const KEY_ID_CONTEXT: &str = "logmill 2026 id of a key of webhook secrets";
/// Prefix of the associated data.
const PURPOSE: &[u8] = b"logmill webhook secret 1";

/// Keys that encrypt secrets. They cannot be printed by accident.
#[derive(Clone, Default)]
pub struct SecretKeys {
    keys: Arc<[SecretKey]>,
    /// Whether storing a secret without a key is an error.
    needed: bool,
}

struct SecretKey {
    id: String,
    cipher: XChaCha20Poly1305,
}

impl fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

impl SecretKeys {
    /// Parses keys: 32 bytes each, in base64 or hexadecimal, separated by commas or white space; `#` starts a comment
    /// until the end of the line. The first key encrypts.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words =
            lines.flat_map(|line| line.split(|sign: char| sign == ',' || sign.is_whitespace()));
        let mut keys: Vec<SecretKey> = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let key = SecretKey::parse(word)?;
            if keys.iter().all(|known| known.id != key.id) {
                keys.push(key);
            }
        }
        Ok(Self { keys: keys.into(), needed: false })
    }

    /// No keys although they are required: no secret can be stored.
    pub fn missing() -> Self {
        Self { keys: Arc::default(), needed: true }
    }

    /// Generates a key, in the format that [`SecretKeys::parse`] reads.
    pub fn generate(entropy: &dyn Entropy) -> String {
        let mut key = [0; KEY_BYTES];
        entropy.fill(&mut key);
        STANDARD.encode(key)
    }

    /// These keys, followed by the others.
    #[must_use]
    pub fn followed_by(&self, others: &Self) -> Self {
        let mut keys: Vec<SecretKey> = Vec::new();
        for key in self.keys.iter().chain(others.keys.iter()) {
            if keys.iter().all(|known| known.id != key.id) {
                keys.push(SecretKey { id: key.id.clone(), cipher: key.cipher.clone() });
            }
        }
        Self { keys: keys.into(), needed: false }
    }

    /// Whether there are no keys although they are required.
    pub(super) fn are_missing(&self) -> bool {
        self.needed && self.keys.is_empty()
    }

    /// Whether there are no keys, so that nothing is encrypted.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The id of the key that encrypts.
    fn newest_id(&self) -> Option<&str> {
        self.keys.first().map(|key| key.id.as_str())
    }

    /// Encrypts a secret; returns the stored text, and the id of the key.
    fn seal(
        &self,
        secret: &Secret,
        place: &SecretAddress<'_>,
        entropy: &dyn Entropy,
    ) -> Result<(String, Option<String>)> {
        let Some(key) = self.keys.first() else {
            if self.needed {
                return Err(Error::invalid(
                    "no key to encrypt webhook secrets with: restore secrets.key, or \
                     set secrets.keys or secrets.key_file, and restart; `logmill secrets generate` \
                     makes a key",
                ));
            }
            return Ok((secret.expose().to_owned(), None));
        };
        let mut nonce = [0; NONCE_BYTES];
        entropy.fill(&mut nonce);
        let payload = Payload { msg: secret.expose().as_bytes(), aad: &place.associated() };
        let sealed = key.cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| Error::corrupt("a secret cannot be encrypted"))?;
        let bytes = [nonce.as_slice(), &sealed].concat();
        Ok((STANDARD.encode(bytes), Some(key.id.clone())))
    }

    /// Decrypts the secret of a row.
    fn open(
        &self,
        stored: &str,
        key_id: Option<&str>,
        place: &SecretAddress<'_>,
    ) -> Result<Secret, SecretError> {
        let Some(id) = key_id else { return Ok(Secret::stored(stored)) };
        let key = self.keys.iter().find(|key| key.id == id);
        let key = key.ok_or_else(|| SecretError::KeyMissing(id.to_owned()))?;
        let bytes = STANDARD.decode(stored).map_err(|_| SecretError::Damaged)?;
        let (nonce, sealed) =
            bytes.split_first_chunk::<NONCE_BYTES>().ok_or(SecretError::Damaged)?;
        let payload = Payload { msg: sealed, aad: &place.associated() };
        let text = key.cipher.decrypt(&XNonce::from(*nonce), payload);
        let text = text.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.map(|text| Secret::stored(&text)).ok_or(SecretError::Damaged)
    }
}

impl SecretKey {
    fn parse(word: &str) -> Result<Self> {
        let bytes = from_hex(word).or_else(|| STANDARD.decode(word).ok());
        let bytes = bytes.filter(|bytes| bytes.len() == KEY_BYTES).ok_or_else(|| {
            Error::invalid("a key must have 32 bytes: 44 characters of base64 or 64 of hexadecimal")
        })?;
        let cipher = XChaCha20Poly1305::new_from_slice(&bytes);
        let cipher = cipher.map_err(|_| Error::invalid("a key must have 32 bytes"))?;
        let id = blake3::derive_key(KEY_ID_CONTEXT, &bytes);
        Ok(Self { id: id[..4].iter().map(|byte| format!("{byte:02x}")).collect(), cipher })
    }
}

fn from_hex(word: &str) -> Option<Vec<u8>> {
    if word.len() != 2 * KEY_BYTES || !word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = (0..KEY_BYTES).map(|at| u8::from_str_radix(&word[2 * at..2 * at + 2], 16).ok());
    pairs.collect()
}

/// Identifies a secret.
struct SecretAddress<'a> {
    endpoint: &'a str,
    number: i64,
}

impl SecretAddress<'_> {
    fn associated(&self) -> Vec<u8> {
        // The id comes last and is the only part of variable length, so the encoding is unambiguous.
        [PURPOSE, &self.number.to_le_bytes(), self.endpoint.as_bytes()].concat()
    }
}

/// Why a stored secret cannot be read.
#[derive(Debug, PartialEq, Eq)]
enum SecretError {
    /// It is encrypted with the key that has this id.
    KeyMissing(String),
    /// The key is present, and the ciphertext fails authentication.
    Damaged,
}

impl SecretError {
    fn reason(&self) -> String {
        let more = "see docs/runbooks/webhook-secret-keys.md";
        match self {
            Self::KeyMissing(id) => format!("{KEY_MISSING} ({id}): {more}"),
            Self::Damaged => format!("its stored secret is damaged: {more}"),
        }
    }
}

/// The columns that [`SecretKeys::open_row`] reads, of a secret `s` and its endpoint `e`.
pub(super) const COLUMNS: &str = "e.id, s.number, s.secret, s.key_id";

impl SecretKeys {
    /// The secret of a row of [`COLUMNS`]; `None` if it cannot be decrypted.
    pub(super) fn open_row(&self, row: &Row) -> Result<Option<Secret>> {
        Ok(self.read(row)?.ok())
    }

    fn read(&self, row: &Row) -> Result<Result<Secret, SecretError>> {
        let place = SecretAddress { endpoint: row.text(0)?, number: row.int(1)? };
        Ok(self.open(row.text(2)?, row.opt_text(3)?, &place))
    }
}

/// Counts of [`Webhooks::rekey`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RekeyResult {
    /// Secrets that are now encrypted with the first key, and were not before.
    pub encrypted: u64,
    /// Secrets that already were.
    pub kept: u64,
    /// Secrets that no key decrypts.
    pub unreadable: u64,
}

impl Webhooks {
    /// Encrypts a secret and inserts it as the secret of an endpoint with this number.
    pub(super) async fn store_secret(
        &self,
        tx: &Tx,
        seq: i64,
        number: i64,
        secret: &Secret,
    ) -> Result<()> {
        let found = tx.execute("SELECT id FROM webhook_endpoint WHERE seq = $1", params![seq]);
        let found = found.await?;
        let place = SecretAddress { endpoint: found.row()?.text(0)?, number };
        let (text, key) = self.keys.seal(secret, &place, &**self.sql().entropy())?;
        let insert = "INSERT INTO webhook_secret (endpoint_seq, number, secret, key_id, created_at)
                      VALUES ($1, $2, $3, $4, now_ms())";
        tx.execute(insert, params![seq, number, text, key]).await?;
        Ok(())
    }

    /// The newest secret of an endpoint, and its number; `None` if it cannot be decrypted.
    pub(super) async fn newest_secret_in(
        &self,
        tx: &Tx,
        seq: i64,
    ) -> Result<Option<(i64, Secret)>> {
        let text = format!(
            "SELECT {COLUMNS} FROM webhook_secret s JOIN webhook_endpoint e ON e.seq = s.endpoint_seq
             WHERE e.seq = $1 AND s.valid_until IS NULL"
        );
        let found = tx.execute(&text, params![seq]).await?;
        let Some(row) = found.rows.first() else { return Ok(None) };
        let number = row.int(1)?;
        Ok(self.keys.open_row(row)?.map(|secret| (number, secret)))
    }

    pub async fn rekey(&self) -> Result<RekeyResult> {
        if self.keys.is_empty() {
            return Err(Error::invalid("there is no key to encrypt secrets with"));
        }
        self.sql().write(|tx| async move { self.seal_all(&tx, true).await }).await
    }

    /// The ids of the keys that encrypted the secrets of a database; empty if no secret is encrypted.
    pub async fn keys_in_use(queue: &Queue) -> Result<BTreeSet<String>> {
        queue.sql().migrate(&MIGRATIONS).await?;
        let text = "SELECT DISTINCT key_id FROM webhook_secret WHERE key_id IS NOT NULL";
        let found = queue.sql().query(text, params![]).await?;
        found.rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    }

    /// Encrypts plain secrets, disables endpoints without a readable secret, and enables those whose key is back. Only
    /// the start of a server may call this, because a command may run without the server's keys.
    pub async fn secure_secrets(&self) -> Result<()> {
        if !self.keys.is_empty() {
            let sealed = self.sql().write(|tx| async move { self.seal_all(&tx, false).await });
            let sealed = sealed.await?;
            if sealed.encrypted > 0 {
                tracing::info!(secrets = sealed.encrypted, "webhook secrets were encrypted");
                // An update leaves the plain text in free pages and in the log.
                if let Err(error) = self.sql().erase_deleted().await {
                    let error = error.chain();
                    tracing::warn!(
                        error,
                        "plain secrets may be left in the file: run VACUUM on it"
                    );
                }
            }
        }
        let back = self.sql().write(|tx| async move { self.match_keys(&tx).await }).await?;
        for endpoint in back {
            while self.retry_now(&endpoint).await?.more {}
        }
        Ok(())
    }

    /// Encrypts plain secrets; with `all`, also those encrypted with other keys.
    async fn seal_all(&self, tx: &Tx, all: bool) -> Result<RekeyResult> {
        let mut done = RekeyResult::default();
        let newest = self.keys.newest_id();
        let text = format!(
            "SELECT {COLUMNS}, s.endpoint_seq FROM webhook_secret s
             JOIN webhook_endpoint e ON e.seq = s.endpoint_seq"
        );
        let found = tx.execute(&text, params![]).await?;
        let stale =
            |row: &Row| Ok::<_, Error>(row.is_null(3) || (all && row.opt_text(3)? != newest));
        if found.rows.iter().map(stale).collect::<Result<Vec<_>>>()?.contains(&true) {
            raise_version(tx).await?;
        }
        for row in &found.rows {
            if !stale(row)? {
                done.kept += 1;
                continue;
            }
            let Ok(secret) = self.keys.read(row)? else {
                done.unreadable += 1;
                continue;
            };
            let place = SecretAddress { endpoint: row.text(0)?, number: row.int(1)? };
            let (text, key) = self.keys.seal(&secret, &place, &**self.sql().entropy())?;
            let update = "UPDATE webhook_secret SET secret = $3, key_id = $4
                          WHERE endpoint_seq = $1 AND number = $2";
            tx.execute(update, params![row.int(4)?, place.number, text, key]).await?;
            done.encrypted += 1;
        }
        Ok(done)
    }

    /// Returns the ids of the endpoints that were enabled. Endpoints of the config get their secrets from there, unless
    /// there is no key to store them with.
    async fn match_keys(&self, tx: &Tx) -> Result<Vec<String>> {
        let text = format!(
            "SELECT {COLUMNS}, e.seq, e.enabled, e.disabled_why, e.configured FROM webhook_secret s
             JOIN webhook_endpoint e ON e.seq = s.endpoint_seq
             WHERE s.valid_until IS NULL AND e.deleted_at IS NULL"
        );
        let mut back = Vec::new();
        for row in &tx.execute(&text, params![]).await?.rows {
            let (seq, enabled) = (row.int(4)?, row.int(5)? != 0);
            let for_key = is_key_missing(row.opt_text(6)?);
            let is_given = row.int(7)? != 0 && !self.keys.are_missing();
            match self.keys.read(row)? {
                Err(unreadable) if enabled && !is_given => {
                    raise_version(tx).await?;
                    let why = unreadable.reason();
                    disable_row(tx, seq, &why).await?;
                    tracing::error!(endpoint = row.text(0)?, why, "webhook endpoint disabled");
                }
                Ok(_) if !enabled && for_key => {
                    raise_version(tx).await?;
                    self.enable_in(tx, seq).await?;
                    tracing::info!(
                        endpoint = row.text(0)?,
                        "webhook endpoint enabled: its key is available again"
                    );
                    back.push(row.text(0)?.to_owned());
                }
                _ => {}
            }
        }
        Ok(back)
    }
}

#[cfg(test)]
mod tests {
    use logmill_io::SeededEntropy;

    use super::*;

    fn keys(text: &str) -> SecretKeys {
        SecretKeys::parse(text).expect("keys")
    }

    const PLACE: SecretAddress<'_> = SecretAddress { endpoint: "ep_1", number: 3 };

    #[test]
    fn a_secret_is_decrypted_only_with_its_key_and_in_its_row() {
        let entropy = SeededEntropy::shared(1);
        let (old, new) = (SecretKeys::generate(&*entropy), SecretKeys::generate(&*entropy));
        let secret = Secret::parse("a secret of an endpoint").expect("a secret");
        let sealed = keys(&old).seal(&secret, &PLACE, &*entropy).expect("sealed");
        let (text, id) = (sealed.0, sealed.1.expect("a key"));
        assert!(!text.contains("endpoint"), "{text}");
        assert_eq!(keys(&old).newest_id(), Some(id.as_str()));
        let both = keys(&format!("{new}, {old}"));
        for some in [&keys(&old), &both] {
            assert_eq!(some.open(&text, Some(&id), &PLACE), Ok(secret.clone()));
        }
        assert_eq!(both.newest_id(), keys(&new).newest_id());
        let missing = keys(&new).open(&text, Some(&id), &PLACE);
        assert_eq!(missing, Err(SecretError::KeyMissing(id.clone())));
        for place in
            [SecretAddress { endpoint: "ep_2", ..PLACE }, SecretAddress { number: 4, ..PLACE }]
        {
            assert_eq!(both.open(&text, Some(&id), &place), Err(SecretError::Damaged));
        }
        let mut damaged = text.into_bytes();
        damaged[40] ^= 1;
        let damaged = String::from_utf8(damaged).expect("text");
        assert_eq!(both.open(&damaged, Some(&id), &PLACE), Err(SecretError::Damaged));
        assert_eq!(keys("").open("plain", None, &PLACE), Ok(Secret::stored("plain")));
    }

    #[test]
    fn keys_are_written_in_base64_or_hexadecimal_and_are_never_printed() {
        let hex = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
        let base64 = "ABEiM0RVZneImaq7zN3u/wARIjNEVWZ3iJmqu8zd7v8=";
        assert_eq!(keys(hex).newest_id(), keys(base64).newest_id());
        let file = format!("# the new one\n{base64}\n\n{hex} # the same\n");
        assert_eq!(keys(&file).keys.len(), 1);
        assert!(keys(" , \n# nothing\n").is_empty());
        for wrong in ["short", &hex[2..], "not a key at all"] {
            let error = SecretKeys::parse(wrong).expect_err("no key").to_string();
            assert!(error.contains("32 bytes") && !error.contains(wrong), "{error}");
        }
        let printed = format!("{:?}", keys(hex));
        assert!(!printed.contains("112233") && !printed.contains("ABEiM0"), "{printed}");
    }
}
