//! Pages come back log by log; whatever else they are given is an error, never a panic.

use alloy_primitives::Address;
use proptest::prelude::*;

use super::*;
use crate::filter::Filter;
use crate::samples::{blocks, content, edits, resealed, word};
use crate::types::Log;

fn all_logs(blocks: &[FinalizedBlock]) -> Vec<Log> {
    let logs = blocks.iter().flat_map(|block| {
        block.logs.iter().map(|log| Log {
            block_number: block.number,
            block_hash: block.hash,
            block_timestamp: block.timestamp,
            log: log.clone(),
        })
    });
    logs.collect()
}

/// Asks a page everything.
fn use_all(view: &PageView, filter: &Filter) {
    let matcher = view.matcher(filter);
    for position in 0..view.len() {
        let log = view.log(position);
        assert_eq!(view.place(position), (log.block_number, log.log.log_index));
        assert_eq!(view.transaction_hash(position), log.log.transaction_hash);
        let matches = matcher.as_ref().is_some_and(|matcher| view.matches(matcher, position));
        assert_eq!(matches, filter.matches(&log.log));
    }
    assert!(view.weight() > 0);
}

proptest! {
    #[test]
    fn logs_come_back(blocks in blocks(), address in word(), topic in word()) {
        let pages = content(&blocks).run.pages;
        let views: Vec<PageView> =
            pages.iter().map(|page| PageView::open(&page.bytes).expect("just written")).collect();
        let logs = views.iter().flat_map(|view| (0..view.len()).map(|p| view.log(p)));
        prop_assert_eq!(logs.collect::<Vec<_>>(), all_logs(&blocks));
        let filters = [
            Filter::range(0..=0),
            Filter::range(0..=0).topic(0, topic),
            Filter::range(0..=0).topic(2, topic).address(Address::from_word(address)),
        ];
        for view in &views {
            filters.iter().for_each(|filter| use_all(view, filter));
        }
        let mut first_id = 0;
        for page in &pages {
            prop_assert_eq!(page.first_id, first_id);
            prop_assert!(page.logs > 0);
            first_id += page.logs;
        }
    }

    #[test]
    fn edited_pages_with_the_right_checksum_do_no_harm(
        blocks in blocks(),
        edits in edits(),
        topic in word(),
    ) {
        for page in content(&blocks).run.pages {
            if let Ok(view) = PageView::open(&resealed(&page.bytes, &edits)) {
                use_all(&view, &Filter::range(0..=0).topic(1, topic));
            }
        }
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut sealed = bytes;
        sealed.insert(0, VERSION);
        seal(&mut sealed, 0);
        if let Ok(view) = PageView::open(&sealed) {
            use_all(&view, &Filter::range(0..=0));
        }
    }

    #[test]
    fn a_flipped_bit_or_a_lost_end_is_found(blocks in blocks(), at: usize) {
        for page in content(&blocks).run.pages {
            let mut bytes = page.bytes.to_vec();
            let bit = at % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(PageView::open(&bytes).is_err());
            prop_assert!(PageView::open(&page.bytes[..at % page.bytes.len()]).is_err());
        }
    }
}
