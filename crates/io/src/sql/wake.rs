//! Wake-ups: signal other tasks and processes that there is work.
//!
//! Within a process a wake-up is a signal in memory. Over PostgreSQL it is also sent as `NOTIFY`, outside of
//! any transaction and at most once per [`NOTIFY_INTERVAL`] and topic (inside a transaction `NOTIFY` serializes
//! commits). It is received through a separate connection, which is reopened whenever it breaks. A message is
//! the mark of its sender, a colon and the topic; the sender ignores its own messages, because it has already
//! been woken. The same connection holds the lock that proves the process alive ([`super::presence`]), and is
//! checked every [`CHECK_INTERVAL`].
//!
//! Guarantees: within this process, a wake-up sent after a waiter was created and before it waits is not lost;
//! [`Waiter::wait`] consumes all earlier wake-ups. Over the network a wake-up may be lost, so waiters also need
//! a slow poll. An idle process does no work here.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::poll_fn;
use tokio::sync::{Notify, watch};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::presence::PresenceId;
use super::{Engine, Execute, Sql};
use crate::clock::{Clock, millis};
use crate::error::{Error, Result};
use crate::params;
use crate::task::Tasks;

/// Minimum time between two sends of a process.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of topics that have waiters, and of topics waiting to be sent.
const TOPICS_MAX: usize = 1_024;
/// Delay before a broken connection is reopened.
pub(super) const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// How often the connection that holds the presence lock is checked, and how long an answer may take.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a process waits for its presence lock before it continues without.
const PROOF_WAIT_MAX: Duration = Duration::from_secs(10);

/// A channel of wake-ups with any number of topics. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Wakes {
    hub: Arc<Hub>,
    clock: Arc<dyn Clock>,
    // Dropping the last handle stops listening and sending.
    _tasks: Arc<Mutex<Tasks<()>>>,
}

#[derive(Debug)]
struct Hub {
    /// Identifies this process among all that share the channel. `None` if no other process can receive its
    /// messages.
    mark: Option<u64>,
    topics: Mutex<HashMap<String, watch::Sender<u64>>>,
    outgoing: Mutex<Vec<String>>,
    send: Notify,
    /// The lock that the listening connection must hold, and whether it does.
    presence: watch::Sender<Option<PresenceId>>,
    is_present: watch::Sender<bool>,
}

impl Wakes {
    /// Opens a channel over the database, shared by all processes that use it.
    pub async fn over(sql: &Sql, channel: &'static str) -> Result<Self> {
        let shared = matches!(&*sql.engine, Engine::Postgres(_));
        let hub = Arc::new(Hub {
            mark: shared.then(|| sql.entropy.next_u64()),
            topics: Mutex::default(),
            outgoing: Mutex::default(),
            send: Notify::new(),
            presence: watch::channel(None).0,
            is_present: watch::channel(false).0,
        });
        let mut tasks = Tasks::new();
        if shared {
            let (listening, ready) = tokio::sync::oneshot::channel();
            tasks.spawn(listen(sql.clone(), channel, Arc::clone(&hub), listening));
            tasks.spawn(send(sql.clone(), channel, Arc::clone(&hub)));
            // From here on nothing is missed; if the server is down now, the task keeps trying in the
            // background.
            drop(ready.await);
        }
        Ok(Self { hub, clock: Arc::clone(&sql.clock), _tasks: Arc::new(Mutex::new(tasks)) })
    }

    /// Starts to prove that this process is alive, as long as any handle exists. Returns the owner name under
    /// which the process should hold leases and jobs; it starts with `name`. If the database is not shared, or
    /// the proof fails, it is `name` itself, and other processes wait for its leases to end.
    pub async fn prove_alive(&self, name: &str) -> String {
        let Some(mark) = self.hub.mark else { return name.to_owned() };
        let id = PresenceId::from_random(mark);
        self.hub.presence.send_replace(Some(id));
        let mut is_present = self.hub.is_present.subscribe();
        let proven = tokio::select! {
            biased;
            proven = is_present.wait_for(|is_present| *is_present) => proven.is_ok(),
            () = self.clock.sleep(PROOF_WAIT_MAX) => false,
        };
        if proven {
            return id.owner(name);
        }
        tracing::warn!(
            "cannot prove that this process is alive: others will wait for its leases to end"
        );
        self.hub.presence.send_replace(None);
        name.to_owned()
    }

    /// Wakes all waiters of the topic, in this process and in all others.
    pub fn wake(&self, topic: &str) {
        self.hub.deliver(topic);
        if self.hub.mark.is_none() {
            return;
        }
        let mut outgoing = self.hub.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        if outgoing.len() < TOPICS_MAX && !outgoing.iter().any(|waiting| waiting == topic) {
            outgoing.push(topic.to_owned());
            self.hub.send.notify_one();
        }
    }

    pub fn waiter(&self, topic: &str) -> Result<Waiter> {
        let mut topics = self.hub.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if topics.len() >= TOPICS_MAX && !topics.contains_key(topic) {
            return Err(Error::invalid(format!("waiters for more than {TOPICS_MAX} topics")));
        }
        let sender = topics.entry(topic.to_owned()).or_insert_with(|| watch::channel(0).0);
        Ok(Waiter { receiver: sender.subscribe() })
    }
}

