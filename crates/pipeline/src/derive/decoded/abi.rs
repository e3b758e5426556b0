//! The part of Solidity's ABI encoding that events need: words, and arrays of words.
//!
//! Guarantees: invalid bytes decode to `None`, at a cost bounded by their length. Leaves to others: what the words
//! mean.

use alloy_primitives::{Address, B256, I256, U256};

/// The address in a word; none if the padding is not zero.
pub(crate) fn address(word: &B256) -> Option<Address> {
    let (padding, address) = word.split_at(12);
    padding.iter().all(|byte| *byte == 0).then(|| Address::from_slice(address))
}

/// A word of the data by its index; none beyond the end.
pub(crate) fn word(data: &[u8], number: usize) -> Option<B256> {
    let start = number.checked_mul(32)?;
    data.get(start..start.checked_add(32)?).map(B256::from_slice)
}

/// The words of data that consists of exactly `N` words.
pub(crate) fn words<const N: usize>(data: &[u8]) -> Option<[B256; N]> {
    let (words, rest) = data.as_chunks::<32>();
    let words: &[[u8; 32]; N] = words.try_into().ok().filter(|_| rest.is_empty())?;
    Some(words.map(B256::from))
}

/// An unsigned number; none if it needs more than `bits` bits.
pub(crate) fn unsigned(word: &B256, bits: usize) -> Option<U256> {
    Some(U256::from_be_bytes(word.0)).filter(|number| number.bit_len() <= bits)
}

/// A signed number; none if it needs more than `bits` bits.
pub(crate) fn signed(word: &B256, bits: u32) -> Option<I256> {
    Some(I256::from_raw(U256::from_be_bytes(word.0))).filter(|number| number.bits() <= bits)
}

/// A word as a count of bytes or elements; none if it exceeds the length of the data.
pub(crate) fn size(data: &[u8], number: usize) -> Option<usize> {
    let word = word(data, number)?;
    let (high, low) = word.split_at(24);
    let low = u64::from_be_bytes(low.try_into().ok()?);
    let low = usize::try_from(low).ok().filter(|low| *low <= data.len())?;
    high.iter().all(|byte| *byte == 0).then_some(low)
}

/// The words of an array of elements of `width` words, whose offset is in the word `head`.
pub(crate) fn array(data: &[u8], head: usize, width: usize) -> Option<Vec<B256>> {
    let offset = size(data, head)?;
    let tail = data.get(offset..)?;
    let words = size(tail, 0)?.checked_mul(width)?;
    let bytes = tail.get(32..)?.get(..words.checked_mul(32)?)?;
    Some(bytes.chunks_exact(32).map(B256::from_slice).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| B256::left_padding_from(&word.to_be_bytes()).0).collect()
    }

    #[test]
    fn arrays_are_decoded_and_invalid_ones_are_refused() {
        let check = |data: &[u64], width, expected: Option<&[u64]>| {
            let found = array(&words(data), 0, width);
            let expected = expected.map(words);
            assert_eq!(found.map(|found| found.concat()), expected, "{data:?}");
        };
        check(&[32, 2, 7, 8], 1, Some(&[7, 8]));
        check(&[32, 1, 7, 8], 2, Some(&[7, 8]));
        check(&[32, 0], 2, Some(&[]));
        check(&[64, 9, 1, 7], 1, Some(&[7]));
        check(&[32, 3, 7, 8], 1, None);
        check(&[32, u64::MAX, 7, 8], 1, None);
        check(&[u64::MAX, 2, 7, 8], 1, None);
        check(&[], 1, None);
    }

    #[test]
    fn words_require_the_exact_length() {
        assert_eq!(super::words::<2>(&words(&[7, 8])).unwrap().concat(), words(&[7, 8]));
        assert_eq!(super::words::<0>(&[]), Some([]));
        assert_eq!(super::words::<1>(&words(&[7, 8])), None);
        assert_eq!(super::words::<1>(&words(&[7, 8])[..33]), None);
        assert_eq!(super::words::<2>(&words(&[7, 8])[..63]), None);
    }

    #[test]
    fn numbers_with_too_many_bits_are_refused() {
        let negative = |number: u64| B256::from(U256::from(number).wrapping_neg());
        let positive = |number: u64| B256::from(U256::from(number));
        assert_eq!(unsigned(&positive(255), 8), Some(U256::from(255)));
        assert_eq!(unsigned(&positive(256), 8), None);
        assert_eq!(unsigned(&B256::repeat_byte(0xff), 256), Some(U256::MAX));
        let check = |word, bits, expected: Option<i64>| {
            let found = signed(&word, bits).map(|found| i64::try_from(found).unwrap());
            assert_eq!(found, expected, "{word}");
        };
        check(positive(0), 24, Some(0));
        check(positive(127), 8, Some(127));
        check(positive(128), 8, None);
        check(negative(128), 8, Some(-128));
        check(negative(129), 8, None);
        check(negative(1), 256, Some(-1));
        let mut word = B256::ZERO;
        word[0] = 0x80;
        assert_eq!(signed(&word, 256), Some(I256::MIN));
    }

    #[test]
    fn a_word_with_nonzero_padding_is_no_address() {
        let mut word = B256::left_padding_from(&[1; 20]);
        assert_eq!(address(&word), Some(Address::from([1; 20])));
        word[11] = 1;
        assert_eq!(address(&word), None);
    }
}
