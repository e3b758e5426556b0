//! Tests of decimals: text, arithmetic and bytes against a naive implementation.

use std::collections::HashSet;

use proptest::prelude::*;

use super::{Decimal, SCALE_LIMIT};
use crate::naive::{Naive, value_text};

const U256_MAX: &str =
    "115792089237316195423570985008687907853269984665640564039457584007913129639935";

fn decimal(text: &str) -> Decimal {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn numbers_of_the_json_grammar_are_read_exactly() {
    let nines = "9".repeat(78);
    let power = format!("1{}", "0".repeat(77));
    let fine = format!("-{nines}.{}", "1".repeat(36));
    let padded = format!("2.5{}", "0".repeat(100));
    for (text, expected) in [
        ("0", "0"),
        ("-0", "0"),
        ("0.000", "0"),
        ("-0.0e5", "0"),
        ("0e999999999999999999999", "0"),
        ("1", "1"),
        ("-1", "-1"),
        ("1.50", "1.5"),
        ("10", "10"),
        ("1e3", "1000"),
        ("1E+3", "1000"),
        ("1.5e-3", "0.0015"),
        ("12.50e1", "125"),
        ("100e-2", "1"),
        ("123e-5", "0.00123"),
        ("1e-36", "0.000000000000000000000000000000000001"),
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "18446744073709551616"),
        ("9999999999999999999", "9999999999999999999"),
        ("10000000000000000000", "10000000000000000000"),
        (U256_MAX, U256_MAX),
        (&nines, &nines),
        ("1e77", &power),
        (&fine, &fine),
        (&padded, "2.5"),
        ("0.30000000000000004", "0.30000000000000004"),
    ] {
        let value = Decimal::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(value.to_string(), expected, "{text}");
        assert_eq!(value.is_negative(), expected.starts_with('-'), "{text}");
    }
}

#[test]
fn text_that_is_not_a_number_or_too_long_is_refused() {
    let long = "1".repeat(79);
    let very_long = "0".repeat(1_000_000);
    let fine = format!("0.{}", "1".repeat(37));
    let outside = format!("{long}.5");
    for text in [
        "",
        " ",
        " 1",
        "1 ",
        "+1",
        "01",
        "-01",
        "00",
        ".5",
        "1.",
        "-",
        "-.5",
        "1.e5",
        "e5",
        "1e",
        "1e+",
        "1e5.0",
        "NaN",
        "nan",
        "Infinity",
        "-inf",
        "inf",
        "0x10",
        "1_000",
        "1,5",
        "--1",
        "1-1",
        "٣",
        "1٣",
        "1\0",
        "\"1\"",
        "null",
        "1e78",
        "1e999999999999",
        "-1e2147483648",
        "1e-37",
        "1e-300",
        "1e-99999999999999999999",
        "1.5e77777",
        &long,
        &very_long,
        &fine,
        &outside,
    ] {
        let refused = Decimal::parse(text).expect_err(&text.chars().take(40).collect::<String>());
        assert!(refused.to_string().len() < 100, "{refused}");
    }
}

#[test]
fn the_same_number_is_equal_and_hashes_alike_however_it_is_written() {
    let written = ["1", "1.0", "10e-1", "0.1e1", "1.000000000000000000000"];
    let set: HashSet<_> = written.iter().map(|text| decimal(text)).collect();
    assert_eq!(set.len(), 1);
    assert_eq!(decimal("-0.0"), Decimal::ZERO);
    assert_eq!(Decimal::from_integer(-5), decimal("-5.0"));
    assert_eq!(Decimal::from_integer(0), Decimal::ZERO);
    assert_eq!(Decimal::from_integer(i64::MIN).to_string(), i64::MIN.to_string());
    assert_eq!(Decimal::ZERO.neg(), Decimal::ZERO);
    let fives = decimal("2.5").checked_add(decimal("2.5")).expect("fits");
    assert_eq!((fives, fives.scale()), (decimal("5"), 0));
}

#[test]
fn units_of_chains_become_decimals() {
    let max = [0xff; 32];
    for (bytes, negative, scale, expected) in [
        (&[][..], true, 18, Some("0")),
        (&[0, 0, 1], false, 0, Some("1")),
        (&[0x0f, 0x42, 0x40], false, 6, Some("1")),
        (&[0x0f, 0x42, 0x41], true, 6, Some("-1.000001")),
        (&max[..], false, 0, Some(U256_MAX)),
        (&[1], false, 36, Some("0.000000000000000000000000000000000001")),
        (&[1], false, 37, None),
        (&[10], false, 37, Some("0.000000000000000000000000000000000001")),
        (&max[..], false, 255, None),
        (&[0; 33], false, 0, None),
    ] {
        let value = Decimal::from_units(bytes, negative, scale);
        assert_eq!(value.map(|value| value.to_string()).as_deref(), expected, "{bytes:?} {scale}");
    }
    // 10^77 in units of 10^-255 is far too small to be a value; in units of 10^-77 it is one.
    let bytes = decimal("1e77").magnitude.to_be_bytes_trimmed_vec();
    assert_eq!(Decimal::from_units(&bytes, false, 77), Some(decimal("1")));
    assert_eq!(Decimal::from_units(&bytes, false, 255), None);
}

