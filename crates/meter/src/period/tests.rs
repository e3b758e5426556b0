//! Tests of periods: calendars against an independent library, keys and cycles.

mod clocks;
mod cycles;

use chrono::{Datelike, NaiveDate};
use logmill_io::Timestamp;
use proptest::prelude::*;

use super::{
    BUCKET_MS, Bucket, Calendar, Period, PeriodFields, PeriodKind, format_time, parse_time,
};

const KINDS: [PeriodKind; 5] = [
    PeriodKind::Hourly,
    PeriodKind::Daily,
    PeriodKind::Weekly,
    PeriodKind::Monthly,
    PeriodKind::Yearly,
];

fn time(text: &str) -> Timestamp {
    parse_time(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn calendar(zone: &str) -> Calendar {
    Calendar::new(zone).unwrap_or_else(|error| panic!("{zone}: {error}"))
}

/// Checks the period that contains a moment: its key, start and exclusive end.
#[track_caller]
fn check(zone: &str, kind: &PeriodKind, at: &str, expected: (&str, &str, &str)) -> Period {
    let calendar = calendar(zone);
    let period = calendar.period_at(kind, time(at)).expect("a period");
    let found = (period.key.as_str(), format_time(period.start), format_time(period.end));
    let (key, start, end) = expected;
    assert_eq!(found, (key, format_time(time(start)), format_time(time(end))), "{zone} {at}");
    assert_eq!(calendar.period_of_key(kind, key).expect("its key"), period);
    assert_eq!(calendar.previous(&calendar.next(&period).expect("next")).expect("back"), period);
    period
}

#[test]
fn the_example_of_the_seed_has_its_fields_and_periods() {
    let at = "2026-01-13T08:00:00.000Z";
    let fields = PeriodFields::of(time(at)).expect("fields");
    let expected = ["202601130800", "2026011308", "20260113", "202603", "202601", "2026"];
    let found = [fields.minute, fields.hour, fields.day, fields.week, fields.month, fields.year];
    assert_eq!(found, expected);
    for (kind, key, start, last) in [
        (PeriodKind::Hourly, "2026011308", at, "2026-01-13T08:59:59.999Z"),
        (PeriodKind::Daily, "20260113", "2026-01-13T00:00:00Z", "2026-01-13T23:59:59.999Z"),
        (PeriodKind::Weekly, "202603", "2026-01-12T00:00:00Z", "2026-01-18T23:59:59.999Z"),
        (PeriodKind::Monthly, "202601", "2026-01-01T00:00:00Z", "2026-01-31T23:59:59.999Z"),
        (PeriodKind::Yearly, "2026", "2026-01-01T00:00:00Z", "2026-12-31T23:59:59.999Z"),
    ] {
        let end = format_time(Timestamp(time(last).millis() + 1));
        let period = check("UTC", &kind, at, (key, start, &end));
        assert_eq!(format_time(period.end_inclusive()), last);
        let buckets = period.buckets();
        assert_eq!(Bucket(buckets.start).start(), period.start);
        assert_eq!(Bucket(buckets.end - 1).end(), period.end);
    }
}

#[test]
fn a_sunday_is_in_the_week_that_ends_with_it() {
    for (at, key, monday) in [
        ("2026-01-18T23:59:59.999Z", "202603", "2026-01-12T00:00:00Z"),
        ("2026-01-19T00:00:00Z", "202604", "2026-01-19T00:00:00Z"),
        ("2024-12-29T12:00:00Z", "202452", "2024-12-23T00:00:00Z"),
        ("2024-12-30T00:00:00Z", "202501", "2024-12-30T00:00:00Z"),
        ("2021-01-03T23:00:00Z", "202053", "2020-12-28T00:00:00Z"),
        ("2021-01-04T00:00:00Z", "202101", "2021-01-04T00:00:00Z"),
        ("2027-01-01T00:00:00Z", "202653", "2026-12-28T00:00:00Z"),
        ("2023-01-01T00:00:00Z", "202252", "2022-12-26T00:00:00Z"),
    ] {
        let end = format_time(Timestamp(time(monday).millis() + 7 * 96 * BUCKET_MS));
        check("UTC", &PeriodKind::Weekly, at, (key, monday, &end));
        assert_eq!(PeriodFields::of(time(at)).expect("fields").week, key);
    }
}

#[test]
fn iso_weeks_and_days_agree_with_another_library() {
    let utc = calendar("UTC");
    let mut day = NaiveDate::from_ymd_opt(1970, 1, 1).expect("a day");
    while day.year() <= 2100 {
        let start = day.and_hms_opt(0, 0, 0).expect("midnight").and_utc().timestamp_millis();
        let fields = PeriodFields::of(Timestamp(start + 86_399_999)).expect("fields");
        let week = format!("{:04}{:02}", day.iso_week().year(), day.iso_week().week());
        assert_eq!(fields.week, week, "{day}");
        assert_eq!(fields.day, day.format("%Y%m%d").to_string(), "{day}");
        if day.day() % 7 == 1 {
            let period = utc.period_at(&PeriodKind::Weekly, Timestamp(start)).expect("a week");
            let monday = day.week(chrono::Weekday::Mon).first_day();
            let monday = monday.and_hms_opt(0, 0, 0).expect("midnight").and_utc();
            assert_eq!((period.key, period.start.millis()), (week, monday.timestamp_millis()));
        }
        day = day.succ_opt().expect("a day");
    }
}

#[test]
fn moments_are_read_and_printed() {
    for (text, expected) in [
        ("2026-01-13T08:00:00Z", "2026-01-13T08:00:00.000Z"),
        ("2026-01-13T08:00:00.5Z", "2026-01-13T08:00:00.500Z"),
        ("2026-01-13t08:00:00z", "2026-01-13T08:00:00.000Z"),
        ("2026-01-13 09:45:00+01:45", "2026-01-13T08:00:00.000Z"),
        ("2026-01-12T20:00:00.123456789-12:00", "2026-01-13T08:00:00.123Z"),
        ("2026-01-13T08:59:59.999999Z", "2026-01-13T08:59:59.999Z"),
        ("1969-12-31T23:59:59.9999Z", "1969-12-31T23:59:59.999Z"),
        ("1768291200000", "2026-01-13T08:00:00.000Z"),
        ("-1", "1969-12-31T23:59:59.999Z"),
        ("0", "1970-01-01T00:00:00.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-30T21:59:59.999Z", "9999-12-30T21:59:59.999Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000Z"),
    ] {
        assert_eq!(format_time(time(text)), expected, "{text}");
    }
    for text in [
        "",
        " ",
        "now",
        "2026-01-13",
        "2026-01-13T08:00Z",
        "2026-01-13T08:00:00",
        "20260113T080000Z",
        "2026-01-13T08:00:00.Z",
        "2026-01-13T08:00:00,5Z",
        "2026-01-13T08:00:00+0100",
        "2026-01-13T08:00:00+01",
        "2026-01-13T08:00:00Z[UTC]",
        "2026-02-30T00:00:00Z",
        "2025-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-13T24:00:00Z",
        "2026-01-13T08:60:00Z",
        "2026-01-13T08:00:00.1234567890Z",
        "0000-12-31T23:59:59Z",
        "+2026-01-13T08:00:00Z",
        "-2026-01-13T08:00:00Z",
        "1e3",
        "1.5",
        "+5",
        "-",
        "--1",
        "0x10",
        "99999999999999999999",
        "9223372036854775807",
        "-9223372036854775808",
        "2026-01-13T08:00:00.000000000000000000000Z",
        "２026-01-13T08:00:00Z",
    ] {
        assert!(parse_time(text).is_err(), "{text}");
    }
}

#[test]
fn an_invalid_key_is_refused() {
    let utc = calendar("UTC");
    for (kind, keys) in [
        (
            PeriodKind::Hourly,
            &["20260113", "2026011324", "2026011308a", "202601130800", "2026011308+0"][..],
        ),
        (
            PeriodKind::Daily,
            &["", "2026011", "202601130", "20260230", "+2026113", "2026 113", "２０２６"],
        ),
        (PeriodKind::Weekly, &["202600", "202554", "202553", "2026W3", "2026", "2026031"]),
        (PeriodKind::Monthly, &["202600", "202613", "2026-1", "20261"]),
        (PeriodKind::Yearly, &["0000", "-001", "02026", "26", "99999", "9999"]),
    ] {
        for key in keys {
            assert!(utc.period_of_key(&kind, key).is_err(), "{key}");
        }
    }
}

#[test]
fn zones_are_named_by_iana_names() {
    assert_eq!(calendar("europe/berlin").zone(), "Europe/Berlin");
    assert_eq!(calendar("UTC").zone(), "UTC");
    for name in ["", "Mars/Olympus", "+02:00", "../etc/passwd", "CET-1CEST", "\0"] {
        assert!(Calendar::new(name).is_err(), "{name}");
    }
    let long = Calendar::new(&"x".repeat(100_000)).expect_err("no zone");
    assert!(long.to_string().len() < 200);
}

#[test]
fn moments_outside_of_the_calendar_are_refused() {
    let utc = calendar("UTC");
    for millis in [i64::MIN, -62_135_596_800_001, 253_402_300_800_000, i64::MAX] {
        for kind in &KINDS {
            assert!(utc.period_at(kind, Timestamp(millis)).is_err(), "{millis} {}", kind.name());
        }
        assert!(PeriodFields::of(Timestamp(millis)).is_err(), "{millis}");
        assert_eq!(format_time(Timestamp(millis)), millis.to_string());
    }
    assert_eq!(Bucket(i64::MAX).end(), Timestamp(i64::MAX));
}

#[test]
fn periods_of_a_range_are_those_that_touch_it() {
    let utc = calendar("UTC");
    let keys = |from: &str, to: &str| -> Vec<_> {
        let periods = utc.periods(&PeriodKind::Daily, time(from), time(to));
        periods.map(|period| period.expect("a day").key).collect()
    };
    let (noon, midnight) = ("2026-02-27T12:00:00Z", "2026-03-02T00:00:00Z");
    assert_eq!(keys(noon, midnight), ["20260227", "20260228", "20260301"]);
    assert_eq!(keys(noon, "2026-03-02T00:00:00.001Z").len(), 4);
    assert_eq!(keys(noon, noon), [""; 0]);
    assert_eq!(keys(midnight, noon), [""; 0]);
    let end = Timestamp(253_402_300_799_999);
    let last: Vec<_> = utc.periods(&PeriodKind::Daily, end, Timestamp(i64::MAX)).collect();
    assert!(matches!(last[..], [Err(_)]));
}

proptest! {
    #[test]
    fn each_moment_is_in_one_period_that_its_key_leads_back_to(
        millis in 0_i64..4_102_444_800_000,
        kind in prop::sample::select(KINDS.to_vec()),
        zone in prop::sample::select(clocks::ZONES.map(|(zone, _)| zone).to_vec()),
    ) {
        let calendar = calendar(zone);
        // Offsets off the grid are an error; clocks.rs tests those.
        let Ok(period) = calendar.period_at(&kind, Timestamp(millis)) else {
            prop_assert!(millis < 1_000_000_000_000);
            return Ok(());
        };
        prop_assert!(period.start.millis() <= millis && millis < period.end.millis());
        prop_assert_eq!(period.start.millis() % BUCKET_MS, 0);
        prop_assert_eq!(period.end.millis() % BUCKET_MS, 0);
        prop_assert_eq!(&calendar.period_of_key(&kind, &period.key).expect("its key"), &period);
        prop_assert_eq!(&calendar.period_at(&kind, period.start).expect("its start"), &period);
        prop_assert_eq!(&calendar.period_at(&kind, period.end_inclusive()).expect("its end"), &period);
        if let Ok(next) = calendar.next(&period) {
            prop_assert_eq!(next.start, period.end);
            prop_assert!(next.key > period.key);
            prop_assert_eq!(calendar.previous(&next).expect("back"), period);
        }
    }

    #[test]
    fn any_text_is_a_key_or_refused_without_a_panic(
        key in "[0-9]{4,12}[a-z]?|.{0,16}|[0-9]{8}T[0-9]{4}Z?",
        kind in prop::sample::select(KINDS.to_vec()),
    ) {
        let berlin = calendar("Europe/Berlin");
        if let Ok(period) = berlin.period_of_key(&kind, &key) {
            prop_assert_eq!(&period.key, &key);
            prop_assert_eq!(berlin.period_at(&kind, period.start).expect("its start"), period);
        }
    }

    #[test]
    fn moments_print_and_read_back(millis in -62_135_596_800_000_i64..253_402_207_200_000) {
        let text = format_time(Timestamp(millis));
        prop_assert_eq!(text.len(), 24);
        prop_assert_eq!(time(&text), Timestamp(millis));
    }

    #[test]
    fn any_text_is_a_moment_or_refused_without_a_panic(text in "[-0-9TZ:.+ ]{0,42}|.{0,42}") {
        if let Ok(moment) = parse_time(&text) {
            prop_assert_eq!(time(&format_time(moment)), moment);
        }
    }
}
