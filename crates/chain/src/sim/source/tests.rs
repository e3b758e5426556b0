//! Tests of the source over a simulated chain.

use logmill_io::{SeededEntropy, SimClock, Timestamp};

use super::*;
use crate::mismatch::Mismatch;
use crate::sim::Shape;

fn source(blocks: u64) -> (Arc<SimSource>, Arc<SimClock>) {
    let chain = SimChain::new(3, Shape::sparse());
    chain.grow(blocks);
    let clock = SimClock::at(Timestamp(0));
    (SimSource::new(chain, Arc::clone(&clock) as Arc<dyn Clock>, SeededEntropy::shared(3)), clock)
}

#[tokio::test(start_paused = true)]
async fn blocks_are_verified_and_linked_and_end_at_the_head() {
    let (source, _) = source(100);
    assert_eq!(source.info().await.expect("reachable").chain_id, 1_337);
    let heads = source.heads().await.expect("reachable");
    assert_eq!((heads.latest.number, heads.finalized.map(|at| at.number)), (100, Some(36)));
    let blocks = source.blocks(90..200).await.expect("some");
    assert_eq!(blocks.len(), 11);
    assert!(blocks.iter().all(|block| block.verified == VerifyLevel::Full));
    assert!(blocks.windows(2).all(|pair| pair[0].at.hash == pair[1].at.parent_hash));
    assert!(matches!(source.blocks(101..102).await, Err(Error::NotYet { number: 101 })));
    assert_eq!(source.blocks(5..5).await.expect("nothing is there"), []);
    let by_hash = source.block_by_hash(blocks[0].at.hash).await.expect("reachable");
    assert_eq!(by_hash.as_ref(), blocks.first());
    assert_eq!(source.block_by_hash(B256::ZERO).await.expect("reachable"), None);
}

#[tokio::test(start_paused = true)]
async fn slow_answers_take_the_clocks_time_and_every_third_call_fails() {
    let (source, clock) = source(10);
    let (delay, delay_more) = (Duration::from_secs(2), Duration::from_secs(1));
    source.set_faults(SimFaults { delay, delay_more, fail_every: 3, ..SimFaults::default() });
    let mut failed = Vec::new();
    for call in 1..=9u64 {
        if source.blocks(1..2).await.is_err() {
            failed.push(call);
        }
    }
    assert_eq!(failed, [3, 6, 9]);
    let passed = clock.monotonic();
    assert!(passed >= delay * 9 && passed < (delay + delay_more) * 9, "{passed:?}");
    assert_eq!(source.nodes()[0].failures, 3);
}

#[tokio::test(start_paused = true)]
async fn a_gap_cuts_the_answer_and_closes_after_a_while() {
    let (source, _) = source(20);
    source.set_faults(SimFaults { missing: [(8, 2)].into(), ..SimFaults::default() });
    assert_eq!(source.blocks(5..12).await.expect("some").len(), 3);
    assert!(matches!(source.blocks(8..12).await, Err(Error::Unavailable { .. })));
    assert_eq!(source.blocks(8..12).await.expect("all").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn blocks_below_the_floor_are_pruned() {
    let (source, _) = source(20);
    source.set_faults(SimFaults { floor: 10, ..SimFaults::default() });
    assert!(matches!(source.blocks(9..12).await, Err(Error::Pruned { number: 9 })));
    assert_eq!(source.blocks(10..12).await.expect("kept").len(), 2);
    let hash = source.chain().at(3).expect("grown").hash;
    assert!(matches!(source.block_by_hash(hash).await, Err(Error::Pruned { number: 3 })));
}

#[tokio::test(start_paused = true)]
async fn a_lie_is_a_mismatch_and_honest_blocks_before_it_are_returned() {
    let (source, _) = source(20);
    let lie = Some(Lie::WrongParent);
    source.set_faults(SimFaults { lie, lie_every: 4, ..SimFaults::default() });
    assert_eq!(source.blocks(1..10).await.expect("three are honest").len(), 3);
    source.set_faults(SimFaults { lie, ..SimFaults::default() });
    let error = source.blocks(1..10).await.expect_err("all are lies");
    assert!(
        matches!(
            error,
            Error::Mismatch {
                number: 1,
                mismatch: Mismatch::Field { field: "parent hash", .. },
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(source.nodes()[0].lies, 2);
}

#[tokio::test(start_paused = true)]
async fn a_reorg_between_two_calls_keeps_final_blocks() {
    let (source, _) = source(100);
    let before = source.heads().await.expect("reachable");
    source.set_faults(SimFaults { reorg_every: 2, reorg_depth: 900, ..SimFaults::default() });
    let after = source.heads().await.expect("reachable");
    assert_eq!(after.latest.number, 101);
    assert_eq!(source.chain().at(36), before.finalized);
    assert_ne!(source.chain().at(37).expect("grown").hash, after.latest.hash);
    assert!(!source.chain().is_canonical(before.latest.hash));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_a_change_since_the_last_heads_or_with_its_time() {
    let (source, clock) = source(5);
    source.heads().await.expect("reachable");
    source.changed(Duration::from_secs(60)).await;
    assert_eq!(clock.monotonic(), Duration::from_secs(60));
    source.chain().grow(1);
    source.changed(Duration::from_secs(60)).await;
    assert_eq!(clock.monotonic(), Duration::from_secs(60), "the change was before the wait");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lags_shows_an_older_head() {
    let (source, _) = source(100);
    source.set_faults(SimFaults { behind: 70, ..SimFaults::default() });
    let heads = source.heads().await.expect("reachable");
    assert_eq!((heads.latest.number, heads.finalized), (30, None));
    assert!(matches!(source.blocks(31..32).await, Err(Error::NotYet { number: 31 })));
}
