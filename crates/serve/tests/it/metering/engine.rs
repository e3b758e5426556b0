//! The database engines of the metering tests: one suite, the same requests, the same responses.
//!
//! Each test is a function of an [`Engine`]. [`on_both_engines`] turns each function of a module into a test on SQLite.
//! It also adds one test that runs them all on one PostgreSQL server, then again on SQLite, and compares every response
//! of the two.
//!
//! Guarantees: a differing response is shown with its request. Times from the database's clock are not compared,
//! because PostgreSQL's clock cannot be stopped. Leaves to others: the requests.

use std::sync::{Arc, Mutex};

use logmill_io::sql::SqliteSettings;
use logmill_io::{Clock, Entropy, Sql};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use serde_json::Value;

/// Fields with times from the database's clock.
const BY_DATABASE_CLOCK: [&str; 10] = [
    "at",
    "createdAt",
    "deliveredAt",
    "failingSince",
    "lastAttemptAt",
    "lastErrorAt",
    "last_round_ended",
    "nextAt",
    "oldestAt",
    "updatedAt",
];

/// The database of a test's meter, and the recorded requests and responses.
#[derive(Clone)]
pub(super) struct Engine {
    server: Option<Arc<PostgresServer>>,
    exchanges: Arc<Mutex<Vec<String>>>,
}

impl Engine {
    pub(super) fn sqlite() -> Self {
        Self { server: None, exchanges: Arc::default() }
    }

    pub(super) fn postgres(server: &Arc<PostgresServer>) -> Self {
        Self { server: Some(Arc::clone(server)), exchanges: Arc::default() }
    }

    /// A new database, whose clock agrees with the injected one.
    pub(super) async fn open(&self, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Sql {
        let Some(server) = &self.server else {
            let sql = Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await;
            return sql.expect("a database in memory");
        };
        let settings = Database::postgres(server).postgres_settings().expect("a server's");
        let now = clock.now();
        let sql = Sql::postgres(&settings, clock, entropy).await.expect("the server answers");
        let server_now = sql.now().await.expect("a time");
        sql.skew_clock(now.millis() - server_now.millis());
        sql
    }

    /// Records a request and its response.
    pub(super) fn note(&self, request: &str, status: u16, answer: &[u8]) {
        let answer = match serde_json::from_slice::<Value>(answer) {
            Ok(mut answer) => {
                leave_out_times(&mut answer);
                answer.to_string()
            }
            Err(_) => String::from_utf8_lossy(answer).into_owned(),
        };
        let mut exchanges = self.exchanges.lock().expect("not poisoned");
        exchanges.push(format!("{request}\n  {status} {answer}"));
    }

    /// Fails if any response differs between the two.
    pub(super) fn compare(&self, other: &Self, test: &str) {
        let (ours, others) = (self.exchanges.lock(), other.exchanges.lock());
        let (ours, others) = (ours.expect("not poisoned"), others.expect("not poisoned"));
        for (ours, others) in ours.iter().zip(&*others) {
            assert_eq!(ours, others, "{test}");
        }
        assert_eq!(ours.len(), others.len(), "{test}: as many requests");
    }
}

fn leave_out_times(answer: &mut Value) {
    match answer {
        Value::Array(items) => items.iter_mut().for_each(leave_out_times),
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_time = value.is_string() && BY_DATABASE_CLOCK.contains(&name.as_str());
                if is_time || name == "uptime_seconds" {
                    *value = "a time".into();
                }
                leave_out_times(value);
            }
        }
        _ => {}
    }
}

/// Turns functions of an engine into tests; see the top of this file.
macro_rules! on_both_engines {
    ($($test:ident),+ $(,)?) => {
        mod on_sqlite {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(crate::metering::engine::Engine::sqlite()).await;
                }
            )+
        }

        #[tokio::test]
        async fn on_postgresql_all_answers_are_the_same() {
            use crate::metering::engine::Engine;
            let server = logmill_sim::postgres::PostgresServer::start();
            let server = std::sync::Arc::new(server);
            $(
                println!("{} on PostgreSQL", stringify!($test));
                let postgres = Engine::postgres(&server);
                Box::pin($test(postgres.clone())).await;
                println!("{} on SQLite", stringify!($test));
                let sqlite = Engine::sqlite();
                Box::pin($test(sqlite.clone())).await;
                postgres.compare(&sqlite, stringify!($test));
            )+
        }
    };
}
pub(super) use on_both_engines;
