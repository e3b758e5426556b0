//! Trial: records usage through the library, on SQLite or PostgreSQL.

use std::sync::Arc;
use std::time::Instant;

use logmill_io::blob::MemoryBlobs;
use logmill_io::sql::{PostgresSettings, SqliteSettings};
use logmill_io::{BlobStore, Clock as _, OsEntropy, Sql, SystemClock};
use logmill_meter::event::{Incoming, Sender};
use logmill_meter::record::Arrived;
use logmill_meter::settings::{EventType, Op};
use logmill_meter::webhooks::Webhooks;
use logmill_meter::{Meter, Recorder, Settings};
use logmill_work::Queue;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let total: usize = args[1].parse()?;
    let batch: usize = args[2].parse()?;
    let tasks: usize = args[3].parse()?;
    let customers: usize = args[4].parse()?;
    let folder = tempfile::tempdir_in(".")?;
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let _server;
    let sql = if args.get(5).map(String::as_str) == Some("pg") {
        let durability = logmill_bench::postgres::Durability { synchronous_commit: "on".into(), fsync: "on".into() };
        let server = logmill_bench::postgres::Server::start(folder.path(), &durability)?;
        let settings = PostgresSettings::new(server.url("postgres"));
        _server = Some(server);
        Sql::postgres(&settings, clock.clone(), entropy.clone()).await?
    } else {
        _server = None;
        Sql::sqlite(&SqliteSettings::file(folder.path().join("meter.db")), clock.clone(), entropy.clone()).await?
    };
    let queue = Queue::open(sql).await?;
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let mut settings = Settings::default();
    for name in ["api.calls", "storage.bytes", "tokens.in", "tokens.out", "seats"] {
        settings.events.insert(name.to_owned(), EventType::new(Op::Sum));
    }
    let client = logmill_io::wire::GuardedClient::new(clock.clone(), logmill_io::wire::GuardedSettings::default())?;
    let webhooks = Webhooks::open(queue.clone(), client, logmill_meter::webhooks::WebhookSettings::default()).await?;
    let meter = Meter::open(queue, blobs, webhooks, settings).await?;
    let (recorder, run) = Recorder::new(meter.clone());
    tokio::spawn(run);
    let started = Instant::now();
    let mut handles = Vec::new();
    for task in 0..tasks {
        let (recorder, meter, clock, entropy) = (recorder.clone(), meter.clone(), clock.clone(), entropy.clone());
        handles.push(tokio::spawn(async move {
            let mut number = task;
            let types = ["api.calls", "storage.bytes", "tokens.in", "tokens.out", "seats"];
            for _ in 0..total / batch / tasks {
                let mut body = String::from("[");
                for index in 0..batch {
                    let id = if index % 20 == 19 { number - tasks } else { number };
                    number += tasks;
                    use std::fmt::Write as _;
                    if index > 0 { body.push(','); }
                    write!(body, r#"{{"eventType":"{}","customerId":"cust_{}","value":{},"id":"evt-{id}"}}"#, types[id * 7919 % 5], id * 104729 % customers, id % 1000)?;
                }
                body.push(']');
                let incoming: Vec<Incoming<'_>> = serde_json::from_str(&body)?;
                let now = clock.now();
                let sender = Sender { source: "bench", now, entropy: &*entropy };
                let arrived: Vec<Arrived> = incoming.iter().map(|one| Arrived { event: one.check(meter.settings(), None, &sender).unwrap(), received: now }).collect();
                recorder.record(arrived).await?;
            }
            anyhow::Ok(())
        }));
    }
    for handle in handles { handle.await??; }
    let took = started.elapsed().as_secs_f64();
    println!("{} events in {took:.2} s: {:.0}/s, cpu {:.2} s", total, total as f64 / took, logmill_bench::cpu::of_client()?);
    Ok(())
}
