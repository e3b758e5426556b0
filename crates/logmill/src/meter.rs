//! The server's work for usage: recording, aggregation, thresholds, webhooks, housekeeping.
//!
//! ```text
//!   open ─▶ recorder, runners, schedules ─▶ stopped: no new job, what was accepted is recorded
//! ```
//!
//! Guarantees: everything stops like the other tasks of the server; acknowledged usage is on disk. Leaves to others:
//! the work itself ([`logmill_meter`]), HTTP ([`crate::http`]), commands ([`command`]).

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use logmill_io::wire::GuardedClient;
use logmill_io::{BlobStore, ErrorKind};
use logmill_meter::aggregate::Aggregator;
use logmill_meter::alerts::{ALERT_JOB, Watcher};
use logmill_meter::audit::{AUDIT_JOB, Auditor, audit_schedule};
use logmill_meter::due::AGGREGATE_JOB;
use logmill_meter::record::{Outcome, ReceivedEvent};
use logmill_meter::service::{
    HOUSEKEEPING_JOB, Housekeeper, SWEEP_JOB, Sweeper, housekeeping_schedule, sweep_schedule,
};
use logmill_meter::sources::KeySource;
use logmill_meter::webhooks::{ConfiguredEndpoint, Secret, Webhooks};
use logmill_meter::{Meter, Recorder};
use logmill_work::{Cron, Handler, Queue, Runner, RunnerSettings, Schedule};
use tokio::sync::watch;

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::maintenance;
use crate::readiness::stores::WriteAlarm;
use crate::secrets;
use crate::stores::meter::MeterStores;
use key_sources::KeySources;
use relay::Relays;

mod chain_usage;
pub(crate) mod command;
mod damaged_events;
pub(crate) mod key_sources;
pub(crate) mod relay;
#[cfg(test)]
mod replacement_faults;
mod stored_chain;

/// How long a process keeps the job of an aggregate without a heartbeat.
const AGGREGATE_LEASE: Duration = Duration::from_secs(120);
/// Minimum number of aggregates computed concurrently: those that are ready together share one wait for the disk.
const AGGREGATES_MIN: usize = 16;
/// How long after the stop usage is still recorded for requests under way: a little longer than HTTP waits for them.
const RECORDING_AFTER_STOP: Duration = Duration::from_secs(6);

/// What to do if the configuration gives a new source to a key that has already sent usage under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceChange {
    /// Fail.
    Refuse,
    /// Use it as the key's source from now on.
    Accept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    /// A server: applies its configuration and keys to endpoints and their secrets.
    Server,
    /// A command, which may have another configuration than the server, or no keys: no endpoint is changed.
    Command,
}

/// Opens the meter of a server; `None` if nothing is metered.
pub(crate) async fn open(settings: &Settings) -> Result<Option<OpenMeter>> {
    open_as(Opener::Server, settings, SourceChange::Refuse).await
}

pub(crate) async fn open_for_command(settings: &Settings) -> Result<OpenMeter> {
    let opened = open_as(Opener::Command, settings, SourceChange::Refuse).await?;
    opened.ok_or(Error::NothingMetered)
}

async fn open_as(
    opener: Opener,
    settings: &Settings,
    change: SourceChange,
) -> Result<Option<OpenMeter>> {
    let Some(metered) = settings.meter.settings() else { return Ok(None) };
    let stores = MeterStores::open_to_write(settings).await?;
    let queue = stores.queue.clone();
    let webhooks = webhooks(opener, settings, &queue).await?;
    let blobs = Arc::clone(&stores.blobs);
    let meter = Meter::open(stores.queue, stores.blobs, webhooks, metered).await?;
    let keys = settings.server.limits().keys.senders();
    let keys = meter.sync_key_sources(&keys, change == SourceChange::Accept).await?;
    Ok(Some(OpenMeter { meter, queue, blobs, keys }))
}

/// Opens the webhooks; a server also applies the endpoints of the configuration.
async fn webhooks(opener: Opener, settings: &Settings, queue: &Queue) -> Result<Webhooks> {
    let delivery = &settings.meter.delivery;
    let hooks = delivery.settings(settings.work.lease());
    let guarded = hooks.guard(delivery.allowed().unwrap_or_default());
    let client = GuardedClient::new(Arc::clone(queue.sql().clock()), guarded)?;
    let keys = secrets::keys(opener, settings, queue).await?;
    let webhooks = Webhooks::open_with_keys(queue.clone(), client, hooks, keys).await?;
    if opener == Opener::Command {
        return Ok(webhooks);
    }
    webhooks.secure_secrets().await?;
    let mut configured = Vec::new();
    for webhook in settings.meter.webhooks() {
        let secret = Secret::parse(webhook.secret.expose())?;
        configured.push(ConfiguredEndpoint {
            enabled: webhook.enabled,
            url: webhook.url.clone(),
            secret,
            kinds: webhook.events.clone(),
        });
    }
    webhooks.sync_configured(&configured).await?;
    Ok(webhooks)
}

