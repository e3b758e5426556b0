//! Clock changes: hours and days of zones at every change of their offset, against another library.

use chrono::{DateTime, Datelike, Offset, TimeZone, Timelike, Utc};
use logmill_io::Timestamp;

use super::{BUCKET_MS, PeriodKind, calendar, check, time};

/// Zones, and the year up to which both libraries have the same rules for them.
pub(super) const ZONES: [(&str, i32); 16] = [
    ("UTC", 2037),
    ("Europe/Berlin", 2037),
    ("Europe/London", 2037),
    ("America/New_York", 2037),
    ("America/Sao_Paulo", 2037),
    ("America/Caracas", 2037),
    ("America/St_Johns", 2037),
    ("Australia/Lord_Howe", 2037),
    ("Australia/Adelaide", 2037),
    ("Asia/Kathmandu", 2037),
    ("Asia/Kolkata", 2037),
    ("Asia/Pyongyang", 2037),
    ("Pacific/Chatham", 2037),
    ("Pacific/Apia", 2037),
    ("Pacific/Kiritimati", 2037),
    ("Africa/Casablanca", 2025),
];

const HOUR_MS: i64 = 3_600_000;
/// Range around a change in which hours are compared.
const AROUND_MS: i64 = 5 * HOUR_MS;

/// The local date and hour according to the other library, and the offset from UTC in seconds.
fn shown(zone: chrono_tz::Tz, millis: i64) -> (String, i32) {
    let utc: DateTime<Utc> = DateTime::from_timestamp_millis(millis).expect("a moment");
    let local = zone.from_utc_datetime(&utc.naive_utc());
    let (date, hour) = (local.date_naive(), local.hour());
    let text = format!("{:04}{:02}{:02}{hour:02}", date.year(), date.month(), date.day());
    (text, local.offset().fix().local_minus_utc())
}

/// The moments at which the offset of a zone changes; `None` for a change that is not on a quarter of an hour.
fn changes(zone: chrono_tz::Tz, last_year: i32) -> Vec<Option<i64>> {
    let offset = |millis: i64| shown_offset(zone, millis);
    let end = i64::from(last_year - 1970) * 8_766 * HOUR_MS;
    let mut changes = Vec::new();
    let step = 12 * HOUR_MS;
    let mut before = offset(0);
    for at in (step..end).step_by(usize::try_from(step).expect("small")) {
        let after = offset(at);
        if after != before {
            let quarters = (at - step..=at).step_by(900_000);
            let change = quarters.into_iter().find(|&quarter| offset(quarter) == after);
            let change = change.expect("it changed");
            // If the change is on the quarter hour, the old offset still holds one millisecond before it.
            changes.push((offset(change - 1) == before).then_some(change));
            before = after;
        }
    }
    changes
}

fn shown_offset(zone: chrono_tz::Tz, millis: i64) -> i32 {
    let utc: DateTime<Utc> = DateTime::from_timestamp_millis(millis).expect("a moment");
    zone.offset_from_utc_datetime(&utc.naive_utc()).fix().local_minus_utc()
}

/// Key, start and exclusive end.
type Expected = (String, i64, i64);

/// The hours between two moments, found by reading the clocks every quarter hour; those at the ends are cut.
fn hours_by_looking(zone: chrono_tz::Tz, from: i64, to: i64) -> Vec<Expected> {
    let mut runs: Vec<(String, i32, i64, i64)> = Vec::new();
    for at in (from..to).step_by(900_000) {
        let (hour, offset) = shown(zone, at);
        match runs.last_mut() {
            Some(run) if run.0 == hour && run.1 == offset => run.3 = at + BUCKET_MS,
            _ => runs.push((hour, offset, at, at + BUCKET_MS)),
        }
    }
    let key = |at: usize| {
        let same: Vec<_> = (0..runs.len()).filter(|&other| runs[other].0 == runs[at].0).collect();
        let place = same.iter().position(|&other| other == at).expect("itself");
        let suffix = if same.len() == 1 { "" } else { ["a", "b"][place] };
        format!("{}{suffix}", runs[at].0)
    };
    (0..runs.len()).map(|at| (key(at), runs[at].2, runs[at].3)).collect()
}

