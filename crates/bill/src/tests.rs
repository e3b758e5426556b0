//! Whole bills: made, signed, verified, and changed in every place.

use alloy_primitives::{Address, B256, Bytes, U256, U512};
use logmill_chain::sim::{Shape, SimChain};
use logmill_chain::{Block, BlockRef, Log, VerifyLevel};
use serde_json::{Value, json};

use crate::document::{Amount, Basis, Bill, BillDocument, FeeKind, LineKind, Status};
use crate::evidence::{Evidence, TransactionFacts};
use crate::proof::Proof;
use crate::rules;
use crate::signature::SigningKey;
use crate::verify::{Outcome, Verification};
use crate::view::{Direction, View};

/// The id of simulated chains.
const CHAIN: u64 = 1_337;

fn key() -> SigningKey {
    SigningKey::from_seed(&[3; 32])
}

fn block() -> Block {
    let chain = SimChain::new(11, Shape::mainnet());
    chain.grow(1);
    let mut block = Block::clone(&chain.block(1).expect("grown"));
    logmill_chain::verify(&mut block, VerifyLevel::Full).expect("it is whole");
    block
}

fn bill(block: &Block, index: usize) -> Bill {
    crate::bill_of_block(CHAIN, block, index, &key()).expect("a bill")
}

fn document(bill: &Bill) -> BillDocument {
    crate::verify::read(&bill.document).expect("a document")
}

/// Every place in a JSON value, as a pointer.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), out));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| places(value, &format!("{at}/{index}"), out));
        }
        _ => out.push(at.to_owned()),
    }
}

fn changed(value: &Value) -> Value {
    match value {
        Value::Null => json!(1),
        Value::Bool(value) => json!(!value),
        Value::Number(number) => json!(number.as_u64().expect("an integer") + 1),
        Value::String(text) if text.ends_with('1') => {
            json!(format!("{}2", &text[..text.len() - 1]))
        }
        Value::String(text) if text.is_empty() => json!("x"),
        Value::String(text) => json!(format!("{}1", &text[..text.len() - 1])),
        other => panic!("{other} is not a leaf"),
    }
}

#[test]
fn every_transaction_of_a_block_has_a_bill_that_verifies() {
    let block = block();
    for index in 0..block.transactions.len() {
        let bill = bill(&block, index);
        let verification = Verification::of(&bill, &[key().public()]);
        assert!(verification.is_proven(), "{index}: {verification:?}");
        let document = document(&bill);
        assert_eq!(document.identity.basis, Basis::Proven);
        assert_eq!(document.identity.transaction_hash, block.transactions[index].hash);
    }
}

#[test]
fn changing_any_value_of_a_bill_is_caught_even_if_it_is_signed_again() {
    let block = block();
    let index = (0..block.receipts.len()).max_by_key(|at| block.receipts[*at].logs.len());
    let bill = bill(&block, index.expect("some"));
    let mut all = Vec::new();
    places(&bill.document, "", &mut all);
    assert!(all.len() > 60, "{}", all.len());
    for place in all {
        let mut document = bill.document.clone();
        let value = document.pointer_mut(&place).expect("it is there");
        *value = changed(value);
        let tampered = Bill { document: document.clone(), ..bill.clone() };
        let verification = Verification::of(&tampered, &[key().public()]);
        assert!(!verification.is_valid(), "{place}");
        // A signer who lies about what is proven is caught too.
        let signature = key().sign(&document).expect("signed");
        let verification = Verification::of(&Bill { signature, ..tampered }, &[key().public()]);
        assert!(!verification.is_valid(), "{place}: {document}");
    }
}