pub(crate) struct OpenMeter {
    pub(crate) meter: Meter,
    pub(crate) queue: Queue,
    pub(crate) blobs: Arc<dyn BlobStore>,
    /// The sources under which API keys send usage.
    keys: Vec<KeySource>,
}

/// A task of the server: its name and its future.
pub(crate) type Task = (&'static str, BoxFuture<'static, Result<()>>);

impl OpenMeter {
    /// Returns the handle that serves usage, and the tasks behind it; each ends when the future returned by `stop`
    /// completes.
    pub(crate) fn start<S>(
        &self,
        settings: &Settings,
        owner: &str,
        stop: impl Fn() -> S,
    ) -> Result<(Usage, Vec<Task>)>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let (recorder, recording) = Recorder::new(self.meter.clone());
        let clock = Arc::clone(self.meter.sql().clock());
        let stopped = stop();
        let late = async move {
            stopped.await;
            clock.sleep(RECORDING_AFTER_STOP).await;
        };
        let recording = async move {
            tokio::select! {
                biased;
                ended = recording => ended.map_err(Error::from),
                () = late => Ok(()),
            }
        };
        // With SQLite recording is CPU-bound, and other tasks must not wait for it. With PostgreSQL it mostly waits
        // for answers, which reach a task sooner than another thread.
        let recording: BoxFuture<'static, Result<()>> = match self.meter.sql().engine_name() {
            "sqlite" => Box::pin(logmill_io::apart(recording)),
            _ => Box::pin(recording),
        };
        let mut tasks: Vec<Task> = vec![("the recorder of usage", recording)];
        for (task, runner) in self.runners(settings, owner)? {
            let stop = stop();
            let running = async move { runner.run(stop).await.map_err(Error::from) };
            tasks.push((task, Box::pin(running)));
        }
        let deliverer = self.meter.webhooks().deliverer(owner)?;
        let stopped = stop();
        let delivering = async move { deliverer.run(stopped).await.map_err(Error::from) };
        tasks.push(("the deliverer of webhooks", Box::pin(delivering)));
        for (task, cron) in self.crons(settings)? {
            let stop = stop();
            let ticking = async move {
                tokio::select! {
                    biased;
                    () = stop => Ok(()),
                    ended = cron.run() => ended.map_err(Error::from),
                }
            };
            tasks.push((task, Box::pin(ticking)));
        }
        let usage = Usage::new(self.meter.clone(), recorder);
        Ok((Usage { sources: KeySources::new(&self.keys), ..usage }, tasks))
    }

    fn runners(&self, settings: &Settings, owner: &str) -> Result<Vec<(&'static str, Runner)>> {
        let work = &settings.work;
        let runner = |kind: &str, slots: usize, lease: Duration, handler: Arc<dyn Handler>| {
            let settings = RunnerSettings {
                lease,
                slow_poll: work.slow_poll(),
                stop_deadline: work.job_stop_deadline(),
                ..RunnerSettings::new(kind, owner, slots)
            };
            Runner::new(self.queue.clone(), handler, settings)
        };
        let (meter, slots) = (|| self.meter.clone(), work.slots);
        // The slow poll is never longer than the usual lease, but may be longer than this one.
        let lease = AGGREGATE_LEASE.max(work.slow_poll());
        let mut runners = vec![
            (
                "the runner of aggregates",
                runner(
                    AGGREGATE_JOB,
                    slots.max(AGGREGATES_MIN),
                    lease,
                    Arc::new(Aggregator(meter())),
                )?,
            ),
            (
                "the runner of alerts",
                runner(ALERT_JOB, slots, work.lease(), Arc::new(Watcher(meter())))?,
            ),
            (
                "the runner of sweeps",
                runner(SWEEP_JOB, 1, work.lease(), Arc::new(Sweeper(meter())))?,
            ),
            (
                "the runner of housekeeping",
                runner(HOUSEKEEPING_JOB, 1, work.lease(), Arc::new(Housekeeper(meter())))?,
            ),
            (
                "the runner of audits of usage",
                runner(AUDIT_JOB, 1, work.lease(), Arc::new(Auditor(meter())))?,
            ),
        ];
        if settings.postgres().is_none() {
            // On PostgreSQL the queue is shared by all jobs and already has its maintenance.
            let maintenance = maintenance::runner(&self.queue, work, owner)?;
            runners.push(("the maintenance runner of usage", maintenance));
        }
        Ok(runners)
    }

    fn crons(&self, settings: &Settings) -> Result<Vec<(&'static str, Cron)>> {
        let cron = |schedule: Schedule| Cron::new(self.queue.clone(), schedule);
        let mut crons = vec![
            ("the schedule of sweeps", cron(sweep_schedule()?)),
            ("the schedule of housekeeping", cron(housekeeping_schedule()?)),
            ("the schedule of audits of usage", cron(audit_schedule()?)),
        ];
        if settings.postgres().is_none() {
            crons.push(("the maintenance schedule of usage", maintenance::cron(&self.queue)?));
        }
        Ok(crons)
    }
}

