//! Wake-ups: not lost within a process, received by other processes, and batched into few messages.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use logmill_io::sql::{Waiter, Wakes};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;

/// Longer than a wake-up takes; a passing test does not wait this long.
const LONG: Duration = Duration::from_secs(10);

async fn woken(waiter: &mut Waiter) {
    tokio::time::timeout(LONG, waiter.wait()).await.expect("woken");
}

async fn still_waits(waiter: &mut Waiter) {
    let waiting = async {
        tokio::select! {
            biased;
            () = waiter.wait() => false,
            () = tokio::task::yield_now() => true,
        }
    };
    assert!(waiting.await, "it has not been woken");
}

#[tokio::test]
async fn a_wake_up_before_the_wait_is_not_lost_and_counts_once() {
    let sql = Database::memory().await.open().await;
    let wakes = Wakes::over(&sql, "test").await.expect("a channel");
    let mut waiter = wakes.waiter("a").expect("a waiter");
    let mut other = wakes.waiter("b").expect("a waiter");
    still_waits(&mut waiter).await;
    for _ in 0..3 {
        wakes.wake("a");
    }
    wakes.wake("a topic without a waiter");
    woken(&mut waiter).await;
    still_waits(&mut waiter).await;
    still_waits(&mut other).await;
    wakes.clone().wake("a");
    waiter.clear();
    still_waits(&mut waiter).await;
}

/// Counts the notifications of a channel with `psql`, while `during` runs.
async fn notifications(
    server: &PostgresServer,
    channel: &str,
    during: impl Future<Output = ()>,
) -> usize {
    let mut client = Command::new("psql")
        .args(["-X", "-q", "-A", "-t", &server.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("psql runs");
    let mut input = client.stdin.take().expect("piped");
    let mut lines = BufReader::new(client.stdout.take().expect("piped")).lines();
    writeln!(input, "LISTEN {channel};\nSELECT 'listening';").expect("it reads");
    assert!(lines.any(|line| line.expect("a line") == "listening"));
    during.await;
    // `psql` prints notifications after it has executed a statement.
    writeln!(input, "SELECT 'done';").expect("it reads");
    drop(input);
    let heard = lines.filter(|line| {
        let line = line.as_ref().expect("a line");
        line.starts_with("Asynchronous notification")
    });
    let heard = heard.count();
    assert!(client.wait().expect("it ends").success());
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_reach_other_processes_in_few_messages() {
    let server = PostgresServer::start();
    let database = Database::postgres(&server);
    let (sql, other) = (database.open().await, database.open().await);
    let wakes = Wakes::over(&sql, "test").await.expect("a channel");
    let others = Wakes::over(&other, "test").await.expect("a channel");
    let elsewhere = Wakes::over(&other, "another_channel").await.expect("a channel");
    let mut waiter = others.waiter("topic").expect("a waiter");
    let mut deaf = elsewhere.waiter("topic").expect("a waiter");
    let mut own = wakes.waiter("topic").expect("a waiter");
    waiter.clear();
    deaf.clear();
    let heard = notifications(&server, "test", async {
        for _ in 0..10_000 {
            wakes.wake("topic");
        }
        woken(&mut waiter).await;
        // This notification comes after all that are still in progress.
        let mut last = others.waiter("last").expect("a waiter");
        wakes.wake("last");
        woken(&mut last).await;
    });
    let heard = heard.await;
    assert!((2..10).contains(&heard), "{heard} messages for 10 000 wake-ups");
    still_waits(&mut deaf).await;

    // A waiter of the waking process is woken once, immediately, and not again by its own message.
    woken(&mut own).await;
    let mut back = wakes.waiter("back").expect("a waiter");
    others.wake("back");
    woken(&mut back).await;
    still_waits(&mut own).await;
}
