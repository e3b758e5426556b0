//! Amounts round-trip, compare and add like numbers.

use proptest::prelude::*;

use super::*;

fn amounts() -> impl Strategy<Value = Amount> {
    let bytes = prop::collection::vec(any::<u8>(), 0..=MAGNITUDE_BYTES_MAX);
    (any::<bool>(), bytes).prop_map(|(negative, bytes)| {
        let positive = Amount::from_be_bytes(&bytes).expect("at most 40 bytes");
        if negative { -positive } else { positive }
    })
}

proptest! {
    #[test]
    fn a_round_trip_returns_the_same_amount(amount in amounts()) {
        prop_assert_eq!(Amount::decode(&amount.encode()).expect("just encoded"), amount);
        prop_assert_eq!(Amount::from_numeric(&amount.to_numeric()).expect("just encoded"), amount);
        prop_assert_eq!(amount.to_string().parse::<Amount>().expect("just printed"), amount);
    }

    #[test]
    fn the_order_of_the_bytes_is_the_order_of_the_numbers(left in amounts(), right in amounts()) {
        prop_assert_eq!(left.encode().cmp(&right.encode()), left.cmp(&right));
    }

    #[test]
    fn small_sums_equal_machine_arithmetic(left in any::<i64>(), right in any::<i64>()) {
        let sum = Amount::from(left).checked_add(Amount::from(right)).expect("fits");
        prop_assert_eq!(sum.to_string(), (i128::from(left) + i128::from(right)).to_string());
        prop_assert_eq!(Amount::from(left).cmp(&Amount::from(right)), left.cmp(&right));
    }

    #[test]
    fn any_bytes_decode_to_an_amount_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        if let Ok(amount) = Amount::decode(&bytes) {
            prop_assert_eq!(amount.encode(), bytes.clone());
        }
        if let Ok(amount) = Amount::from_numeric(&bytes) {
            prop_assert_eq!(Amount::from_numeric(&amount.to_numeric()).expect("valid"), amount);
        }
    }
}

#[test]
fn sums_that_do_not_fit_are_refused_or_saturate() {
    let one = Amount::from(1_u64);
    assert_eq!(Amount::MAX.checked_add(one), None);
    assert_eq!(Amount::MAX.saturating_add(one), Amount::MAX);
    assert_eq!(Amount::MIN.saturating_add(-one), Amount::MIN);
    assert_eq!(Amount::MAX.checked_add(Amount::MIN), Some(Amount::ZERO));
}

#[test]
fn only_decimal_integers_are_parsed() {
    for text in ["", "-", "1.0", "1e3", "0x10", " 1", "+1", "１"] {
        assert!(text.parse::<Amount>().is_err(), "{text:?}");
    }
    assert_eq!("-0".parse::<Amount>().expect("zero"), Amount::ZERO);
}

#[test]
fn two_transfers_of_the_largest_token_amount_add_up() {
    let largest = Amount::from_be_bytes(&[0xff; 32]).expect("256 bits");
    let sum = largest.checked_add(largest).expect("320 bits hold it");
    assert_eq!(
        sum.to_string(),
        "231584178474632390847141970017375815706539969331281128078915168015826259279870"
    );
}
