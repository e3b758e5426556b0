//! Tests of what the answers of tokens become.

use super::*;

fn word(last: u8) -> Vec<u8> {
    B256::with_last_byte(last).to_vec()
}

fn string(text: &[u8]) -> Vec<u8> {
    let length = B256::left_padding_from(&(text.len() as u64).to_be_bytes());
    [B256::with_last_byte(32).as_slice(), length.as_slice(), text].concat()
}

/// The row of a token that answers this; what it is not asked about reverts.
fn token(said: &[(Bytes, Status, Vec<u8>)]) -> TokenRow {
    let mut answers = Answers::new();
    for question in questions() {
        answers.insert(question, (9, Status::Reverted, Bytes::from_static(b"execution reverted")));
    }
    for (data, status, value) in said {
        answers.insert(data.clone(), (9, *status, value.clone().into()));
    }
    row(Address::with_last_byte(1), &answers)
}

fn name(value: Vec<u8>) -> Option<String> {
    token(&[(NAME_CALL.into(), Status::Ok, value)]).name
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
fn names_of_all_sorts_are_read() {
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
fn what_is_no_answer_gives_nothing() {
    for status in [Status::Reverted, Status::Empty, Status::TooLarge] {
        let said = [
            (Bytes::from(NAME_CALL), status, string(b"x")),
            (Bytes::from(DECIMALS_CALL), status, word(18)),
        ];
        let found = token(&said);
        assert_eq!((found.name, found.decimals, found.standard), (None, None, None), "{status:?}");
    }
    assert_eq!(row(Address::ZERO, &Answers::new()).observed_height, 0);
}

#[test]
fn decimals_beyond_what_can_be_are_left_out() {
    let decimals = |value: Vec<u8>| token(&[(DECIMALS_CALL.into(), Status::Ok, value)]).decimals;
    assert_eq!(decimals(word(18)), Some(18));
    assert_eq!(decimals(word(0)), Some(0));
    assert_eq!(decimals(vec![0xff; 32]), None);
    assert_eq!(decimals(vec![18]), None);
    let one_more = B256::left_padding_from(&256_u64.to_be_bytes()).to_vec();
    assert_eq!(decimals(one_more), None);
}

#[test]
fn a_standard_is_what_a_contract_says_if_it_knows_what_it_is_asked() {
    let yes = |interface| (supports(interface), Status::Ok, word(1));
    let no = |interface| (supports(interface), Status::Ok, word(0));
    let counts = (Bytes::from(DECIMALS_CALL), Status::Ok, word(6));
    let check = |said: &[(Bytes, Status, Vec<u8>)], expected: Option<&str>| {
        assert_eq!(token(said).standard, expected, "{said:?}");
    };
    check(&[], None);
    check(std::slice::from_ref(&counts), Some("erc20"));
    check(&[yes(ERC721), no(ERC1155), no(NONSENSE)], Some("erc721"));
    check(&[no(ERC721), yes(ERC1155), no(NONSENSE)], Some("erc1155"));
    check(&[yes(ERC721), counts.clone()], Some("erc721"));
    // Some contracts say yes to whatever they are asked.
    check(&[yes(ERC721), yes(ERC1155), yes(NONSENSE)], None);
    check(&[yes(ERC721), yes(ERC1155), yes(NONSENSE), counts], Some("erc20"));
}
