//! Blobs of bodies: bodies are found by number and by transaction, and damage is detected.

use alloy_primitives::B256;
use proptest::prelude::*;

use super::blob::{BodiesBuilder, BodiesDirectory, EncodedBodies, offsets_in};
use crate::body_keys::key_of;
use crate::error::Result;
use crate::types::Body;

fn bodies() -> impl Strategy<Value = Vec<Option<Body>>> {
    let transactions = prop::collection::vec(any::<[u8; 32]>().prop_map(B256::from), 0..40);
    let bytes = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (any::<u8>(), 0..400_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ];
    let body = (bytes, transactions)
        .prop_map(|(bytes, transactions)| Body { bytes: bytes.into(), transactions });
    prop::collection::vec(prop::option::weighted(0.9, body), 1..60)
}

fn built(bodies: &[Option<Body>]) -> EncodedBodies {
    let mut builder = BodiesBuilder::new(1_000);
    for body in bodies {
        builder.push(body.as_ref());
        if builder.group_is_full() {
            builder.end_group();
        }
    }
    builder.finish()
}

fn part(bytes: &[u8], range: std::ops::Range<u64>) -> Option<&[u8]> {
    bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// Reads all bodies as a reader would, and looks up every transaction.
fn read(bytes: &[u8], directory_at: u64, of: &[Option<Body>]) -> Result<Vec<Option<Vec<u8>>>> {
    let at = usize::try_from(directory_at).expect("small");
    let directory = BodiesDirectory::decode(&bytes[at..])?;
    let mut found = Vec::new();
    for (offset, body) in of.iter().enumerate() {
        let Some((group, place)) = directory.place(offset) else {
            found.push(None);
            continue;
        };
        let group_bytes = part(bytes, directory.group(group)).unwrap_or_default();
        let raw = directory.open_group(group, group_bytes)?;
        found.push(Some(raw[place].to_vec()));
        for transaction in body.iter().flat_map(|body| &body.transactions) {
            let mut offsets = Vec::new();
            for bucket in directory.buckets(key_of(transaction)) {
                let bucket = part(bytes, bucket).unwrap_or_default();
                offsets.extend(offsets_in(bucket, key_of(transaction))?);
            }
            assert!(offsets.contains(&u64::try_from(offset).expect("small")), "{transaction}");
        }
    }
    Ok(found)
}

proptest! {
    #[test]
    fn bodies_are_found_by_number_and_by_transaction(bodies in bodies()) {
        let encoded = built(&bodies);
        prop_assert_eq!(&encoded.blocks, &(1_000..1_000 + u64::try_from(bodies.len()).expect("few")));
        let expected: Vec<Option<Vec<u8>>> =
            bodies.iter().map(|body| body.as_ref().map(|body| body.bytes.to_vec())).collect();
        prop_assert_eq!(read(&encoded.bytes, encoded.directory_at, &bodies).expect("read"), expected);
    }

    #[test]
    fn a_flipped_bit_is_detected(bodies in bodies(), at: prop::sample::Index, bit in 0..8) {
        let encoded = built(&bodies);
        let mut bytes = encoded.bytes.to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        let expected: Vec<Option<Vec<u8>>> =
            bodies.iter().map(|body| body.as_ref().map(|body| body.bytes.to_vec())).collect();
        // Damage of a bucket that no lookup reads stays undetected.
        if let Ok(found) = read(&bytes, encoded.directory_at, &bodies) {
            prop_assert_eq!(found, expected);
        }
    }
}
