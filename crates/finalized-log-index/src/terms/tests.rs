//! Term indexes round-trip group by group, and damage is detected.

use alloy_primitives::B256;
use proptest::prelude::*;

use super::*;
use crate::term::Kind;

fn fingerprint(term: u32) -> Fingerprint {
    Fingerprint::of_word(Kind::Topic(1), &B256::left_padding_from(&term.to_be_bytes()))
}

fn sorted(pairs: &[(u32, u32)]) -> Vec<u64> {
    let entries = pairs.iter().map(|(term, id)| fingerprint(*term).entry(*id & ID_MAX));
    let mut entries: Vec<u64> = entries.collect();
    entries.sort_unstable();
    entries.dedup();
    entries
}

fn buckets(encoded: &EncodedTerms) -> Buckets<'_> {
    Buckets {
        bucket_bits: encoded.bucket_bits,
        bucket_starts: &encoded.bucket_starts,
        buckets: &encoded.buckets,
        postings: &encoded.postings,
    }
}

fn lookup(encoded: &EncodedTerms, fingerprint: Fingerprint) -> Vec<u32> {
    let index = bucket_index(fingerprint, encoded.bucket_bits);
    let at = |index: usize| usize::try_from(encoded.bucket_starts[index]).expect("small");
    let range = at(index)..at(index + 1);
    match find(&encoded.buckets[range], fingerprint, encoded.bucket_bits).expect("encoded") {
        None => Vec::new(),
        Some(Group::Ids(ids)) => ids,
        Some(Group::Bitmap(stored)) => {
            let small = |number: u64| usize::try_from(number).expect("small");
            let range = small(stored.bytes.start)..small(stored.bytes.end);
            let bitmap = read_bitmap(&encoded.postings[range], &stored).expect("encoded");
            bitmap.iter().collect()
        }
    }
}

fn check(pairs: &[(u32, u32)]) {
    let entries = sorted(pairs);
    let encoded = encode(&entries);
    let mut all = Vec::new();
    buckets(&encoded).entries(0, &mut all).expect("encoded");
    assert_eq!(all, entries);
    let terms: std::collections::BTreeSet<u32> = pairs.iter().map(|(term, _)| *term).collect();
    for term in &terms {
        let of_term =
            entries.iter().filter(|e| entry_fingerprint(**e) == fingerprint(*term).number());
        let expected: Vec<u32> = of_term.map(|entry| entry_id(*entry)).collect();
        assert_eq!(lookup(&encoded, fingerprint(*term)), expected);
    }
    assert!(lookup(&encoded, fingerprint(u32::MAX)).is_empty());
}

#[test]
fn an_empty_index_has_one_empty_bucket() {
    check(&[]);
    assert_eq!(encode(&[]).bucket_starts.len(), 2);
}

#[test]
fn many_terms_spread_over_buckets_and_hot_ones_become_bitmaps() {
    let mut pairs: Vec<(u32, u32)> = (0..3_000).map(|id| (id % 1_400, id)).collect();
    pairs.extend((0..5_000).map(|id| (9_999, id * 3)));
    let encoded = encode(&sorted(&pairs));
    assert!(encoded.bucket_starts.len() > 8, "{} buckets", encoded.bucket_starts.len());
    assert!(!encoded.postings.is_empty());
    check(&pairs);
}

#[test]
fn a_shift_moves_every_id() {
    let encoded = encode(&sorted(&[(1, 0), (2, 5), (2, 6)]));
    let mut shifted = Vec::new();
    buckets(&encoded).entries(100, &mut shifted).expect("encoded");
    assert_eq!(shifted, sorted(&[(1, 100), (2, 105), (2, 106)]));
    assert!(buckets(&encoded).entries(ID_MAX, &mut Vec::new()).is_err(), "too far");
}

proptest! {
    #[test]
    fn entries_round_trip(pairs in prop::collection::vec((0_u32..40, 0_u32..500), 0..600)) {
        check(&pairs);
    }

    #[test]
    fn a_flipped_bit_is_detected(
        pairs in prop::collection::vec((0_u32..9, 0_u32..500), 1..400),
        at: usize,
    ) {
        let mut encoded = encode(&sorted(&pairs));
        let bits = (encoded.buckets.len() + encoded.postings.len()) * 8;
        let (byte, bit) = ((at % bits) / 8, at % 8);
        let buckets_length = encoded.buckets.len();
        if byte < buckets_length {
            encoded.buckets[byte] ^= 1 << bit;
        } else {
            encoded.postings[byte - buckets_length] ^= 1 << bit;
        }
        prop_assert!(buckets(&encoded).entries(0, &mut Vec::new()).is_err());
    }

    #[test]
    fn edited_buckets_and_bitmaps_do_no_harm(
        pairs in prop::collection::vec((0_u32..9, 0_u32..500), 1..400),
        edits in crate::samples::edits(),
        term in 0_u32..9,
    ) {
        let encoded = encode(&sorted(&pairs));
        let at = |index: usize| usize::try_from(encoded.bucket_starts[index]).expect("small");
        let bucket = crate::samples::resealed(&encoded.buckets[at(0)..at(1)], &edits);
        if let Ok(Some(Group::Ids(ids))) = find(&bucket, fingerprint(term), encoded.bucket_bits) {
            prop_assert!(ids.is_sorted() && ids.iter().all(|id| *id <= ID_MAX));
        }
        let whole = find(&encoded.buckets[at(0)..at(1)], fingerprint(term), encoded.bucket_bits);
        if let Some(Group::Bitmap(stored)) = whole.expect("encoded") {
            let small = |number: u64| usize::try_from(number).expect("small");
            let range = small(stored.bytes.start)..small(stored.bytes.end);
            let bitmap = crate::samples::resealed(&encoded.postings[range], &edits);
            if let Ok(bitmap) = read_bitmap(&bitmap, &stored) {
                prop_assert_eq!(bitmap.len(), bitmap.iter().count() as u64);
            }
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        term: u32,
    ) {
        let mut sealed = bytes;
        seal(&mut sealed, 0);
        let _ = find(&sealed, fingerprint(term), 0);
        let stored = BitmapRef { count: 1, min: 0, max: 0, bytes: 0..1 };
        let _ = read_bitmap(&sealed, &stored);
    }
}