#[derive(Debug)]
pub struct Waiter {
    receiver: watch::Receiver<u64>,
}

impl Waiter {
    /// Completes once the topic was woken since the last call.
    pub async fn wait(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The channel is closed, so no wake-up can come.
            std::future::pending::<()>().await;
        }
    }

    /// Discards all wake-ups so far.
    pub fn clear(&mut self) {
        self.receiver.mark_unchanged();
    }
}

impl Hub {
    fn deliver(&self, topic: &str) {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = topics.get(topic) {
            sender.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Handles a message from the channel.
    fn receive(&self, message: &str) {
        let (mark, topic) = message.split_once(':').unwrap_or_default();
        if u64::from_str_radix(mark, 16).ok() != self.mark {
            self.deliver(topic);
        }
    }

    /// Wakes all topics: while the connection was broken, any message may have been missed.
    fn deliver_all(&self) {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        for sender in topics.values() {
            sender.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}

async fn send(sql: Sql, channel: &'static str, hub: Arc<Hub>) {
    let mark = hub.mark.unwrap_or_default();
    loop {
        hub.send.notified().await;
        let topics =
            std::mem::take(&mut *hub.outgoing.lock().unwrap_or_else(PoisonError::into_inner));
        for topic in topics {
            let message = format!("{mark:016x}:{topic}");
            let sent = sql.execute("SELECT pg_notify($1, $2)", params![channel, message]).await;
            if let Err(error) = sent {
                // Other processes find the work with their slow poll.
                tracing::debug!(channel, error = error.chain(), "cannot send a wake-up");
            }
        }
        sql.clock.sleep(NOTIFY_INTERVAL).await;
    }
}

async fn listen(
    sql: Sql,
    channel: &'static str,
    hub: Arc<Hub>,
    ready: tokio::sync::oneshot::Sender<()>,
) {
    let mut ready = Some(ready);
    loop {
        let ended = listen_once(&sql, channel, &hub, &mut ready).await;
        let was_present = hub.is_present.send_replace(false);
        if let Err(error) = ended {
            if was_present {
                let error = error.chain();
                tracing::warn!(
                    error,
                    "lost the session that proves this process alive, reconnecting"
                );
            } else {
                tracing::debug!(
                    channel,
                    error = error.chain(),
                    "lost the connection for wake-ups, reconnecting"
                );
            }
        }
        ready.take();
        sql.clock.sleep(RECONNECT_WAIT).await;
    }
}

async fn listen_once(
    sql: &Sql,
    channel: &'static str,
    hub: &Arc<Hub>,
    ready: &mut Option<tokio::sync::oneshot::Sender<()>>,
) -> Result<()> {
    let Engine::Postgres(postgres) = &*sql.engine else {
        return Ok(());
    };
    let at = |source| Error::Postgres { doing: format!("listen on {channel}"), source };
    // A server that hangs accepts the connection but does not answer.
    let connect = async { postgres.config().connect(NoTls).await.map_err(at) };
    let (client, mut connection) = in_time(&sql.clock, "connect to listen", connect).await?;
    let start = async {
        let listen = async { client.batch_execute(&format!("LISTEN {channel}")).await.map_err(at) };
        in_time(&sql.clock, "listen", listen).await?;
        hub.deliver_all();
        drop(ready.take());
        // Dropping the client would close the connection.
        keep_present(&client, hub, &sql.clock).await
    };
    let receive = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message.map_err(at)? {
                hub.receive(notification.payload());
            }
        }
        Ok(())
    };
    tokio::select! {
        biased;
        ended = receive => ended,
        failed = start => failed,
    }
}

/// Holds the presence lock on this connection, once it is requested, until the connection fails.
async fn keep_present(client: &Client, hub: &Hub, clock: &Arc<dyn Clock>) -> Result<()> {
    let mut wanted = hub.presence.subscribe();
    let Ok(Some(id)) = wanted.wait_for(Option::is_some).await.map(|id| *id) else {
        // Unreachable: the hub outlives its connection.
        return std::future::pending().await;
    };
    in_time(clock, "take the lock of this process", id.lock(client)).await?;
    let mut was_held = true;
    loop {
        let is_held = in_time(clock, "check the lock of this process", id.is_held(client)).await?;
        if !is_held && was_held {
            tracing::warn!(
                "the database does not keep this session's lock: connect to PostgreSQL itself, \
                 not through a pooler in transaction mode"
            );
        }
        was_held = is_held;
        hub.is_present.send_replace(is_held);
        clock.sleep(CHECK_INTERVAL).await;
    }
}

/// Treats a missing answer as a lost connection.
async fn in_time<T>(
    clock: &Arc<dyn Clock>,
    doing: &'static str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit_ms = millis(CHECK_INTERVAL).unsigned_abs();
    tokio::select! {
        biased;
        done = work => done,
        () = clock.sleep(CHECK_INTERVAL) => Err(Error::TooSlow { doing, limit_ms }),
    }
}
