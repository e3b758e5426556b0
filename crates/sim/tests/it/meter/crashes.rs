//! The crash matrix of metering: die before or after any store operation of recording, aggregating, correcting, sealing
//! and archiving; the next process repeats everything, and the figures equal those of an undisturbed run.

use std::sync::Arc;

use logmill_io::{BlobStore, CrashMatrix, Faults, Timestamp, params};
use logmill_meter::correct::{Change, Correction};
use logmill_meter::record::ReceivedEvent;
use logmill_meter::{Decimal, Error, Meter};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::Queue;
use serde_json::json;

use super::world::{LEASE, aggregate, aggregates, blobs, event, open};
use crate::work::{in_real_time, simulate};

const START: i64 = 1_774_656_000_000;

fn batch(numbers: std::ops::Range<i64>) -> Vec<ReceivedEvent> {
    let received = numbers.map(|number| {
        let json = json!({
            "eventType": if number % 3 == 0 { "last" } else { "sum" },
            "customerId": format!("c{}", number % 2),
            "value": number,
            "id": format!("id{number}"),
            "timestamp": (START + number * 700_000).to_string(),
            "metadata": {"region": format!("r{}", number % 4)},
        });
        ReceivedEvent { event: event(&json), received_at: Timestamp(START + number) }
    });
    received.collect()
}

fn correction(number: i64, change: Change) -> Correction {
    Correction {
        source: "test".to_owned(),
        id: format!("id{number}"),
        change,
        reason: "a test".to_owned(),
        actor: "nobody".to_owned(),
    }
}

/// Everything that a meter does. Running it again changes nothing.
async fn life(meter: &Meter, queue: &Queue) -> Result<(), Error> {
    meter.record(batch(0..6)).await?;
    meter.record(batch(4..12)).await?;
    aggregate(meter, queue).await?;
    meter.run_housekeeping().await?;
    for (number, change) in [(5, Change::Cancel), (7, Change::Amend(Decimal::from_integer(1_000)))]
    {
        match meter.correct(&correction(number, change)).await {
            Err(error)
                if error.to_string().contains("already has this value or is already cancelled") => {
            }
            corrected => drop(corrected?),
        }
    }
    meter.record(batch(10..14)).await?;
    aggregate(meter, queue).await?;
    meter.run_housekeeping().await
}

/// The final result.
async fn image(meter: &Meter) -> String {
    let recounted = meter.recount(false, |_| {}).await.expect("a recount");
    assert_eq!(recounted.differences, Vec::<String>::new());
    let figures: Vec<(String, String, bool)> = aggregates(meter)
        .await
        .into_iter()
        .map(|aggregate| {
            let is_told = aggregate.state.name() != "provisional";
            (aggregate.id, aggregate.body, is_told)
        })
        .collect();
    // Every revision that is not provisional was announced once.
    let text = "SELECT count(*) FROM meter_revision WHERE state > 0";
    let told = meter.sql().query(text, params![]).await.expect("a count");
    let told = told.row().expect("a row").int(0).expect("a number");
    let text = "SELECT count(*) FROM webhook_message";
    let messages = meter.sql().query(text, params![]).await.expect("a count");
    assert_eq!(messages.row().expect("a row").int(0).expect("a number"), told);
    format!("{figures:?} {}", recounted.events)
}

async fn run(database: &Database, faults: Arc<Faults>) -> String {
    let plain = crate::work::open(database).await;
    let blobs: Arc<dyn BlobStore> = blobs();
    // The tables exist already; migrations have their own tests.
    open(&plain, &blobs).await.expect("a meter");
    let disturbed = plain.through(plain.sql().with_faults(faults));
    if let Ok(meter) = open(&disturbed, &blobs).await {
        let _ = life(&meter, &disturbed).await;
    }
    drop(disturbed);
    let restarted = crate::work::open(database).await;
    database.advance(LEASE * 2, &[restarted.sql()]);
    restarted.reap(logmill_meter::due::AGGREGATE_JOB).await.expect("a reaper");
    let meter = open(&restarted, &blobs).await.expect("a meter");
    life(&meter, &restarted).await.expect("nothing disturbs it");
    image(&meter).await
}

/// `most` operations, evenly spread: there are many, and most are alike.
async fn matrix<F: Future<Output = Database>>(fresh: impl Fn() -> F, most: u64) {
    let matrix = CrashMatrix::of_at_least(100).at_most(most).with_varying_runs();
    matrix.check(async |faults| run(&fresh().await, faults).await).await;
}

#[test]
fn on_sqlite_metering_survives_faults_at_any_operation() {
    simulate(matrix(Database::memory, 120));
}

#[test]
fn on_postgresql_metering_survives_faults_at_any_operation() {
    let server = PostgresServer::start();
    in_real_time(matrix(|| async { Database::postgres(&server) }, 8));
}