#[test]
fn quotients_are_exact_or_rounded_half_to_even() {
    let threes = format!("0.{}", "3".repeat(36));
    let sixes = format!("-0.{}7", "6".repeat(35));
    for (value, by, expected, exact) in [
        ("1", 8, "0.125", true),
        ("550", 10, "55", true),
        ("1", 3, threes.as_str(), false),
        ("-2", 3, sixes.as_str(), false),
        ("1e-36", 2, "0", false),
        ("3e-36", 2, "2e-36", false),
        ("5e-36", 2, "2e-36", false),
        ("-3e-36", 2, "-2e-36", false),
        ("3e-36", 4, "1e-36", false),
        ("1e-36", u64::MAX, "0", false),
        ("0", 7, "0", true),
        ("1e-39", 1, "1e-39", true),
    ] {
        assert_eq!(decimal(value).div(by), Some((decimal(expected), exact)), "{value} / {by}");
    }
    assert_eq!(decimal("1").div(0), None);
}

#[test]
fn a_result_that_does_not_fit_is_none_and_never_wrong() {
    let max = decimal(&super::Wide::MAX.to_string());
    assert_eq!(max.checked_add(decimal("1")), None);
    assert_eq!(max.neg().checked_sub(decimal("1")), None);
    assert_eq!(max.checked_mul_u64(2), None);
    assert_eq!(max.checked_add(decimal("0.1")), None);
    assert_eq!(max.div(3), None);
    assert_eq!(max.checked_sub(max), Some(Decimal::ZERO));
    assert!(max > decimal("0.1") && decimal("0.1") < max && max.neg() < decimal("-0.1"));
    assert!(format!("{}0", super::Wide::MAX).parse::<Decimal>().is_err());
    assert_eq!(decimal("1e-36").point_left(3), Some(decimal("1e-39")));
    assert_eq!(decimal("1e-36").point_left(4), None);
    assert_eq!(decimal("1e-39").point_left(255), None);
    assert_eq!(decimal("1200").point_left(3), Some(decimal("1.2")));
}

#[test]
fn a_json_number_is_returned_only_if_it_is_exact() {
    for (text, expected) in [
        ("0", Some("0")),
        ("42", Some("42")),
        ("-7", Some("-7")),
        ("9223372036854775807", Some("9223372036854775807")),
        ("-9223372036854775808", Some("-9223372036854775808")),
        ("9223372036854775808", None),
        ("9007199254740993", Some("9007199254740993")),
        ("55.5", Some("55.5")),
        ("0.1", Some("0.1")),
        ("-0.3", Some("-0.3")),
        ("0.30000000000000004", Some("0.30000000000000004")),
        ("1.0000000000000001", None),
        ("123456789.123456789123", None),
        ("9007199254740993.5", None),
        (U256_MAX, None),
    ] {
        let number = decimal(text).json_number().map(|number| number.to_string());
        assert_eq!(number.as_deref(), expected, "{text}");
    }
    for text in ["1e20", "1e77", "1e-7", "1e-36"] {
        let number = decimal(text).json_number().expect("a double has this shortest text");
        assert_eq!(decimal(&number.to_string()), decimal(text));
    }
}

#[test]
fn serde_writes_a_string_and_reads_only_strings() {
    let value = decimal("-12.5");
    assert_eq!(serde_json::to_string(&value).expect("text"), "\"-12.5\"");
    assert_eq!(serde_json::from_str::<Decimal>("\"-1.25e1\"").expect("a decimal"), value);
    assert!(serde_json::from_str::<Decimal>("-12.5").is_err());
    assert!(serde_json::from_str::<Decimal>("\"x\"").is_err());
}

#[test]
fn small_numbers_have_short_encodings() {
    for (text, length) in [("0", 2), ("100", 3), ("-0.5", 3), ("65536", 5), (U256_MAX, 34)] {
        let mut bytes = Vec::new();
        decimal(text).encode(&mut bytes);
        assert_eq!(bytes.len(), length, "{text}");
    }
}

#[test]
fn bytes_that_are_no_encoding_are_refused() {
    for bytes in [
        &[][..],
        &[0],
        &[0x80, 0],
        &[1, 0],
        &[0, 1],
        &[0, 1, 0],
        &[0, 2, 0, 1],
        &[1, 1, 10],
        &[SCALE_LIMIT + 1, 1, 1],
        &[0, 65],
    ] {
        assert!(Decimal::decode(&mut &bytes[..]).is_err(), "{bytes:?}");
    }
    assert!(Decimal::decode(&mut &[&[0, 65][..], &[1; 65]].concat()[..]).is_err());
}

