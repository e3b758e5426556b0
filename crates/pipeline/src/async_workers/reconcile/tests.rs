//! Tests of what is asked, and of how answers compare.

use bytes::Bytes;

use super::*;

const OWNER: Address = Address::with_last_byte(7);

fn claims(owner: Address, count: &str) -> [Claim; 3] {
    let (contract, id) = (Address::with_last_byte(1), U256::from(5));
    [
        Claim::Owner { contract, id, owner },
        Claim::Quantity { contract, id, owner, quantity: count.to_owned() },
        Claim::Balance { token: contract, owner, balance: count.to_owned() },
    ]
}

fn check(claim: &Claim, status: Status, value: &[u8], observed: Option<&str>, verdict: Verdict) {
    let answer = StateAnswer { block: 1, status, value: Bytes::copy_from_slice(value) };
    let expected = (observed.map(str::to_owned), verdict);
    assert_eq!(claim.verdict(&answer), expected, "{claim:?} {status:?}");
}

#[test]
fn answers_are_compared() {
    let word = |last: u8| B256::with_last_byte(last).to_vec();
    let [owner, quantity, balance] = claims(OWNER, "7");
    let shown = format!("{OWNER:#x}");
    check(&owner, Status::Ok, &word(7), Some(&shown), Verdict::Agrees);
    let other = format!("{:#x}", Address::with_last_byte(8));
    check(&owner, Status::Ok, &word(8), Some(&other), Verdict::Differs);
    for counted in [quantity, balance] {
        check(&counted, Status::Ok, &word(7), Some("7"), Verdict::Agrees);
        check(&counted, Status::Ok, &word(8), Some("8"), Verdict::Differs);
        check(&counted, Status::Reverted, b"no", None, Verdict::Reverts);
        check(&counted, Status::Empty, b"", None, Verdict::Unclear);
        check(&counted, Status::Ok, b"short", None, Verdict::Unclear);
    }
    check(&owner, Status::Reverted, b"no", None, Verdict::Reverts);
    check(&owner, Status::Ok, &[0xff; 32], None, Verdict::Unclear);
}

#[test]
fn what_was_burnt_has_no_owner_to_be_named() {
    let [burnt, ..] = claims(Address::ZERO, "0");
    check(&burnt, Status::Reverted, b"nonexistent token", None, Verdict::Agrees);
    let zero = format!("{:#x}", Address::ZERO);
    check(&burnt, Status::Ok, &[0; 32], Some(&zero), Verdict::Agrees);
}

#[test]
fn a_sum_below_zero_agrees_with_nothing() {
    let [_, _, balance] = claims(OWNER, "-3");
    check(&balance, Status::Ok, &[0; 32], Some("0"), Verdict::Differs);
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
fn every_question_is_told_from_others_and_calls_its_function() {
    let [owner, quantity, balance] = claims(OWNER, "1");
    assert_eq!(owner.question().subject.len(), 52);
    assert_eq!(quantity.question().subject.len(), 72);
    assert_eq!(balance.question().subject.len(), 40);
    assert_eq!(owner.call().data[..4], OWNER_OF);
    assert_eq!(quantity.call().data[4..36], OWNER.into_word()[..]);
    assert_eq!(quantity.call().data[36..], B256::from(U256::from(5))[..]);
    assert_eq!(balance.call().data.len(), 36);
}
