//! Webhooks on both engines: a fault at every operation of publishing and delivering, and many processes at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::sql::Execute as _;
use logmill_io::wire::GuardedClient;
use logmill_io::wire::guarded::{AllowedTarget, Net};
use logmill_io::{Fault, Faults, SystemClock, Tasks, Timestamp, params};
use logmill_meter::webhooks::{EndpointChange, NewEndpoint, NewMessage, WebhookSettings, Webhooks};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::Queue;
use receiver::Receiver;
use serde_json::json;

use crate::work::{in_real_time, on_both, open};

mod receiver;

const HOUR: Duration = Duration::from_secs(3_600);

fn client() -> GuardedClient {
    let allowed = vec![AllowedTarget::Net(Net::parse("127.0.0.1").expect("a network"))];
    let settings = WebhookSettings::default().guard(allowed);
    GuardedClient::new(SystemClock::shared(), settings).expect("a client")
}

async fn webhooks(queue: Queue, client: &GuardedClient) -> Webhooks {
    let opened = Webhooks::open(queue, client.clone(), WebhookSettings::default()).await;
    opened.expect("the tables are made")
}

fn message(id: &str) -> NewMessage {
    NewMessage::new(id, "aggregation.completed", Timestamp(0), &json!({})).expect("a message")
}

const MESSAGES: [&str; 4] = ["a", "b", "c", "d"];

/// Publishes together with another write in one transaction, and delivers; may fail anywhere.
async fn live(hooks: &Webhooks, queue: &Queue) -> logmill_meter::Result<()> {
    publish(hooks, queue, &MESSAGES[..3]).await?;
    publish(hooks, queue, &MESSAGES[3..]).await?;
    hooks.deliverer("first")?.drain().await?;
    Ok(())
}

async fn publish(hooks: &Webhooks, queue: &Queue, ids: &[&str]) -> logmill_meter::Result<()> {
    let messages: Vec<NewMessage> = ids.iter().map(|id| message(id)).collect();
    let published = queue.sql().write(|tx| {
        let messages = &messages;
        async move { hooks.publish_many_in(&tx, messages).await }
    });
    published.await?;
    Ok(())
}

/// The final result: each delivery and its state, without the number of attempts.
async fn image(hooks: &Webhooks) -> String {
    let mut image = BTreeMap::new();
    for id in MESSAGES {
        for delivery in hooks.deliveries_of(id).await.expect("works") {
            image.insert((id, delivery.endpoint_id), delivery.state.name());
        }
    }
    let states: Vec<String> =
        image.iter().map(|((id, _), state)| format!("{id} {state}")).collect();
    states.join(", ")
}

/// Runs with injected faults; a new process finishes. Returns the final result.
async fn run(
    database: &Database,
    client: &GuardedClient,
    receiver: &Receiver,
    faults: &Arc<Faults>,
) -> String {
    receiver.clear();
    let plain = open(database).await;
    let hooks = webhooks(plain.clone(), client).await;
    for (path, ordered) in [("/fine", false), ("/ordered", true), ("/flaky", false)] {
        let new = NewEndpoint { ordered, ..NewEndpoint::new(receiver.url(path)) };
        hooks.create(&new).await.expect("an endpoint");
    }
    let disturbed = plain.through(plain.sql().with_faults(Arc::clone(faults)));
    // Whether the process died or only failed: the next one finishes.
    let _ = live(&hooks.through(disturbed.clone()), &disturbed).await;
    drop(disturbed);
    let queue = open(database).await;
    let hooks = webhooks(queue.clone(), client).await;
    // A publisher retries until publishing succeeds.
    publish(&hooks, &queue, &MESSAGES).await.expect("works");
    // A failing endpoint gets a few messages at a time, and the rest later.
    for _ in 0..6 {
        database.advance(HOUR, &[queue.sql()]);
        let mut deliverer = hooks.deliverer("second").expect("a deliverer");
        deliverer.drain().await.expect("works");
    }
    check_receiver(receiver);
    check_attempts(&queue).await;
    image(&hooks).await
}

