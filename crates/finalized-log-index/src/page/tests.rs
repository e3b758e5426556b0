//! Pages round-trip log by log; any other bytes are an error, never a panic.

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

fn logs_of(view: &PageView) -> Vec<Log> {
    let mut logs = Vec::new();
    view.logs(&(0..view.len()).collect::<Vec<_>>(), &mut logs);
    logs
}

/// Calls every method of a page.
fn use_all(view: &PageView, filter: &Filter) {
    let logs = logs_of(view);
    let mut matching: Vec<usize> = (0..view.len()).collect();
    view.matching(&FilterTerms::of(filter), &mut matching);
    for (position, log) in logs.iter().enumerate() {
        assert_eq!(view.place(position), (log.block_number, log.log.log_index));
        assert_eq!(view.transaction_hash(position), log.log.transaction_hash);
        assert_eq!(matching.contains(&position), filter.matches(&log.log));
    }
}

/// Checks that picking returns the same logs as the open view.
fn pick_all(page: &Bytes, filter: &Filter) {
    let Ok(view) = PageView::open(page.clone()) else {
        return;
    };
    let logs = logs_of(&view);
    let terms = FilterTerms::of(filter);
    for step in [1, 2, 7, 50] {
        let positions: Vec<usize> = (0..view.len()).step_by(step).collect();
        let wanted = LogSelection {
            positions: &positions,
            logs: view.len(),
            blocks: &(0..u64::MAX),
            after: None,
        };
        let mut picked = Vec::new();
        pick(page, &wanted, &terms, &mut picked).expect("it opens");
        let expected = positions.iter().map(|position| logs[*position].clone());
        let expected: Vec<Log> = expected.filter(|log| filter.matches(&log.log)).collect();
        assert_eq!(picked, expected);
    }
}

proptest! {
    #[test]
    fn logs_round_trip(blocks in blocks(), address in word(), topic in word()) {
        let pages = content(&blocks).run.pages;
        let views: Vec<PageView> =
            pages.iter().map(|page| PageView::open(page.bytes.clone()).expect("written")).collect();
        let logs = views.iter().flat_map(logs_of);
        prop_assert_eq!(logs.collect::<Vec<_>>(), all_logs(&blocks));
        let filters = [
            Filter::range(0..=0),
            Filter::range(0..=0).topic(0, topic),
            Filter::range(0..=0).topic(2, topic).address(Address::from_word(address)),
        ];
        for view in &views {
            filters.iter().for_each(|filter| use_all(view, filter));
        }
        for page in &pages {
            filters.iter().for_each(|filter| pick_all(&page.bytes, filter));
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
            let edited = Bytes::from(resealed(&page.bytes, &edits));
            let filter = Filter::range(0..=0).topic(1, topic);
            if let Ok(view) = PageView::open(edited.clone()) {
                use_all(&view, &filter);
            }
            pick_all(&edited, &filter);
            let positions: Vec<usize> = (0..128).collect();
            let logs = usize::try_from(page.logs).expect("small");
            let wanted =
                LogSelection { positions: &positions[..logs], logs, blocks: &(0..9), after: None };
            let _ = pick(&edited, &wanted, &FilterTerms::of(&filter), &mut Vec::new());
        }
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut sealed = bytes;
        sealed.insert(0, VERSION);
        seal(&mut sealed, 0);
        let sealed = Bytes::from(sealed);
        if let Ok(view) = PageView::open(sealed.clone()) {
            use_all(&view, &Filter::range(0..=0));
        }
        for logs in [1, 2, 128] {
            let wanted = LogSelection { positions: &[0], logs, blocks: &(0..9), after: None };
            let terms = FilterTerms::of(&Filter::range(0..=0));
            let _ = pick(&sealed, &wanted, &terms, &mut Vec::new());
        }
    }

    #[test]
    fn a_flipped_bit_or_a_lost_end_is_detected(blocks in blocks(), at: usize) {
        for page in content(&blocks).run.pages {
            let mut bytes = page.bytes.to_vec();
            let bit = at % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(PageView::open(Bytes::from(bytes)).is_err());
            prop_assert!(PageView::open(page.bytes.slice(..at % page.bytes.len())).is_err());
        }
    }
}
