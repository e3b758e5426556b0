//! Tests of batch sizes.

use super::*;

#[test]
fn batches_grow_with_the_distance_from_the_head() {
    let settings = IngestSettings::default();
    for (behind, expected) in
        [(0, 1), (1, 1), (3, 1), (4, 4), (20, 5), (21, 10), (100, 10), (101, 64)]
    {
        assert_eq!(batch_size(&settings, behind), expected, "{behind} behind");
    }
    let large = IngestSettings { latest_batch: 200, ..IngestSettings::default() };
    assert_eq!(batch_size(&large, 1_000), 64);
    assert_eq!(batch_size(&large, 2), 2);
}