/// The days between two moments, found by reading the clocks every quarter hour: a day begins when its date is first
/// shown, even if the clocks then go back over midnight.
fn days_by_looking(zone: chrono_tz::Tz, from: i64, to: i64) -> Vec<Expected> {
    let mut days: Vec<Expected> = Vec::new();
    for at in (from..to).step_by(900_000) {
        let day = shown(zone, at).0[..8].to_owned();
        match days.last_mut() {
            Some(last) if last.0 >= day => last.2 = at + BUCKET_MS,
            _ => days.push((day, at, at + BUCKET_MS)),
        }
    }
    days
}

/// The periods between two moments; those at the ends are cut.
fn periods(zone: &str, kind: &PeriodKind, from: i64, to: i64) -> Vec<Expected> {
    let calendar = calendar(zone);
    let periods = calendar.periods(kind, Timestamp(from), Timestamp(to));
    periods
        .map(|period| {
            let period = period.expect("a period");
            assert_eq!(calendar.period_of_key(kind, &period.key).expect("its key"), period);
            (period.key, period.start.millis().max(from), period.end.millis().min(to))
        })
        .collect()
}

#[test]
fn hours_and_days_at_every_change_of_the_clocks_agree_with_another_library() {
    let mut compared = 0;
    for (name, last_year) in ZONES {
        let zone: chrono_tz::Tz = name.parse().expect("a zone");
        let changes = changes(zone, last_year);
        assert_eq!(changes.is_empty(), ["UTC", "Asia/Kolkata"].contains(&name), "{name}");
        for change in changes.iter().flatten().copied().filter(|&at| is_on_grid(zone, at)) {
            let (from, to) = (change - AROUND_MS, change + AROUND_MS);
            let hours = periods(name, &PeriodKind::Hourly, from, to);
            assert_eq!(hours, hours_by_looking(zone, from, to), "{name} {change}");
            let (from, to) = (change - 30 * HOUR_MS, change + 30 * HOUR_MS);
            let days = periods(name, &PeriodKind::Daily, from, to);
            assert_eq!(days, days_by_looking(zone, from, to), "{name} {change}");
            compared += 1;
        }
    }
    assert!(compared > 900, "{compared} changes");
}

/// Whether local quarter hours coincide with those of UTC, before and after a change.
fn is_on_grid(zone: chrono_tz::Tz, change: i64) -> bool {
    [change - 1, change].iter().all(|&at| shown_offset(zone, at) % 900 == 0)
}

#[test]
fn days_have_23_and_25_hours_where_clocks_are_set() {
    for (zone, at, hours) in [
        ("Europe/Berlin", "2026-03-29T12:00:00Z", 23),
        ("Europe/Berlin", "2026-10-25T12:00:00Z", 25),
        ("Europe/Berlin", "2026-06-01T12:00:00Z", 24),
        ("America/New_York", "2026-03-08T12:00:00Z", 23),
        ("America/New_York", "2026-11-01T12:00:00Z", 25),
        ("America/Sao_Paulo", "2018-11-04T12:00:00Z", 23),
        ("America/Sao_Paulo", "2018-02-17T12:00:00Z", 25),
        ("Asia/Kathmandu", "2026-03-29T12:00:00Z", 24),
    ] {
        let day = calendar(zone).period_at(&PeriodKind::Daily, time(at)).expect("a day");
        assert_eq!(day.end.millis() - day.start.millis(), hours * HOUR_MS, "{zone} {at}");
        assert_eq!(day.buckets().count(), usize::try_from(hours * 4).expect("small"));
    }
}

