//! Tests of the calls, and of how answers compare.

use alloy_primitives::{Address, B256, U256};
use bytes::Bytes;
use logmill_io::Amount;

use super::claim::{BALANCE_OF, BALANCE_OF_ITEM, Claim, OWNER_OF};
use super::*;
use crate::observe::AnswerStatus;

const OWNER: Address = Address::with_last_byte(7);

fn claims(owner: Address, count: &str) -> [Claim; 3] {
    let (contract, id) = (Address::with_last_byte(1), U256::from(5));
    let change: Amount = count.parse().expect("a number");
    [
        Claim::Owner { contract, id, owner },
        Claim::Quantity { contract, id, owner, change },
        Claim::Balance { token: contract, owner, change },
    ]
}

fn check(
    claim: &Claim,
    status: AnswerStatus,
    value: &[u8],
    observed: Option<&str>,
    verdict: Verdict,
) {
    let answer = answer_of(status, value);
    let should = claim.expected(None);
    let expected = (observed.map(str::to_owned), verdict);
    assert_eq!(claim.verdict(should.as_deref(), &answer), expected, "{claim:?} {status:?}");
}

fn answer_of(status: AnswerStatus, value: &[u8]) -> StateAnswer {
    StateAnswer { block: 1, status, value: Bytes::copy_from_slice(value) }
}

#[test]
fn the_expected_answer_is_the_earlier_state_plus_the_change() {
    let [owner, quantity, balance] = claims(OWNER, "-3");
    let before = |status, value: &[u8]| Some(answer_of(status, value));
    let ten = B256::with_last_byte(10).to_vec();
    for (before, expected) in [
        (None, Some("-3")),
        (before(AnswerStatus::Ok, &ten), Some("7")),
        // The contract did not exist yet.
        (before(AnswerStatus::Empty, b""), Some("-3")),
        (before(AnswerStatus::Reverted, b"no"), None),
        (before(AnswerStatus::TooLarge, b""), None),
        (before(AnswerStatus::Ok, b"short"), None),
    ] {
        for claim in [&quantity, &balance] {
            assert_eq!(claim.expected(before.as_ref()).as_deref(), expected, "{before:?}");
        }
        assert_eq!(owner.expected(before.as_ref()), Some(format!("{OWNER:#x}")));
    }
    let unclear = balance.verdict(None, &answer_of(AnswerStatus::Ok, &ten));
    assert_eq!(unclear, (Some("10".to_owned()), Verdict::Unclear));
}

#[test]
fn answers_are_compared() {
    let word = |last: u8| B256::with_last_byte(last).to_vec();
    let [owner, quantity, balance] = claims(OWNER, "7");
    let shown = format!("{OWNER:#x}");
    check(&owner, AnswerStatus::Ok, &word(7), Some(&shown), Verdict::Agrees);
    let other = format!("{:#x}", Address::with_last_byte(8));
    check(&owner, AnswerStatus::Ok, &word(8), Some(&other), Verdict::Differs);
    for counted in [quantity, balance] {
        check(&counted, AnswerStatus::Ok, &word(7), Some("7"), Verdict::Agrees);
        check(&counted, AnswerStatus::Ok, &word(8), Some("8"), Verdict::Differs);
        check(&counted, AnswerStatus::Reverted, b"no", None, Verdict::Reverts);
        check(&counted, AnswerStatus::Empty, b"", None, Verdict::Unclear);
        check(&counted, AnswerStatus::Ok, b"short", None, Verdict::Unclear);
    }
    check(&owner, AnswerStatus::Reverted, b"no", None, Verdict::Reverts);
    check(&owner, AnswerStatus::Ok, &[0xff; 32], None, Verdict::Unclear);
}

#[test]
fn a_burnt_item_may_have_no_owner() {
    let [burnt, ..] = claims(Address::ZERO, "0");
    check(&burnt, AnswerStatus::Reverted, b"nonexistent token", None, Verdict::Agrees);
    let zero = format!("{:#x}", Address::ZERO);
    check(&burnt, AnswerStatus::Ok, &[0; 32], Some(&zero), Verdict::Agrees);
}

#[test]
fn a_sum_below_zero_agrees_with_nothing() {
    let [_, _, balance] = claims(OWNER, "-3");
    check(&balance, AnswerStatus::Ok, &[0; 32], Some("0"), Verdict::Differs);
}

#[test]
fn selectors_are_those_of_their_functions() {
    use crate::async_workers::nft_items;
    for (selector, function) in [
        (OWNER_OF, "ownerOf(uint256)"),
        (BALANCE_OF, "balanceOf(address)"),
        (BALANCE_OF_ITEM, "balanceOf(address,uint256)"),
        (nft_items::TOKEN_URI, "tokenURI(uint256)"),
        (nft_items::URI, "uri(uint256)"),
    ] {
        assert_eq!(alloy_primitives::keccak256(function)[..4], selector, "{function}");
    }
}

#[test]
fn every_claim_has_its_own_subject_and_call() {
    let [owner, quantity, balance] = claims(OWNER, "1");
    assert_eq!(owner.question().subject.len(), 52);
    assert_eq!(quantity.question().subject.len(), 72);
    assert_eq!(balance.question().subject.len(), 40);
    assert_eq!(owner.call().data[..4], OWNER_OF);
    assert_eq!(quantity.call().data[4..36], OWNER.into_word()[..]);
    assert_eq!(quantity.call().data[36..], B256::from(U256::from(5))[..]);
    assert_eq!(balance.call().data.len(), 36);
}
