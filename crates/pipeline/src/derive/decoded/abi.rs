//! The few rules of Solidity's encoding that events need: words, and arrays of words.
//!
//! Guarantees: bytes that do not keep to the rules give nothing, and cost no more than they are long. Leaves to others:
//! what the words mean.

use alloy_primitives::{Address, B256};

/// An address in a word; none if the word is more than an address.
pub fn address(word: &B256) -> Option<Address> {
    let (padding, address) = word.split_at(12);
    padding.iter().all(|byte| *byte == 0).then(|| Address::from_slice(address))
}

/// A word of the data, by its number; none where the data ends before.
pub fn word(data: &[u8], number: usize) -> Option<B256> {
    let start = number.checked_mul(32)?;
    data.get(start..start.checked_add(32)?).map(B256::from_slice)
}

/// A word of the data as a number that counts bytes or elements; none if there can not be as many.
pub fn size(data: &[u8], number: usize) -> Option<usize> {
    let word = word(data, number)?;
    let (high, low) = word.split_at(24);
    let low = u64::from_be_bytes(low.try_into().ok()?);
    let low = usize::try_from(low).ok().filter(|low| *low <= data.len())?;
    high.iter().all(|byte| *byte == 0).then_some(low)
}

/// The words of an array whose offset is at a word of the head, with elements of `width` words each.
pub fn array(data: &[u8], head: usize, width: usize) -> Option<Vec<B256>> {
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
    fn arrays_are_read_and_wrong_ones_are_not() {
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
    fn a_word_that_is_more_than_an_address_is_none() {
        let mut word = B256::left_padding_from(&[1; 20]);
        assert_eq!(address(&word), Some(Address::from([1; 20])));
        word[11] = 1;
        assert_eq!(address(&word), None);
    }
}
