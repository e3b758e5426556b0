//! A listener that folds the changes it receives and compares the result with a view.

use std::collections::BTreeMap;
use std::sync::Arc;

use logmill_chain::Block;
use logmill_pipeline::{Chain, Change};
use tokio::sync::broadcast;

#[derive(Debug)]
pub(crate) struct Listener {
    changes: broadcast::Receiver<Arc<Change>>,
    pub(crate) blocks: BTreeMap<u64, Arc<Block>>,
    pub(crate) gaps: usize,
}

impl Listener {
    /// Starts with the blocks that are not final at this moment.
    pub(crate) async fn of(chain: &Chain) -> Self {
        let (changes, view) = (chain.changes(), chain.view().await.expect("read"));
        let mut blocks = BTreeMap::new();
        let first = view.finalized().map(|at| at.number + 1);
        let first = first.or_else(|| Some(view.covered().first()?.start));
        if let (Some(first), Some(head)) = (first, view.head()) {
            for number in first..=head.number {
                blocks.insert(number, view.block(number).await.expect("read").expect("covered"));
            }
        }
        Self { changes, blocks, gaps: 0 }
    }

    /// Folds the received changes one by one, and compares the result with a fresh view.
    pub(crate) async fn receive(&mut self, chain: &Chain) {
        let mut last_added = Vec::new();
        while let Ok(change) = self.changes.try_recv() {
            assert!(!change.removed.is_empty() || !change.added.is_empty(), "a change of nothing");
            for block in &change.removed {
                // Replaced final blocks may have been announced before this listener began.
                let Some((number, known)) = self.blocks.pop_last() else { continue };
                assert_eq!((number, known.at), (block.at.number, block.at), "the highest first");
            }
            for block in &change.added {
                if let Some((number, below)) = self.blocks.last_key_value() {
                    if block.at.number > *number + 1 {
                        // Final blocks far behind the head are not announced.
                        self.blocks.clear();
                        self.blocks.insert(block.at.number, Arc::clone(block));
                        self.gaps += 1;
                        continue;
                    }
                    assert_eq!(*number + 1, block.at.number, "no block is passed over or twice");
                    assert_eq!(below.at.hash, block.at.parent_hash, "they link");
                }
                self.blocks.insert(block.at.number, Arc::clone(block));
            }
            last_added.clone_from(&change.added);
        }
        let view = chain.view().await.expect("it can be read");
        for block in last_added {
            let read = view.block(block.at.number).await.expect("read").expect("readable by now");
            assert_eq!(read, block, "announced blocks can be read");
        }
        let Some((first, _)) = self.blocks.first_key_value() else {
            return;
        };
        let last = *self.blocks.last_key_value().expect("some").0;
        let (head, finalized) = (view.head().expect("a head"), view.finalized());
        assert!(last <= head.number, "no announced block is missing");
        let near = finalized.map_or(0, |at| at.number);
        assert!(last == head.number || last < near && head.number == near, "{last} of {head:?}");
        for number in *first..=last {
            let read = view.block_ref(number).await.expect("read").expect("covered");
            let announced = self.blocks.get(&number).map(|block| block.at);
            assert_eq!(announced, Some(read), "block {number}");
        }
    }
}