/// Values, and their sums, products and quotients.
fn any_decimal() -> impl Strategy<Value = Decimal> {
    (value_text(), value_text(), any::<u64>()).prop_map(|(one, other, number)| {
        let sum = decimal(&one).checked_add(decimal(&other)).expect("fits");
        match number % 4 {
            0 => sum,
            1 => sum.div(number).map_or(sum, |(quotient, _)| quotient),
            2 => sum.checked_mul_u64(number).unwrap_or(sum),
            _ => sum.point_left(3).unwrap_or(sum),
        }
    })
}

proptest! {
    #[test]
    fn values_are_printed_as_they_were_meant(text in value_text()) {
        let value = Decimal::parse(&text).expect("a value");
        prop_assert_eq!(value.to_string(), Naive::read(&text).to_string());
        prop_assert_eq!(Decimal::parse(&value.to_string()).expect("canonical"), value);
    }

    #[test]
    fn an_exponent_moves_the_point(text in value_text(), exponent in -20_i32..20) {
        let moved = format!("{text}e{exponent}").parse::<Decimal>();
        let plain = decimal(&text);
        if let Ok(moved) = moved {
            let power = 10_u64.pow(exponent.unsigned_abs().min(19));
            let rest = 10_u64.pow(exponent.unsigned_abs() - exponent.unsigned_abs().min(19));
            let large = |value: Decimal| value.checked_mul_u64(power)?.checked_mul_u64(rest);
            if exponent >= 0 {
                prop_assert_eq!(large(plain), Some(moved));
            } else {
                prop_assert_eq!(large(moved), Some(plain));
            }
        } else {
            // Only too many decimal places are refused here.
            let places = i32::from(plain.scale()) - exponent;
            prop_assert!(exponent < 0 && places > i32::from(SCALE_LIMIT));
        }
    }

    #[test]
    fn printed_numbers_parse_back(value in any_decimal()) {
        prop_assert_eq!(decimal(&value.to_string()), value);
    }

    #[test]
    fn arithmetic_equals_schoolbook_arithmetic(
        one in value_text(),
        other in value_text(),
        number in any::<u64>(),
    ) {
        let (a, b) = (decimal(&one), decimal(&other));
        let (na, nb) = (Naive::read(&one), Naive::read(&other));
        prop_assert_eq!(a.checked_add(b).expect("fits").to_string(), na.plus(&nb).to_string());
        prop_assert_eq!(a.checked_sub(b).expect("fits").checked_add(b), Some(a));
        let product = a.checked_mul_u64(number).expect("fits");
        prop_assert_eq!(product.to_string(), na.times(number).to_string());
        prop_assert_eq!(a.cmp(&b), na.compare(&nb));
        prop_assert_eq!(a == b, na.compare(&nb).is_eq());
    }

    #[test]
    fn quotients_equal_long_division(text in value_text(), by in prop_oneof![1_u64..50, 1_u64..]) {
        let (quotient, exact) = decimal(&text).div(by).expect("fits");
        let (cut, rest) = Naive::read(&text).divided(by, 36);
        prop_assert_eq!(exact, rest == 0);
        // It is the nearer neighbour; ties are in a table above.
        let away = match (rest * 2).cmp(&u128::from(by)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => return Ok(()),
            std::cmp::Ordering::Greater => true,
        };
        let sign = if text.starts_with('-') { "-" } else { "" };
        let unit = Naive::read(&format!("{sign}0.{}1", "0".repeat(35)));
        let expected = if away { cut.plus(&unit) } else { cut };
        prop_assert_eq!(quotient.to_string(), expected.to_string());
    }

    #[test]
    fn an_encoded_number_decodes_to_itself(value in any_decimal(), more in any::<[u8; 3]>()) {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        bytes.extend(more);
        let mut rest = &bytes[..];
        prop_assert_eq!(Decimal::decode(&mut rest).expect("what was encoded"), value);
        prop_assert_eq!(rest, more);
    }

    #[test]
    fn any_bytes_are_read_as_their_one_number_or_refused(
        tag in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..70),
    ) {
        let length = u8::try_from(bytes.len()).expect("short");
        let bytes = [&[tag & 0xbf, length][..], &bytes].concat();
        if let Ok(value) = Decimal::decode(&mut &bytes[..]) {
            let mut again = Vec::new();
            value.encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "[-+0-9.eE]{0,40}|.{0,40}") {
        if let Ok(value) = Decimal::parse(&text) {
            prop_assert_eq!(Decimal::parse(&value.to_string()).expect("canonical"), value);
        }
    }

    #[test]
    fn a_json_number_is_the_number(value in any_decimal()) {
        if let Some(number) = value.json_number() {
            prop_assert_eq!(decimal(&number.to_string()), value);
        }
    }
}
