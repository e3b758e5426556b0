//! Billing cycles: valid definitions, their notation, and where their periods begin.

use logmill_io::Timestamp;
use proptest::prelude::*;

use super::{BUCKET_MS, PeriodKind, calendar, check};
use crate::period::{Cycle, CycleLength};

fn cycle(anchor: &str, length: &str) -> PeriodKind {
    PeriodKind::Custom(Cycle {
        name: "billing".to_owned(),
        anchor: anchor.parse().expect("an anchor"),
        length: length.parse().expect("a length"),
    })
}

#[test]
fn cycles_begin_at_their_anchor_and_go_both_ways() {
    for (zone, anchor, length, at, expected) in [
        (
            "UTC",
            "2026-01-15T00:00",
            "1 month",
            "2026-02-14T23:59:59.999Z",
            ("20260115T0000", "2026-01-15T00:00:00Z", "2026-02-15T00:00:00Z"),
        ),
        (
            "UTC",
            "2026-01-15T06:30",
            "3 months",
            "2025-12-31T00:00:00Z",
            ("20251015T0630", "2025-10-15T06:30:00Z", "2026-01-15T06:30:00Z"),
        ),
        // The last day of a month that is too short; then the anchor's day again.
        (
            "UTC",
            "2026-01-31T00:00",
            "1 month",
            "2026-03-01T00:00:00Z",
            ("20260228T0000", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"),
        ),
        (
            "UTC",
            "2024-02-29T00:00",
            "12 months",
            "2025-06-01T00:00:00Z",
            ("20250228T0000", "2025-02-28T00:00:00Z", "2026-02-28T00:00:00Z"),
        ),
        (
            "UTC",
            "2026-01-01T00:00",
            "30 days",
            "2026-01-31T00:00:00Z",
            ("20260131T0000", "2026-01-31T00:00:00Z", "2026-03-02T00:00:00Z"),
        ),
        (
            "UTC",
            "2026-01-05T12:00",
            "2 weeks",
            "2026-01-05T11:59:59Z",
            ("20251222T1200", "2025-12-22T12:00:00Z", "2026-01-05T12:00:00Z"),
        ),
    ] {
        check(zone, &cycle(anchor, length), at, expected);
    }
}

#[test]
fn cycles_follow_the_clocks_of_their_zone() {
    for (zone, anchor, length, at, expected) in [
        // Calendar days follow the clocks, hours do not.
        (
            "Europe/Berlin",
            "2026-03-28T08:00",
            "1 day",
            "2026-03-29T05:00:00Z",
            ("20260328T0800", "2026-03-28T07:00:00Z", "2026-03-29T06:00:00Z"),
        ),
        (
            "Europe/Berlin",
            "2026-03-28T08:00",
            "24 hours",
            "2026-03-29T06:30:00Z",
            ("20260328T0700Z", "2026-03-28T07:00:00Z", "2026-03-29T07:00:00Z"),
        ),
        (
            "Asia/Kathmandu",
            "2026-01-15T00:00",
            "6 hours",
            "2026-01-15T00:14:59Z",
            ("20260114T1815Z", "2026-01-14T18:15:00Z", "2026-01-15T00:15:00Z"),
        ),
        // A time that the clocks skip begins at the skip; one that they repeat begins the first time.
        (
            "Europe/Berlin",
            "2026-01-01T02:30",
            "1 day",
            "2026-03-29T01:00:00Z",
            ("20260329T0230", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"),
        ),
        (
            "Europe/Berlin",
            "2026-01-01T02:30",
            "1 day",
            "2026-10-25T01:30:00Z",
            ("20261025T0230", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
        ),
        // The day that Samoa skipped.
        (
            "Pacific/Apia",
            "2011-12-28T12:00",
            "1 day",
            "2011-12-30T09:00:00Z",
            ("20111229T1200", "2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z"),
        ),
        (
            "Pacific/Apia",
            "2011-12-28T12:00",
            "1 day",
            "2011-12-30T10:00:00Z",
            ("20111230T1200", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"),
        ),
    ] {
        check(zone, &cycle(anchor, length), at, expected);
    }
}

#[test]
fn keys_that_are_not_of_the_cycle_are_refused() {
    let monthly = cycle("2026-01-31T00:00", "1 month");
    let hours = cycle("2026-01-15T00:00", "6 hours");
    let utc = calendar("UTC");
    for key in [
        "20260131T0000Z",
        "20260228T0001",
        "20260327T0000",
        "20260229T0000",
        "20260131",
        "",
        "20260131T00000",
    ] {
        assert!(utc.period_of_key(&monthly, key).is_err(), "{key}");
    }
    for key in ["20260115T0000", "20260115T0100Z", "20260115t0000Z", "20260115T2400Z"] {
        assert!(utc.period_of_key(&hours, key).is_err(), "{key}");
    }
    assert!(utc.period_of_key(&hours, "20260115T0600Z").is_ok());
}

#[test]
fn settings_hold_names_and_cycles() {
    for kind in super::KINDS {
        let text = format!("\"{}\"", kind.name());
        assert_eq!(serde_json::to_string(&kind).expect("text"), text);
        assert_eq!(serde_json::from_str::<PeriodKind>(&text).expect("a kind"), kind);
    }
    let text = r#"{"name":"billing","anchor":"2026-01-15T00:00","length":"1 month"}"#;
    let kind: PeriodKind = serde_json::from_str(text).expect("a cycle");
    assert_eq!(kind, cycle("2026-01-15T00:00", "1 month"));
    assert_eq!(kind.name(), "billing");
    assert_eq!(serde_json::to_string(&kind).expect("text"), text);
    for text in [
        r#""fortnightly""#,
        r#""Daily""#,
        "7",
        r#"{"name":"x","anchor":"2026-01-15T00:00"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00","length":"1 month","zone":"UTC"}"#,
        r#"{"name":"x","anchor":"2026-01-15","length":"1 month"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00:00","length":"1 month"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00Z","length":"1 month"}"#,
        r#"{"name":"x","anchor":"2026-02-30T00:00","length":"1 month"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00","length":"1 year"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00","length":"month"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00","length":"-1 months"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00","length":"+1 months"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00","length":"70000 days"}"#,
        r#"{"name":"x","anchor":"2026-01-15T00:00","length":30}"#,
    ] {
        assert!(serde_json::from_str::<PeriodKind>(text).is_err(), "{text}");
    }
}

#[test]
fn cycles_that_cannot_be_metered_are_refused() {
    let check = |name: &str, anchor: &str, length: CycleLength| {
        let anchor = anchor.parse().expect("an anchor");
        PeriodKind::Custom(Cycle { name: name.to_owned(), anchor, length }).check()
    };
    let (anchor, month) = ("2026-01-15T00:00", CycleLength::Months(1));
    let long = "x".repeat(33);
    assert!(check("mid-month-15", anchor, month).is_ok());
    assert!(check("x", "2026-01-15T23:45", CycleLength::Hours(8_784)).is_ok());
    for name in ["", "daily", "hourly", "a_b", "A", "ä", "a b", &long] {
        assert!(check(name, anchor, month).is_err(), "{name}");
    }
    for anchor in [
        "2026-01-15T00:01",
        "2026-01-15T00:15:30",
        "2026-01-15T00:00:00.001",
        "-000001-01-15T00:00",
    ] {
        assert!(check("x", anchor, month).is_err(), "{anchor}");
    }
    for length in [
        CycleLength::Hours(0),
        CycleLength::Days(0),
        CycleLength::Weeks(0),
        CycleLength::Months(0),
        CycleLength::Hours(8_785),
        CycleLength::Days(3_661),
        CycleLength::Weeks(521),
        CycleLength::Months(121),
    ] {
        assert!(check("x", anchor, length).is_err(), "{length}");
    }
}

fn lengths() -> impl Strategy<Value = CycleLength> {
    prop_oneof![
        (1_u16..200).prop_map(CycleLength::Hours),
        (1_u16..100).prop_map(CycleLength::Days),
        (1_u16..10).prop_map(CycleLength::Weeks),
        (1_u16..30).prop_map(CycleLength::Months),
    ]
}

proptest! {
    #[test]
    fn cycles_cover_time_without_gap_or_overlap(
        quarter in 0_i64..4_000_000,
        at in 1_000_000_000_000_i64..3_000_000_000_000,
        length in lengths(),
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Pacific/Chatham", "Pacific/Apia"]),
    ) {
        let anchor = jiff::Timestamp::from_millisecond(quarter * BUCKET_MS).expect("a moment");
        let anchor = jiff::tz::Offset::UTC.to_datetime(anchor);
        let kind = PeriodKind::Custom(Cycle { name: "x".to_owned(), anchor, length });
        kind.check().expect("a cycle");
        let calendar = calendar(zone);
        let period = calendar.period_at(&kind, Timestamp(at)).expect("a period");
        prop_assert!(period.start.millis() <= at && at < period.end.millis());
        prop_assert_eq!(&calendar.period_of_key(&kind, &period.key).expect("its key"), &period);
        let next = calendar.next(&period).expect("next");
        prop_assert_eq!(next.start, period.end);
        prop_assert!(next.key > period.key);
        prop_assert_eq!(calendar.previous(&next).expect("back"), period);
    }
}

#[test]
fn lengths_are_written_as_they_are_read() {
    for text in
        ["1 hour", "6 hours", "1 day", "30 days", "1 week", "2 weeks", "1 month", "3 months"]
    {
        let length: CycleLength = text.parse().expect("a length");
        assert_eq!(length.to_string(), text);
    }
    let day: CycleLength = "1 days".parse().expect("a length");
    assert_eq!(day, CycleLength::Days(1));
}
