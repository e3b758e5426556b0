//! Decodes contract answers: text in its two forms, numbers, booleans, addresses.
//!
//! Guarantees: pure; an invalid answer decodes to `None`, at a cost bounded by its length. Leaves to others: displaying
//! text ([`super::plain`]).

use alloy_primitives::{Address, B256, U256};

use crate::derive::decoded::abi;

/// The first word of an answer; none if it is shorter.
pub(crate) fn word(answer: &[u8]) -> Option<B256> {
    abi::word(answer, 0)
}

pub(crate) fn number(answer: &[u8]) -> Option<U256> {
    word(answer).map(|word| U256::from_be_bytes(word.0))
}

/// Decimals of a token; none above 255.
pub(crate) fn decimals(answer: &[u8]) -> Option<u8> {
    number(answer).and_then(|number| u8::try_from(number).ok())
}

/// Whether the first word is exactly 1; anything else counts as no.
pub(crate) fn is_yes(answer: &[u8]) -> bool {
    number(answer) == Some(U256::ONE)
}

pub(crate) fn address(answer: &[u8]) -> Option<Address> {
    abi::address(&word(answer)?)
}

/// The bytes of a text: an ABI string, or a zero-padded word as in the first tokens.
pub(crate) fn text(answer: &[u8]) -> Option<&[u8]> {
    string(answer).or_else(|| short_text(answer))
}

/// The bytes of an ABI string; the zero padding of its last word may be missing.
fn string(answer: &[u8]) -> Option<&[u8]> {
    let tail = answer.get(abi::size(answer, 0)?..)?;
    tail.get(32..)?.get(..abi::size(tail, 0)?)
}

fn short_text(answer: &[u8]) -> Option<&[u8]> {
    let word: &[u8; 32] = answer.try_into().ok()?;
    let end = word.iter().position(|byte| *byte == 0).unwrap_or(word.len());
    let (text, rest) = word.split_at(end);
    rest.iter().all(|byte| *byte == 0).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| B256::left_padding_from(&word.to_be_bytes()).0).collect()
    }

    #[test]
    fn texts_are_decoded_in_both_forms() {
        let check = |answer: &[u8], expected: Option<&[u8]>| {
            assert_eq!(text(answer), expected, "{answer:?}");
        };
        let dai = [words(&[32, 3]), b"DAI".to_vec(), vec![0; 29]].concat();
        check(&dai, Some(b"DAI"));
        // Without the trailing zeros, and with extra bytes.
        check(&dai[..67], Some(b"DAI"));
        check(&[dai, vec![7; 64]].concat(), Some(b"DAI"));
        check(&words(&[32, 0]), Some(b""));
        // An offset past other words.
        check(&[words(&[64, 9, 2]), b"ab".to_vec()].concat(), Some(b"ab"));
        let maker = [b"MKR".to_vec(), vec![0; 29]].concat();
        check(&maker, Some(b"MKR"));
        check(&[b'x'; 32], Some(&[b'x'; 32]));
        check(&[0; 32], Some(b""));
        // A word with bytes after the zeros is not text.
        check(&[b"MKR\0X".to_vec(), vec![0; 27]].concat(), None);
        check(&[], None);
        check(b"MKR", None);
        check(&words(&[32]), None);
        check(&words(&[32, 33]), None);
        check(&words(&[32, u64::MAX]), None);
        check(&words(&[u64::MAX, 1]), None);
        check(&[vec![0xff; 32], words(&[3]), b"abc".to_vec()].concat(), None);
    }

    #[test]
    fn numbers_booleans_and_addresses_are_decoded() {
        assert_eq!(decimals(&words(&[18])), Some(18));
        assert_eq!(decimals(&words(&[255])), Some(255));
        assert_eq!(decimals(&words(&[256])), None);
        assert_eq!(decimals(&[0xff; 32]), None);
        assert_eq!(decimals(&[18]), None);
        assert_eq!(decimals(&[]), None);
        assert!(is_yes(&words(&[1])) && is_yes(&words(&[1, 0])));
        assert!(!is_yes(&words(&[0])) && !is_yes(&words(&[2])) && !is_yes(&[1]) && !is_yes(&[]));
        assert_eq!(address(&words(&[7])), Some(Address::with_last_byte(7)));
        assert_eq!(address(&[0xff; 32]), None);
    }

    proptest! {
        #[test]
        fn no_answer_makes_decoding_panic(
            answer: Vec<u8>, offset in 0..200_u64, length in 0..200_u64,
        ) {
            let built = [words(&[offset, length]), answer.clone()].concat();
            for answer in [&answer, &built] {
                let read = text(answer).map_or(0, <[u8]>::len);
                prop_assert!(read <= answer.len());
                let _ = (decimals(answer), is_yes(answer), address(answer));
            }
        }
    }
}