/// Every message arrived at every endpoint, in order where required.
fn check_receiver(receiver: &Receiver) {
    for path in ["/fine", "/ordered", "/flaky"] {
        let mut ids = receiver.ids(path);
        if path == "/ordered" {
            ids.dedup();
            assert_eq!(ids, MESSAGES, "{path}");
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids, MESSAGES, "{path}");
    }
}

/// No delivery succeeded twice.
async fn check_attempts(queue: &Queue) {
    let text = "SELECT message_seq, endpoint_seq FROM webhook_attempt WHERE status = 200
        GROUP BY message_seq, endpoint_seq HAVING count(*) > 1";
    let twice = queue.sql().query(text, params![]).await.expect("works").rows;
    assert!(twice.is_empty(), "{twice:?}");
}

async fn matrix<F: Future<Output = Database>>(fresh: impl Fn() -> F, step: u64) {
    let (client, receiver) = (client(), Receiver::start().await);
    let counted = Faults::none();
    let undisturbed = run(&fresh().await, &client, &receiver, &counted).await;
    assert_eq!(undisturbed.matches("succeeded").count(), 12, "{undisturbed}");
    let operations = counted.operations();
    assert!(operations > 30, "there are only {operations} operations");
    let (mut tried, mut reached) = (0, 0);
    for operation in (0..operations).step_by(usize::try_from(step).expect("small")) {
        for fault in Fault::ALL {
            let faults = Faults::at(operation, fault);
            let image = run(&fresh().await, &client, &receiver, &faults).await;
            assert_eq!(image, undisturbed, "{fault:?} at operation {operation} of {operations}");
            tried += 1;
            reached += u64::from(faults.operations() > operation);
        }
    }
    // The number of operations varies with the speed of the receiver.
    assert!(reached * 10 >= tried * 9, "only {reached} of {tried} faults were reached");
}

#[test]
fn messages_survive_a_fault_at_every_operation_on_sqlite() {
    in_real_time(matrix(Database::memory, 1));
}

#[test]
fn messages_survive_a_fault_at_operations_on_postgresql() {
    let server = PostgresServer::start();
    // All operations are tested on SQLite; this tests the engine, where creating a schema is slow.
    in_real_time(matrix(|| async { Database::postgres(&server) }, 7));
}

/// Five processes deliver concurrently: every message arrives, and without faults none twice.
#[test]
fn five_processes_share_the_work() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let (client, receiver) = (client(), Receiver::start().await);
        let queue = open(&database).await;
        let hooks = webhooks(queue.clone(), &client).await;
        for (path, ordered) in [("/fine", false), ("/ordered", true), ("/fail", false)] {
            let new = NewEndpoint { ordered, ..NewEndpoint::new(receiver.url(path)) };
            hooks.create(&new).await.expect("an endpoint");
        }
        let mut tasks = Tasks::new();
        let mut stops = Vec::new();
        for number in 0..5 {
            let hooks = webhooks(open(&database).await, &client).await;
            let deliverer = hooks.deliverer(&format!("process-{number}")).expect("a deliverer");
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            stops.push(stop);
            tasks.spawn(deliverer.run(async { drop(stopped.await) }));
        }
        let ids: Vec<String> = (0..300).map(|number| format!("m{number:03}")).collect();
        for some in ids.chunks(30) {
            let some: Vec<&str> = some.iter().map(String::as_str).collect();
            publish(&hooks, &queue, &some).await.expect("works");
            hooks.wake();
        }
        receiver.wait_for(&[("/fine", 300), ("/ordered", 300), ("/fail", 1)]).await;
        drop(stops);
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no panic").expect("it stops");
        }
        assert_eq!(receiver.ids("/ordered"), ids, "in order, each once");
        let mut fine = receiver.ids("/fine");
        fine.sort();
        assert_eq!(fine, ids, "each once");
        let statuses = hooks.statuses().await.expect("works");
        let pending: u64 = statuses.iter().map(|status| status.pending).sum();
        assert_eq!(pending, 300, "those of the endpoint that fails");
    });
}