#[test]
fn a_line_that_is_left_out_or_added_is_caught() {
    let block = block();
    let index = (0..block.receipts.len()).max_by_key(|at| block.receipts[*at].logs.len());
    let bill = bill(&block, index.expect("some"));
    let whole = document(&bill);
    assert!(whole.lines.len() > 1, "{whole:?}");
    let sign = |document: &BillDocument| {
        let document = serde_json::to_value(document).expect("JSON");
        let signature = key().sign(&document).expect("signed");
        Bill { document, signature, proof: bill.proof.clone() }
    };
    let mut shorter = whole.clone();
    shorter.lines.pop();
    let mut longer = whole.clone();
    longer.lines.push(whole.lines[0].clone());
    let mut attested = whole.clone();
    attested.lines[0].basis = Basis::Attested;
    for document in [shorter, longer, attested] {
        assert!(!Verification::of(&sign(&document), &[key().public()]).is_valid());
    }
    assert!(Verification::of(&sign(&whole), &[key().public()]).is_proven());
    assert!(!Verification::of(&sign(&whole), &[]).is_valid(), "no key is trusted");
}

#[test]
fn a_bill_without_a_proof_says_so_and_claims_nothing() {
    let mut block = block();
    block.verified = VerifyLevel::Bloom;
    let bill = bill(&block, 0);
    let verification = Verification::of(&bill, &[key().public()]);
    assert!(verification.is_valid() && !verification.is_proven(), "{verification:?}");
    assert!(verification.checks.iter().any(|check| check.outcome == Outcome::Absent));
    let mut claims = document(&bill);
    claims.lines.iter_mut().for_each(|line| line.basis = Basis::Proven);
    claims.identity.basis = Basis::Proven;
    let document = serde_json::to_value(&claims).expect("JSON");
    let signature = key().sign(&document).expect("signed");
    let lying = Bill { document, signature, proof: bill.proof };
    assert!(!Verification::of(&lying, &[key().public()]).is_valid());
}

/// Facts of a transaction of 21 000 gas and more, with these logs.
fn facts(logs: Vec<Log>) -> TransactionFacts {
    TransactionFacts {
        chain_id: 1,
        block: BlockRef::default(),
        index: 0,
        hash: B256::ZERO,
        tx_type: Some(2),
        nonce: Some(1),
        from: Some(Address::repeat_byte(1)),
        to: Some(Address::repeat_byte(2)),
        created: None,
        authorities: Vec::new(),
        value: U256::from(5),
        input: Bytes::new(),
        succeeded: Some(true),
        gas_limit: Some(30_000),
        gas_used: Some(21_000),
        gas_price: Some(10),
        base_fee: Some(7),
        blob_gas_used: None,
        blob_gas_price: None,
        l1_fee: None,
        logs,
    }
}

#[test]
fn a_reverted_transaction_pays_its_fee_and_moves_nothing() {
    let logs = vec![Log { address: Address::repeat_byte(9), ..Log::default() }];
    let reverted = TransactionFacts { succeeded: Some(false), ..facts(logs) };
    let document = rules::document(&reverted, Basis::Proven);
    assert_eq!(document.identity.status, Status::Reverted);
    assert!(document.lines.is_empty() && document.totals.is_empty());
    assert_eq!(document.network_fee.total, Some(Amount(U512::from(210_000))));
}

#[test]
fn a_value_is_proven_to_have_moved_only_if_the_transaction_is_known_to_have_succeeded() {
    let silent =
        TransactionFacts { succeeded: None, created: Some(Address::ZERO), ..facts(Vec::new()) };
    let document = rules::document(&silent, Basis::Proven);
    assert_eq!(document.identity.status, Status::Unknown);
    assert_eq!(
        (document.lines[0].basis, document.totals[0].basis),
        (Basis::Attested, Basis::Attested)
    );
    assert_eq!(document.parties[2].basis, Basis::Attested, "the created contract");
    let logs = vec![Log { address: Address::repeat_byte(9), ..Log::default() }];
    let document = rules::document(&TransactionFacts { logs, ..silent }, Basis::Proven);
    assert_eq!(document.lines[0].basis, Basis::Proven, "a failed transaction has no logs");
}

