//! Chunks round-trip; an edited part with a valid checksum is an error or does no harm.

use proptest::prelude::*;

use super::*;
use crate::samples::{blocks, content, edits, resealed};

fn parts(encoded: &EncodedChunk) -> (usize, Directory) {
    let at = usize::try_from(encoded.directory_at).expect("small");
    let directory = Directory::decode(&encoded.bytes[at..], encoded.directory_at);
    (at, directory.expect("just written"))
}

/// Calls every method of a directory.
fn use_all(directory: &Directory) {
    for page in 0..directory.pages() {
        let (ids, bytes) = (directory.page_ids(page), directory.page_bytes(page));
        assert!(ids.start < ids.end && bytes.start < bytes.end);
        assert_eq!(directory.page_of(ids.start), page);
    }
    let whole = directory.pages_of(&directory.blocks);
    assert!(whole.end <= directory.pages());
    for bucket in 0..1 << directory.bucket_bits {
        let range = directory.bucket_bytes(bucket);
        assert!(range.start < range.end && range.end <= directory.blocks_bytes().start);
    }
    assert!(directory.weight() > 0);
}

proptest! {
    #[test]
    fn content_round_trips(blocks in blocks()) {
        let content = content(&blocks);
        let (numbers, run) = (content.blocks(), &content.run);
        let (rows, entries) = (run.blocks.clone(), run.entries.clone());
        let encoded = encode(content);
        let (_, directory) = parts(&encoded);
        use_all(&directory);
        let back = decode_content(&encoded.bytes, encoded.directory_at).expect("just written");
        prop_assert_eq!(back.blocks(), numbers);
        prop_assert_eq!(&back.run.blocks, &rows);
        prop_assert_eq!(&back.run.entries, &entries);
        prop_assert_eq!(encode(back).bytes, encoded.bytes);
    }

    #[test]
    fn an_edited_directory_does_no_harm(blocks in blocks(), edits in edits()) {
        let encoded = encode(content(&blocks));
        let (at, _) = parts(&encoded);
        let edited = resealed(&encoded.bytes[at..], &edits);
        if let Ok(directory) = Directory::decode(&edited, encoded.directory_at) {
            use_all(&directory);
        }
        let whole = Bytes::from([&encoded.bytes[..at], &edited[..]].concat());
        let _ = decode_content(&whole, encoded.directory_at);
    }

    #[test]
    fn edited_blocks_do_no_harm(blocks in blocks(), edits in edits()) {
        let encoded = encode(content(&blocks));
        let (_, directory) = parts(&encoded);
        let range = directory.blocks_bytes();
        let small = |number: u64| usize::try_from(number).expect("small");
        let range = small(range.start)..small(range.end);
        let rows = directory.decode_blocks(&resealed(&encoded.bytes[range], &edits));
        if let Ok(rows) = rows {
            prop_assert_eq!(rows.len(), blocks.len());
        }
    }

    #[test]
    fn a_flipped_bit_in_a_separately_read_part_is_detected(blocks in blocks(), at: usize) {
        let encoded = encode(content(&blocks));
        let mut bytes = encoded.bytes.to_vec();
        let bit = at % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let whole = decode_content(&Bytes::from(bytes), encoded.directory_at);
        let (_, directory) = parts(&encoded);
        // Pages are copied unopened; opening one detects its damage.
        let in_pages = (8..directory.postings_at).contains(&(as_u64(bit) / 8));
        prop_assert!(in_pages || whole.is_err());
    }
}
