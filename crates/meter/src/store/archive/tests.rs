//! Tests of the size limit of a blob of events.

use super::*;

fn event(seq: i64, metadata_bytes: usize) -> StoredEvent {
    let time = Timestamp(1_768_291_200_000);
    StoredEvent {
        seq,
        place: Place { series: 1, bucket: Bucket::of(time).0 },
        time,
        received: time,
        source: "s".to_owned(),
        id: seq.to_string(),
        value: Decimal::from_integer(seq),
        metadata: Some("x".repeat(metadata_bytes)),
        state: EventState::Recorded,
        content: seq,
    }
}

#[test]
fn a_blob_that_is_too_large_is_an_error_and_not_the_first_part_of_it() {
    let mut builder = SliceBuilder::default();
    for seq in 0..10 {
        assert!(builder.add(event(seq, 100), SLICE_BYTES).expect("a line"));
    }
    let bytes = builder.lines.len();
    let packed = pack(&builder.lines).expect("a blob");
    assert_eq!(unpack(&packed, bytes).expect("events"), builder.events);
    // Also if a line happens to end at the limit.
    let nine = unpack(&packed, bytes * 9 / 10).expect_err("it is too large");
    assert_eq!(nine.to_string(), too_large().to_string());
    assert!(unpack(&packed, bytes - 1).is_err());
}

#[test]
fn a_slice_ends_before_it_is_too_large_and_has_at_least_one_event() {
    let mut builder = SliceBuilder::default();
    assert!(builder.add(event(1, 2_000), 1_000).expect("a line"), "it has to be in some slice");
    assert!(!builder.add(event(2, 1), 1_000).expect("a line"));
    assert_eq!(builder.events.len(), 1);
    let packed = pack(&builder.lines).expect("a blob");
    assert_eq!(unpack(&packed, BLOB_BYTES_MAX).expect("events"), builder.events);
    let mut builder = SliceBuilder::default();
    let added = (0..).take_while(|seq| builder.add(event(*seq, 1), SLICE_BYTES).expect("a line"));
    assert_eq!(added.count(), EVENTS_PER_SLICE);
}