#[test]
fn the_fee_has_its_parts_and_no_total_if_one_is_unknown() {
    let check = |facts: &TransactionFacts, parts: &[(FeeKind, u64)], total: Option<u64>| {
        let fee = rules::document(facts, Basis::Proven).network_fee;
        let found: Vec<_> = fee.parts.iter().map(|part| (part.kind, part.amount)).collect();
        let parts: Vec<_> =
            parts.iter().map(|(kind, amount)| (*kind, Amount(U512::from(*amount)))).collect();
        assert_eq!((found, fee.total), (parts, total.map(|total| Amount(U512::from(total)))));
    };
    let plain = facts(Vec::new());
    check(&plain, &[(FeeKind::Base, 147_000), (FeeKind::Tip, 63_000)], Some(210_000));
    let legacy = TransactionFacts { base_fee: None, ..plain.clone() };
    check(&legacy, &[(FeeKind::Execution, 210_000)], Some(210_000));
    let blob = TransactionFacts { blob_gas_used: Some(131_072), ..plain.clone() };
    check(&blob, &[(FeeKind::Base, 147_000), (FeeKind::Tip, 63_000)], None);
    let priced = TransactionFacts { blob_gas_price: Some(2), ..blob };
    let parts = [(FeeKind::Base, 147_000), (FeeKind::Tip, 63_000), (FeeKind::Blob, 262_144)];
    check(&priced, &parts, Some(472_144));
    let rollup = TransactionFacts { l1_fee: Some(U256::from(9)), ..plain.clone() };
    let parts = [(FeeKind::Base, 147_000), (FeeKind::Tip, 63_000), (FeeKind::L1Data, 9)];
    check(&rollup, &parts, Some(210_009));
    check(&TransactionFacts { gas_price: None, ..plain }, &[], None);
}

#[test]
fn a_view_has_directions_and_exact_changes() {
    let [one, two] = [1, 2].map(Address::repeat_byte);
    let document = rules::document(&facts(Vec::new()), Basis::Proven);
    assert_eq!(document.lines[0].kind, LineKind::Transfer);
    let sender = View::of(&document, &format!("{one}"));
    assert_eq!((&sender.directions[..], sender.pays_network_fee), (&[Direction::Out][..], true));
    assert_eq!(sender.changes[0].net, "-210005");
    let recipient = View::of(&document, &format!("{two:#x}"));
    assert_eq!(
        (&recipient.directions[..], recipient.changes[0].net.as_str()),
        (&[Direction::In][..], "5")
    );
    let other = View::of(&document, &format!("{:#x}", Address::repeat_byte(3)));
    assert_eq!((&other.directions[..], other.changes.len()), (&[Direction::None][..], 0));
}

#[test]
fn what_leaves_one_address_reaches_another() {
    let block = block();
    let mut lines = 0;
    for index in 0..block.transactions.len() {
        let document = document(&bill(&block, index));
        lines += document.lines.len();
        let mut addresses: Vec<&str> = Vec::new();
        document.lines.iter().for_each(|line| addresses.extend([&*line.from, &*line.to]));
        addresses.sort_unstable();
        addresses.dedup();
        let views: Vec<View> = addresses.iter().map(|at| View::of(&document, at)).collect();
        for total in &document.totals {
            let of_asset = |view: &View| {
                let change = view.changes.iter().find(|change| change.asset == total.asset);
                change
                    .map_or((U512::ZERO, U512::ZERO), |change| (change.received.0, change.spent.0))
            };
            let received: U512 = views.iter().map(|view| of_asset(view).0).sum();
            let spent: U512 = views.iter().map(|view| of_asset(view).1).sum();
            let fee = match (&*total.asset, document.network_fee.total) {
                ("native", Some(fee)) => fee.0,
                _ => U512::ZERO,
            };
            assert_eq!((received, spent), (total.moved.0, total.moved.0 + fee), "{}", total.asset);
        }
    }
    assert!(lines > 50, "{lines}");
}

#[test]
fn a_transaction_that_was_signed_for_another_chain_is_refused() {
    let (_, evidence) = Proof::of_block(CHAIN, &block(), 0);
    let evidence = evidence.expect("it is proven");
    assert!(evidence.decode().is_ok());
    let error = Evidence { chain_id: 5, ..evidence }.decode().expect_err("another chain");
    assert!(error.to_string().contains("signed for chain 1337, not for 5"), "{error}");
}
