//! Signatures of documents: Ed25519 over the canonical form, with a key id.
//!
//! Guarantees: a signature covers every value of a document; a private key is never printed. Leaves to others: where
//! keys are kept, published and retired.

use std::fmt;

use alloy_primitives::hex;
use ed25519_dalek::Signer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::canonical::canonical_json;
use crate::error::{Error, Result};

const ALGORITHM: &str = "Ed25519";
/// Bytes of the hash of a public key that are its id.
const KEY_ID_BYTES: usize = 8;

/// A private key. Its text form is its seed as 64 hexadecimal digits.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(ed25519_dalek::VerifyingKey);

/// A signature as bills carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentSignature {
    /// Always `Ed25519`.
    pub algorithm: String,
    /// Id of the public key.
    pub kid: String,
    /// 64 bytes, hexadecimal.
    pub value: String,
}

impl SigningKey {
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self> {
        let seed = hex::decode_to_array::<_, 32>(text.trim());
        let seed = seed
            .map_err(|_| Error::unreadable("a signing key", "it must be 64 hexadecimal digits"))?;
        Ok(Self::from_seed(&seed))
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub fn sign(&self, document: &Value) -> Result<DocumentSignature> {
        let signature = self.0.sign(&canonical_json(document)?);
        Ok(DocumentSignature {
            algorithm: ALGORITHM.to_owned(),
            kid: self.public().id(),
            value: hex::encode(signature.to_bytes()),
        })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public().id())
    }
}

impl PublicKey {
    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::unreadable("a public key", why);
        let bytes = hex::decode_to_array::<_, 32>(text.trim());
        let bytes = bytes.map_err(|_| wrong("it must be 64 hexadecimal digits"))?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(&bytes);
        Ok(Self(key.map_err(|_| wrong("it is not a point of the curve"))?))
    }

    /// The first bytes of its SHA-256, hexadecimal.
    pub fn id(&self) -> String {
        hex::encode(&Sha256::digest(self.0.as_bytes())[..KEY_ID_BYTES])
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        hex::encode(self.0.as_bytes())
    }

    /// Why the signature is not one of this document by this key; `None` if it is.
    pub fn find_fault(&self, document: &Value, signature: &DocumentSignature) -> Option<String> {
        if signature.algorithm != ALGORITHM {
            return Some(format!("the algorithm {:?} is not {ALGORITHM}", signature.algorithm));
        }
        let Ok(bytes) = hex::decode_to_array::<_, 64>(&signature.value) else {
            return Some("the signature is not 128 hexadecimal digits".to_owned());
        };
        let canonical = match canonical_json(document) {
            Ok(canonical) => canonical,
            Err(error) => return Some(error.to_string()),
        };
        let signature = ed25519_dalek::Signature::from_bytes(&bytes);
        let is_valid = self.0.verify_strict(&canonical, &signature).is_ok();
        (!is_valid).then(|| "the document or the signature was changed".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_signature_covers_every_value_and_survives_another_order() {
        let key = SigningKey::from_seed(&[7; 32]);
        let document = json!({"b": [1, 2], "a": "x"});
        let signature = key.sign(&document).expect("signed");
        let reordered = serde_json::from_str("{ \"a\": \"x\",\n\"b\":[1,2]}").expect("JSON");
        assert_eq!(key.public().find_fault(&reordered, &signature), None);
        for changed in
            [json!({"b": [1, 2], "a": "y"}), json!({"b": [2, 1], "a": "x"}), json!({"a": "x"})]
        {
            assert!(key.public().find_fault(&changed, &signature).is_some(), "{changed}");
        }
        let other = SigningKey::from_seed(&[8; 32]).public();
        assert!(other.find_fault(&document, &signature).is_some());
        for algorithm in ["none", "ed25519", ""] {
            let changed =
                DocumentSignature { algorithm: algorithm.to_owned(), ..signature.clone() };
            assert!(key.public().find_fault(&document, &changed).is_some());
        }
    }

    #[test]
    fn keys_have_a_text_form_that_is_not_printed() {
        let key = SigningKey::parse(&"07".repeat(32)).expect("a key");
        assert_eq!(key.public(), SigningKey::from_seed(&[7; 32]).public());
        assert_eq!(PublicKey::parse(&key.public().to_hex()), Ok(key.public()));
        assert!(!format!("{key:?}").contains("0707"));
        for text in ["", "07", &"zz".repeat(32), &"07".repeat(33)] {
            assert!(SigningKey::parse(text).is_err() && PublicKey::parse(text).is_err(), "{text}");
        }
    }
}
