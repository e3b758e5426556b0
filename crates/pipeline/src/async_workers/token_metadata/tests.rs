//! Tests of the rows derived from the answers of tokens.

use super::*;

fn word(last: u8) -> Vec<u8> {
    B256::with_last_byte(last).to_vec()
}

fn string(text: &[u8]) -> Vec<u8> {
    let length = B256::left_padding_from(&(text.len() as u64).to_be_bytes());
    [B256::with_last_byte(32).as_slice(), length.as_slice(), text].concat()
}

/// The row of a token with these answers; all other calls revert.
fn token(scripted: &[(Bytes, AnswerStatus, Vec<u8>)]) -> TokenRow {
    let mut answers = Answers::new();
    for question in questions() {
        answers.insert(
            question,
            (9, AnswerStatus::Reverted, Bytes::from_static(b"execution reverted")),
        );
    }
    for (data, status, value) in scripted {
        answers.insert(data.clone(), (9, *status, value.clone().into()));
    }
    row(Address::with_last_byte(1), &answers)
}

fn name(value: Vec<u8>) -> Option<String> {
    token(&[(NAME_CALL.into(), AnswerStatus::Ok, value)]).name
}

#[test]
fn selectors_are_those_of_their_functions() {
    for (selector, function) in [
        (NAME_CALL, "name()"),
        (SYMBOL_CALL, "symbol()"),
        (DECIMALS_CALL, "decimals()"),
        (&SUPPORTS, "supportsInterface(bytes4)"),
    ] {
        assert_eq!(alloy_primitives::keccak256(function)[..4], *selector, "{function}");
    }
}

#[test]
fn names_are_decoded_in_every_encoding() {
    let check = |value: Vec<u8>, expected: Option<&str>| {
        assert_eq!(name(value.clone()).as_deref(), expected, "{value:?}");
    };
    check(string(b"Tether USD"), Some("Tether USD"));
    check([b"Maker".to_vec(), vec![0; 27]].concat(), Some("Maker"));
    check(string(b"a\xff\xfeb"), Some("a\u{fffd}\u{fffd}b"));
    check(string("U\u{202e}SDC\u{0}\u{7}".as_bytes()), Some("USDC"));
    check(string(&vec![b'x'; 100_000]), Some(&"x".repeat(NAME_CHARS_MAX)));
    check(string(b""), None);
    check(string(b"\0\0\n"), None);
    check(vec![0; 32], None);
    check(vec![1, 2, 3], None);
    check(vec![0xff; 64], None);
}

#[test]
fn a_failed_answer_yields_no_values() {
    for status in [AnswerStatus::Reverted, AnswerStatus::Empty, AnswerStatus::TooLarge] {
        let scripted = [
            (Bytes::from(NAME_CALL), status, string(b"x")),
            (Bytes::from(DECIMALS_CALL), status, word(18)),
        ];
        let found = token(&scripted);
        assert_eq!((found.name, found.decimals, found.standard), (None, None, None), "{status:?}");
    }
    assert_eq!(row(Address::ZERO, &Answers::new()).observed_height, 0);
}

#[test]
fn impossible_decimals_are_left_out() {
    let decimals =
        |value: Vec<u8>| token(&[(DECIMALS_CALL.into(), AnswerStatus::Ok, value)]).decimals;
    assert_eq!(decimals(word(18)), Some(18));
    assert_eq!(decimals(word(0)), Some(0));
    assert_eq!(decimals(vec![0xff; 32]), None);
    assert_eq!(decimals(vec![18]), None);
    let one_more = B256::left_padding_from(&256_u64.to_be_bytes()).to_vec();
    assert_eq!(decimals(one_more), None);
}

#[test]
fn a_standard_counts_only_if_the_contract_answers_erc165_correctly() {
    let yes = |interface| (supports(interface), AnswerStatus::Ok, word(1));
    let no = |interface| (supports(interface), AnswerStatus::Ok, word(0));
    let counts = (Bytes::from(DECIMALS_CALL), AnswerStatus::Ok, word(6));
    let check = |scripted: &[(Bytes, AnswerStatus, Vec<u8>)], expected: Option<&str>| {
        assert_eq!(token(scripted).standard, expected, "{scripted:?}");
    };
    check(&[], None);
    check(std::slice::from_ref(&counts), Some("erc20"));
    check(&[yes(ERC721), no(ERC1155), no(NONSENSE)], Some("erc721"));
    check(&[no(ERC721), yes(ERC1155), no(NONSENSE)], Some("erc1155"));
    check(&[yes(ERC721), counts.clone()], Some("erc721"));
    // Some contracts answer yes to every question.
    check(&[yes(ERC721), yes(ERC1155), yes(NONSENSE)], None);
    check(&[yes(ERC721), yes(ERC1155), yes(NONSENSE), counts], Some("erc20"));
}
