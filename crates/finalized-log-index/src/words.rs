//! Log data as ABI words without their zeros.
//!
//! Most data is a list of 32-byte words that hold small numbers or addresses, so most bytes are zero. Each whole word
//! becomes a tag and its significant bytes; a remainder shorter than a word is stored unchanged.
//!
//! | tag | the word is |
//! |---|---|
//! | `n` (0 … 32) | zeros, then the `n` bytes that follow |
//! | `64 + n` (0 … 31) | the `n` bytes that follow, then zeros |
//!
//! Guarantees: every datum has exactly one encoding. Decoding needs the length, which is stored separately. Leaves to
//! others: compression of repetitions.

use crate::codec::Reader;
use crate::error::{Error, Result};

const WORD: usize = 32;
/// Added to the tag of a word with trailing zeros.
const ZEROS_LAST: usize = 64;

/// Appends the encoding of `data`.
pub(crate) fn encode(data: &[u8], out: &mut Vec<u8>) {
    let (words, rest) = data.as_chunks::<WORD>();
    for word in words {
        let leading = word.iter().take_while(|byte| **byte == 0).count();
        let trailing = word.iter().rev().take_while(|byte| **byte == 0).count();
        if leading >= trailing {
            out.push(tag(WORD - leading));
            out.extend_from_slice(&word[leading..]);
        } else {
            out.push(tag(ZEROS_LAST + WORD - trailing));
            out.extend_from_slice(&word[..WORD - trailing]);
        }
    }
    out.extend_from_slice(rest);
}

fn tag(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Position of the significant bytes within a word.
fn place(tag: u8) -> Result<std::ops::Range<usize>> {
    match usize::from(tag) {
        kept @ 0..=WORD => Ok(WORD - kept..WORD),
        tag if (ZEROS_LAST..ZEROS_LAST + WORD).contains(&tag) => Ok(0..tag - ZEROS_LAST),
        tag => Err(Error::corrupt(format!("a data word has the unknown tag {tag}"))),
    }
}

/// Skips the encoding of `length` bytes of data.
pub(crate) fn skip(reader: &mut Reader<'_>, length: usize) -> Result<()> {
    let bytes = reader.rest();
    let mut at = 0;
    for _ in 0..length / WORD {
        let tag = bytes.get(at).copied().unwrap_or(u8::MAX);
        at += 1 + place(tag)?.len();
    }
    reader.take(at + length % WORD).map(|_| ())
}

/// Appends `length` bytes of decoded data to `out`. The caller has skipped the encoding once, which bounds the
/// length.
pub(crate) fn decode(reader: &mut Reader<'_>, length: usize, out: &mut Vec<u8>) -> Result<()> {
    for _ in 0..length / WORD {
        let tag = reader.u8()?;
        let place = place(tag)?;
        let mut word = [0; WORD];
        word[place.clone()].copy_from_slice(reader.take(place.len())?);
        out.extend_from_slice(&word);
    }
    out.extend_from_slice(reader.take(length % WORD)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(data: &[u8]) -> usize {
        let mut coded = Vec::new();
        encode(data, &mut coded);
        let mut reader = Reader::new(&coded);
        skip(&mut reader.clone(), data.len()).expect("encoded");
        let mut decoded = Vec::new();
        decode(&mut reader, data.len(), &mut decoded).expect("encoded");
        assert_eq!(decoded, data);
        assert!(reader.is_empty());
        coded.len()
    }

    #[test]
    fn zeros_cost_nothing() {
        assert_eq!(check(&[0; 64]), 2);
        let mut word = [0; 32];
        word[31] = 5;
        assert_eq!(check(&word), 2);
        let mut text = [0; 32];
        text[0] = 5;
        assert_eq!(check(&text), 2);
        assert_eq!(check(&[1; 32]), 33);
        assert_eq!(check(&[1; 31]), 31);
        assert_eq!(check(&[]), 0);
    }

    proptest! {
        #[test]
        fn data_round_trips(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], 0..200),
        ) {
            check(&bytes);
        }

        #[test]
        fn any_bytes_decode_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..99),
            length in 0_usize..200,
        ) {
            let _ = skip(&mut Reader::new(&bytes), length);
            let _ = decode(&mut Reader::new(&bytes), length, &mut Vec::new());
        }
    }
}