/// One process records that a message was received while another one disables the endpoint and waits for it.
#[test]
fn a_received_delivery_is_not_cancelled_by_disabling_its_endpoint_concurrently() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let queue = open(&database).await;
        let hooks = webhooks(queue.clone(), &client()).await;
        let other = webhooks(open(&database).await, &client()).await;
        let new = NewEndpoint::new("http://127.0.0.1:1/hook");
        let (endpoint, _) = hooks.create(&new).await.expect("made");
        publish(&hooks, &queue, &["a"]).await.expect("works");
        let (recorded, waits) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
        let (told, awaited) = (&recorded, &waits);
        let record = queue.sql().write(|tx| async move {
            let text = "UPDATE webhook_delivery SET state = 2";
            let changed = tx.execute(text, params![]).await?.changed;
            told.notify_one();
            awaited.notified().await;
            Ok::<_, logmill_io::Error>(changed)
        });
        let disable = async {
            recorded.notified().await;
            other.disable(&endpoint.id).await.expect("works");
        };
        let watch = async {
            let text = "SELECT count(*) FROM pg_locks WHERE NOT granted";
            let waiting = async || queue.sql().query(text, params![]).await.expect("locks");
            while waiting().await.rows[0].int(0).expect("a number") == 0 {}
            waits.notify_one();
        };
        let (record, (), ()) = tokio::join!(record, disable, watch);
        assert_eq!(record.expect("works"), 1);
        let states = queue.sql().query("SELECT state FROM webhook_delivery", params![]).await;
        assert_eq!(states.expect("rows").rows[0].int(0).expect("a state"), 2, "it was received");
        assert!(!other.get(&endpoint.id).await.expect("works").enabled);
    });
}

/// The remaining database operations, on both engines.
#[test]
fn endpoints_behave_the_same_on_both_engines() {
    on_both(|database| async move {
        // Nothing is sent, because simulated time and real sockets do not mix.
        let client = client();
        let settings = WebhookSettings { dry_run: true, ..WebhookSettings::default() };
        let queue = open(&database).await;
        let hooks = Webhooks::open(queue.clone(), client, settings).await.expect("tables");
        let new = NewEndpoint::new("https://host.example/hook");
        let (one, secret) = hooks.create(&new).await.expect("made");
        let (two, _) =
            hooks.create(&NewEndpoint { ordered: true, ..new.clone() }).await.expect("made");
        assert_ne!(hooks.rotate(&one.id, None, None).await.expect("works"), secret);
        publish(&hooks, &queue, &MESSAGES).await.expect("works");
        hooks.test(&one.id).await.expect("works");
        let drain = async || hooks.deliverer("p").expect("one").drain().await.expect("works");
        assert_eq!(drain().await, 9);
        hooks.replay("a", &two.id).await.expect("works");
        hooks.disable(&one.id).await.expect("works");
        assert_eq!(drain().await, 1);
        publish(&hooks, &queue, &["e"]).await.expect("works");
        let change = EndpointChange { ordered: Some(false), ..EndpointChange::default() };
        hooks.update(&two.id, &change).await.expect("works");
        hooks.disable(&two.id).await.expect("works");
        hooks.enable(&two.id).await.expect("works");
        let replayed = hooks.replay_since(&two.id, Timestamp(0)).await.expect("works");
        assert_eq!((replayed.deliveries, drain().await), (1, 1));
        assert_eq!(hooks.deliveries(Some(&two.id), None, None, 100).await.expect("works").len(), 5);
        assert_eq!(hooks.attempts("a", &two.id).await.expect("works").len(), 2);
        assert_eq!(hooks.statuses().await.expect("works").len(), 2);
        database.advance(HOUR * 24 * 40, &[queue.sql()]);
        assert_eq!(hooks.purge().await.expect("works").messages, 6);
        hooks.delete(&one.id).await.expect("works");
        assert_eq!(hooks.list(None, 10).await.expect("works").len(), 1);
    });
}
