//! Every slot has one job, regardless of which process ticks and how long all were down.

use std::time::Duration;

use logmill_io::sql::SqliteSettings;
use logmill_io::{SeededEntropy, SimClock, Sql, Timestamp};
use logmill_sim::{Database, START};
use logmill_work::{Cron, MissedRuns, Queue, SLOTS_PER_TICK, Schedule, State};

use super::{in_real_time, on_both, open, simulate};

fn quarter_hours(missed: MissedRuns) -> Schedule {
    Schedule::new("aggregate", "cron", "*/15 * * * *", "UTC", missed).expect("a fine schedule")
}

async fn slots(queue: &Queue) -> Vec<i64> {
    let jobs = queue.list("cron", State::Pending, None, 1_000).await.expect("works");
    let slot = |key: &str| key.rsplit('@').next().and_then(|slot| slot.parse().ok());
    let mut slots: Vec<i64> = jobs.iter().filter_map(|job| slot(&job.key)).collect();
    slots.sort_unstable();
    slots
}

#[test]
fn slots_missed_while_no_process_ran_are_caught_up_once() {
    on_both(|database| async move {
        let queue = open(&database).await;
        let cron = Cron::new(queue.clone(), quarter_hours(MissedRuns::Each));
        cron.start(None).await.expect("works");
        assert_eq!(cron.tick().await.expect("works").0, 0);
        database.advance(Duration::from_secs(24 * 3_600), &[queue.sql()]);
        // Another process starts after a day; starting it again skips nothing.
        let restarted = Cron::new(queue.clone(), quarter_hours(MissedRuns::Each));
        restarted.start(None).await.expect("works");
        let (handed, next) = restarted.tick().await.expect("works");
        assert_eq!(handed, 96);
        assert!(next.is_some_and(|next| next <= Duration::from_secs(900)), "{next:?}");
        assert_eq!(cron.tick().await.expect("works").0, 0, "once");
        let slots = slots(&queue).await;
        assert_eq!(slots.len(), 96);
        assert!(slots.windows(2).all(|pair| pair[1] - pair[0] == 900_000), "no slot is missing");
    });
}

#[test]
fn only_the_newest_slot_is_run_if_so_configured() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        let cron = Cron::new(queue.clone(), quarter_hours(MissedRuns::Newest));
        cron.start(None).await.expect("works");
        database.advance(Duration::from_secs(24 * 3_600), &[queue.sql()]);
        assert_eq!(cron.tick().await.expect("works").0, 1);
        assert_eq!(cron.tick().await.expect("works").0, 0);
    });
}

#[test]
fn a_long_absence_is_caught_up_in_bounded_steps() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        let cron = Cron::new(queue.clone(), quarter_hours(MissedRuns::Each));
        let since = Timestamp(START.millis() - 900_000 * 2_500);
        cron.start(Some(since)).await.expect("works");
        let mut total = 0;
        for _ in 0..3 {
            let (handed, next) = cron.tick().await.expect("works");
            assert!(handed <= SLOTS_PER_TICK);
            if handed == SLOTS_PER_TICK {
                assert_eq!(next, Some(Duration::ZERO), "there is more to do at once");
            }
            total += handed;
        }
        assert_eq!(total, 2_500);
    });
}

#[test]
fn concurrent_ticks_enqueue_each_slot_once() {
    let server = logmill_sim::postgres::PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let mut crons = Vec::new();
        for _ in 0..4 {
            let queue = open(&database).await;
            crons.push(Cron::new(queue, quarter_hours(MissedRuns::Each)));
        }
        for cron in &crons {
            cron.start(Some(Timestamp(0))).await.expect("works");
        }
        // Since 1970 there are enough slots.
        let ticking = crons.iter().map(|cron| async { cron.tick().await.expect("works").0 });
        let handed: usize = futures::future::join_all(ticking).await.into_iter().sum();
        assert_eq!(handed, 4 * SLOTS_PER_TICK);
        let queue = open(&database).await;
        let counts = queue.counts().await.expect("works");
        assert_eq!(
            counts.iter().map(|count| count.jobs).collect::<Vec<_>>(),
            [4 * SLOTS_PER_TICK as u64]
        );
    });
}

#[test]
fn a_running_cron_sleeps_until_its_slots() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        let cron = Cron::new(queue.clone(), quarter_hours(MissedRuns::Each));
        let four_hours = tokio::time::timeout(Duration::from_secs(4 * 3_600), cron.run()).await;
        assert!(four_hours.is_err(), "it runs forever");
        assert_eq!(slots(&queue).await.len(), 16);
    });
}

#[test]
fn a_clock_that_was_ahead_for_a_while_does_not_stop_a_schedule() {
    simulate(async {
        let clock = SimClock::at(START);
        let memory = SqliteSettings::memory();
        let sql = Sql::sqlite(&memory, clock.clone(), SeededEntropy::shared(1)).await;
        let queue = Queue::open(sql.expect("a database")).await.expect("a queue");
        let cron = Cron::new(queue.clone(), quarter_hours(MissedRuns::Newest));
        cron.start(None).await.expect("works");
        const HOUR_MS: i64 = 3_600_000;
        const WEEK_MS: i64 = 7 * 24 * HOUR_MS;
        let mut handed = Vec::new();
        for jump_ms in [WEEK_MS, -WEEK_MS, HOUR_MS, -HOUR_MS, HOUR_MS, HOUR_MS] {
            clock.jump(jump_ms);
            handed.push(cron.tick().await.expect("works").0);
            let (_, next) = cron.tick().await.expect("works");
            assert!(next.is_some_and(|next| next <= Duration::from_secs(900)), "{next:?}");
        }
        assert_eq!(handed, [1, 0, 1, 0, 1, 1]);
        // The week, and two hours; the hour that came twice has one job.
        assert_eq!(slots(&queue).await.len(), 3);
    });
}