#[test]
fn an_hour_that_repeats_has_two_keys() {
    let hourly = &PeriodKind::Hourly;
    for (zone, at, expected) in [
        (
            "Europe/Berlin",
            "2026-10-24T23:30:00Z",
            ("2026102501", "2026-10-24T23:00:00Z", "2026-10-25T00:00:00Z"),
        ),
        (
            "Europe/Berlin",
            "2026-10-25T00:30:00Z",
            ("2026102502a", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"),
        ),
        (
            "Europe/Berlin",
            "2026-10-25T01:30:00Z",
            ("2026102502b", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"),
        ),
        (
            "Europe/Berlin",
            "2026-10-25T02:30:00Z",
            ("2026102503", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"),
        ),
        (
            "Europe/Berlin",
            "2026-03-29T01:00:00Z",
            ("2026032903", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"),
        ),
        // Half an hour is shown twice.
        (
            "Australia/Lord_Howe",
            "2026-04-04T14:45:00Z",
            ("2026040501a", "2026-04-04T14:00:00Z", "2026-04-04T15:00:00Z"),
        ),
        (
            "Australia/Lord_Howe",
            "2026-04-04T15:15:00Z",
            ("2026040501b", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"),
        ),
        // Half an hour is not shown.
        (
            "Australia/Lord_Howe",
            "2026-10-03T15:45:00Z",
            ("2026100402", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"),
        ),
        (
            "Asia/Kathmandu",
            "2026-01-13T08:00:00Z",
            ("2026011313", "2026-01-13T07:15:00Z", "2026-01-13T08:15:00Z"),
        ),
        (
            "Asia/Kolkata",
            "2026-01-13T08:00:00Z",
            ("2026011313", "2026-01-13T07:30:00Z", "2026-01-13T08:30:00Z"),
        ),
    ] {
        check(zone, hourly, at, expected);
    }
    let berlin = calendar("Europe/Berlin");
    for key in
        ["2026102502", "2026102502c", "2026102502A", "2026102503a", "2026032902", "2026032902a"]
    {
        assert!(berlin.period_of_key(hourly, key).is_err(), "{key}");
    }
}

#[test]
fn a_day_that_a_zone_left_out_does_not_exist() {
    // Samoa crossed the date line and had no 30 December 2011.
    let daily = &PeriodKind::Daily;
    let (before, after) = ("2011-12-30T09:59:59.999Z", "2011-12-30T10:00:00Z");
    let start = "2011-12-29T10:00:00Z";
    check("Pacific/Apia", daily, before, ("20111229", start, after));
    check("Pacific/Apia", daily, after, ("20111231", after, "2011-12-31T10:00:00Z"));
    let apia = calendar("Pacific/Apia");
    assert!(apia.period_of_key(daily, "20111230").is_err());
    let week = apia.period_of_key(&PeriodKind::Weekly, "201152").expect("a week");
    assert_eq!(week.buckets().count(), 6 * 96);
}

#[test]
fn midnight_that_is_skipped_or_repeated_has_one_beginning() {
    let daily = &PeriodKind::Daily;
    for (zone, at, expected) in [
        // Clocks go from 24:00 to 01:00.
        (
            "America/Sao_Paulo",
            "2018-11-04T03:00:00Z",
            ("20181104", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),
        ),
        // Clocks go from 00:01 back to 23:01: the day begins the first time.
        (
            "America/St_Johns",
            "2010-11-07T03:00:00Z",
            ("20101107", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"),
        ),
    ] {
        check(zone, daily, at, expected);
    }
}

#[test]
fn clocks_that_are_off_the_grid_are_refused_for_that_period_only() {
    // Liberia was 44 minutes and 30 seconds behind UTC until 1972.
    let monrovia = calendar("Africa/Monrovia");
    let daily = &PeriodKind::Daily;
    let refused =
        monrovia.period_at(daily, time("1971-06-01T12:00:00Z")).expect_err("off the grid");
    let text = refused.to_string();
    assert!(text.contains("Africa/Monrovia") && text.contains("quarter hour"), "{text}");
    assert!(monrovia.period_at(&PeriodKind::Hourly, time("1971-06-01T12:00:00Z")).is_err());
    assert!(monrovia.period_of_key(daily, "19710601").is_err());
    assert!(monrovia.period_at(daily, time("1973-06-01T12:00:00Z")).is_ok());
    // Before time zones, each town had its own time.
    let berlin = calendar("Europe/Berlin");
    assert!(berlin.period_at(daily, time("1890-06-01T12:00:00Z")).is_err());
    assert!(berlin.period_at(daily, time("1894-06-01T12:00:00Z")).is_ok());
    // Newfoundland changed its clocks at one minute past midnight, so an hour there ended off the grid.
    let st_johns = calendar("America/St_Johns");
    let change = time("2010-11-07T02:31:00Z");
    assert!(st_johns.period_at(&PeriodKind::Hourly, change).is_err());
    assert!(
        st_johns.period_at(&PeriodKind::Hourly, Timestamp(change.millis() + 2 * HOUR_MS)).is_ok()
    );
}
