//! Verification of a bill, offline.
//!
//! | check | passes if |
//! |---|---|
//! | `format` | the document has this version's fields, and no others |
//! | `signature` | a trusted key signed the document |
//! | `proof` | header, transaction and receipts are under the block hash of the document |
//! | `statements` | everything in the document that is called proven follows from the proof, and nothing is left out |
//!
//! Guarantees: any changed value of a document fails a check; a bill without a proof has no proven statement. Leaves to
//! others: whether the block is canonical, and which keys are trusted.

use serde::Serialize;
use serde_json::Value;

use crate::document::{Basis, Bill, BillDocument, FORMAT, RULES, VERSION};
use crate::proof::Proof;
use crate::rules;
use crate::signature::PublicKey;

/// The outcome of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verification {
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub outcome: Outcome,
    /// What is wrong, or why nothing was checked.
    pub detail: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    Failed,
    /// There is nothing to check: the bill says that it has no proof.
    Absent,
}

impl Verification {
    /// Checks a bill with the trusted keys.
    pub fn of(bill: &Bill, keys: &[PublicKey]) -> Self {
        let mut checks = Vec::new();
        let document = read(&bill.document);
        checks.push(check("format", document.as_ref().err().cloned()));
        checks.push(check("signature", signature_fault(bill, keys)));
        if let Ok(document) = document {
            checks.extend(proof_checks(&document, &bill.proof));
        }
        Self { checks }
    }

    /// Whether no check failed. A bill without a proof can pass; what it says is attested only.
    pub fn is_valid(&self) -> bool {
        self.checks.iter().all(|check| check.outcome != Outcome::Failed)
    }

    /// Whether the proven part of the bill is there and holds.
    pub fn is_proven(&self) -> bool {
        self.is_valid() && self.checks.iter().all(|check| check.outcome == Outcome::Passed)
    }
}

/// The document of a bill, if it is one of this version.
pub fn read(value: &Value) -> Result<BillDocument, String> {
    let document: BillDocument = BillDocument::deserialize_from(value)?;
    if document.format != FORMAT {
        return Err(format!("the format {:?} is not {FORMAT}", document.format));
    }
    if (document.version, document.rules) != (VERSION, RULES) {
        return Err(format!(
            "version {} with rules {} is not known: this program knows version {VERSION} with rules {RULES}",
            document.version, document.rules
        ));
    }
    Ok(document)
}

impl BillDocument {
    fn deserialize_from(value: &Value) -> Result<Self, String> {
        serde::Deserialize::deserialize(value).map_err(|error: serde_json::Error| error.to_string())
    }
}

fn signature_fault(bill: &Bill, keys: &[PublicKey]) -> Option<String> {
    let kid = &bill.signature.kid;
    match keys.iter().find(|key| key.id() == *kid) {
        Some(key) => key.find_fault(&bill.document, &bill.signature),
        None => Some(format!("the key {kid} is not one of the trusted keys")),
    }
}

fn proof_checks(document: &BillDocument, proof: &Proof) -> Vec<Check> {
    let identity = &document.identity;
    let opened = proof.open(identity.chain_id, identity.block_hash, identity.transaction_index);
    let facts = match opened {
        Err(error) => return vec![check("proof", Some(error.to_string()))],
        Ok(None) => {
            let Proof::None { reason } = proof else { return Vec::new() };
            let absent =
                Check { name: "proof", outcome: Outcome::Absent, detail: Some(reason.clone()) };
            let claims = has_proven(document);
            let fault =
                claims.then(|| "a statement is called proven, but there is no proof".to_owned());
            return vec![absent, check("statements", fault)];
        }
        Ok(Some(evidence)) => evidence.decode(),
    };
    match facts {
        Err(error) => vec![check("proof", Some(error.to_string()))],
        Ok(facts) => {
            let expected = rules::document(&facts, Basis::Proven);
            vec![check("proof", None), check("statements", difference(document, &expected))]
        }
    }
}

/// Whether anything in the document is called proven.
fn has_proven(document: &BillDocument) -> bool {
    let parties = document.parties.iter().map(|party| party.basis);
    let lines = document.lines.iter().map(|line| line.basis);
    let totals = document.totals.iter().map(|total| total.basis);
    let parts = document.network_fee.parts.iter().map(|part| part.basis);
    let all = [document.identity.basis, document.network_fee.basis];
    all.into_iter()
        .chain(parties)
        .chain(lines)
        .chain(totals)
        .chain(parts)
        .any(|basis| basis == Basis::Proven)
}

/// The first part of the document that does not follow from the proof.
fn difference(document: &BillDocument, expected: &BillDocument) -> Option<String> {
    let differ = |what: &str| Some(format!("{what} does not follow from the proof"));
    if document.identity != expected.identity {
        return differ("the identity");
    }
    if document.parties != expected.parties {
        return differ("the list of parties");
    }
    if document.lines.len() != expected.lines.len() {
        let (got, all) = (document.lines.len(), expected.lines.len());
        return Some(format!("the document has {got} lines, but the proof shows {all}"));
    }
    for (at, (line, expected)) in document.lines.iter().zip(&expected.lines).enumerate() {
        if line != expected {
            return differ(&format!("line {}", at + 1));
        }
    }
    if document.network_fee != expected.network_fee {
        return differ("the network fee");
    }
    (document.totals != expected.totals)
        .then(|| "the totals do not follow from the lines".to_owned())
}

fn check(name: &'static str, fault: Option<String>) -> Check {
    let outcome = if fault.is_none() { Outcome::Passed } else { Outcome::Failed };
    Check { name, outcome, detail: fault }
}