/// Usage as it is served: recorded, queried, and watched for changes.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) meter: Meter,
    recorder: Recorder,
    pub(crate) watches: CustomerWatches,
    pub(crate) relays: Relays,
    /// Raised when recording fails because of the store, so that readiness tries to write.
    pub(crate) write_alarm: WriteAlarm,
    pub(crate) sources: KeySources,
}

impl Usage {
    pub(crate) fn new(meter: Meter, recorder: Recorder) -> Self {
        Self {
            meter,
            recorder,
            watches: CustomerWatches::default(),
            relays: Relays::default(),
            write_alarm: WriteAlarm::default(),
            sources: KeySources::default(),
        }
    }

    /// Records events; returns the outcome of each once all are on disk.
    pub(crate) async fn record(
        &self,
        events: Vec<ReceivedEvent>,
    ) -> logmill_meter::Result<Vec<Outcome>> {
        let changed = self.watches.among(&events);
        let outcomes = self.recorder.record(events).await.inspect_err(|error| {
            if matches!(error.kind(), ErrorKind::Transient | ErrorKind::Internal) {
                self.write_alarm.raise();
            }
        })?;
        for customer in changed {
            customer.send_modify(|changes| *changes = changes.wrapping_add(1));
        }
        Ok(outcomes)
    }
}

/// The watched customers: watchers are notified when this process has recorded usage of theirs.
#[derive(Clone, Debug, Default)]
pub(crate) struct CustomerWatches(Arc<WatchTable>);

#[derive(Debug, Default)]
struct WatchTable {
    /// Number of watchers, so that recording skips the lookup if there are none.
    count: AtomicUsize,
    customers: RwLock<HashMap<String, watch::Sender<u64>>>,
}

impl CustomerWatches {
    /// Watches a customer until the returned value is dropped.
    pub(crate) fn watch(&self, customer: &str) -> CustomerWatcher {
        let mut customers = self.0.customers.write().unwrap_or_else(PoisonError::into_inner);
        let sender = customers.entry(customer.to_owned()).or_insert_with(|| watch::channel(0).0);
        let changes = sender.subscribe();
        self.0.count.store(customers.len(), Ordering::Release);
        CustomerWatcher {
            watches: self.clone(),
            customer: customer.to_owned(),
            changes: Some(changes),
        }
    }

    /// The watched customers among those of the events.
    fn among(&self, events: &[ReceivedEvent]) -> Vec<watch::Sender<u64>> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let customers = self.0.customers.read().unwrap_or_else(PoisonError::into_inner);
        let mut found: HashMap<&str, &watch::Sender<u64>> = HashMap::new();
        for received in events {
            if let Some((name, sender)) = customers.get_key_value(&received.event.customer) {
                found.insert(name, sender);
            }
        }
        found.into_values().cloned().collect()
    }
}

/// A watcher of one customer.
#[derive(Debug)]
pub(crate) struct CustomerWatcher {
    watches: CustomerWatches,
    customer: String,
    /// `None` once it is dropped.
    changes: Option<watch::Receiver<u64>>,
}

impl CustomerWatcher {
    /// Waits until usage was recorded by this process.
    pub(crate) async fn changed(&mut self) {
        let changed = match &mut self.changes {
            Some(changes) => changes.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for CustomerWatcher {
    fn drop(&mut self) {
        let watches = &self.watches.0;
        let mut customers = watches.customers.write().unwrap_or_else(PoisonError::into_inner);
        self.changes = None;
        let is_last = |sender: &watch::Sender<u64>| sender.receiver_count() == 0;
        if customers.get(&self.customer).is_some_and(is_last) {
            customers.remove(&self.customer);
        }
        watches.count.store(customers.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_customer_without_watchers_is_removed() {
        let watches = CustomerWatches::default();
        let (one, two) = (watches.watch("acme"), watches.watch("acme"));
        drop(one);
        assert_eq!(watches.0.count.load(Ordering::Acquire), 1);
        drop(two);
        assert_eq!(watches.0.count.load(Ordering::Acquire), 0);
        assert!(watches.0.customers.read().expect("not poisoned").is_empty());
    }
}
