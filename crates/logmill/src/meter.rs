//! What the server does for usage: recording, aggregating, watching thresholds, telling, keeping house.
//!
//! ```text
//!   open ─▶ recorder, runners, schedules ─▶ stopped: no new job, what was accepted is recorded
//! ```
//!
//! Guarantees: everything stops as the other tasks of the server do; what was acknowledged is on disk. Leaves to
//! others: what each does ([`logmill_meter`]), HTTP ([`crate::http`]), commands ([`command`]).

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{BlobStore, ErrorKind};
use logmill_meter::aggregate::Aggregator;
use logmill_meter::alerts::{ALERT_JOB, Watcher};
use logmill_meter::audit::{AUDIT_JOB, Auditor, audit_schedule};
use logmill_meter::due::AGGREGATE_JOB;
use logmill_meter::record::{Arrived, Outcome};
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
use crate::readiness::stores::Suspect;
use crate::secrets;
use crate::stores::meter::MeterStores;
use relay::Relays;
use sources::KeySources;

pub(crate) mod command;
pub(crate) mod relay;
mod source;
pub(crate) mod sources;
mod stored;

/// How long an aggregate that is made belongs to its process without a sign of life.
const AGGREGATE_LEASE: Duration = Duration::from_secs(120);
/// How many aggregates are made at a time at least: those that are ready together wait for the disk together.
const AGGREGATES_MIN: usize = 16;
/// How long after the stop usage is still recorded for requests under way: a little longer than HTTP waits for them.
const RECORDING_AFTER_STOP: Duration = Duration::from_secs(6);

/// What becomes of a source that the configuration gives to a key which has sent usage as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceChange {
    /// It is an error.
    Refuse,
    /// It is the key's source from now on.
    Accept,
}

/// Opens the meter; none if nothing is metered.
pub(crate) async fn open(settings: &Settings) -> Result<Option<OpenMeter>> {
    open_with(settings, SourceChange::Refuse).await
}

/// The same, and says what becomes of changed sources.
async fn open_with(settings: &Settings, change: SourceChange) -> Result<Option<OpenMeter>> {
    let Some(metered) = settings.meter.settings() else { return Ok(None) };
    let stores = MeterStores::open_to_write(settings).await?;
    let queue = stores.queue.clone();
    let webhooks = webhooks(settings, &queue).await?;
    let blobs = Arc::clone(&stores.blobs);
    let meter = Meter::open(stores.queue, stores.blobs, webhooks, metered).await?;
    let keys = settings.server.limits().keys.senders();
    let keys = meter.sync_key_sources(&keys, change == SourceChange::Accept).await?;
    Ok(Some(OpenMeter { meter, queue, blobs, keys }))
}

/// The webhooks, with the endpoints that the configuration names.
async fn webhooks(settings: &Settings, queue: &Queue) -> Result<Webhooks> {
    let delivery = &settings.meter.delivery;
    let hooks = delivery.settings(settings.work.lease());
    let guarded = GuardedSettings {
        ports: Vec::new(),
        redirects_max: 0,
        allowed: delivery.allowed().unwrap_or_default(),
        idle_per_host_max: hooks.endpoint_slots,
    };
    let client = GuardedClient::new(Arc::clone(queue.sql().clock()), guarded)?;
    let keys = secrets::keys(settings, queue).await?;
    let webhooks = Webhooks::open_with_keys(queue.clone(), client, hooks, keys).await?;
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

/// A meter that is open.
pub(crate) struct OpenMeter {
    pub(crate) meter: Meter,
    pub(crate) queue: Queue,
    pub(crate) blobs: Arc<dyn BlobStore>,
    /// As who API keys send usage.
    keys: Vec<KeySource>,
}

/// A task of the server: its name, and what runs.
pub(crate) type Task = (&'static str, BoxFuture<'static, Result<()>>);

impl OpenMeter {
    /// What serves usage, and the tasks behind it, each of which ends when what `stop` gives completes.
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
        // With SQLite it takes the processor for long, and other tasks must not wait for it. With PostgreSQL it mostly
        // waits for answers, which come sooner to a task than to another thread.
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
        // The slow poll is never longer than the usual lease, but may be than this one.
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
            // On PostgreSQL the queue is that of all jobs, which has its maintenance.
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

/// Usage as it is served: recorded, asked for, and watched while it changes.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) meter: Meter,
    recorder: Recorder,
    pub(crate) watched: Watched,
    pub(crate) relays: Relays,
    /// Raised when recording fails for a reason of the store's, so that readiness tries to write.
    pub(crate) suspect: Suspect,
    pub(crate) sources: KeySources,
}

impl Usage {
    pub(crate) fn new(meter: Meter, recorder: Recorder) -> Self {
        Self {
            meter,
            recorder,
            watched: Watched::default(),
            relays: Relays::default(),
            suspect: Suspect::default(),
            sources: KeySources::default(),
        }
    }

    /// Records events; gives what became of each once all are on disk.
    pub(crate) async fn record(&self, events: Vec<Arrived>) -> logmill_meter::Result<Vec<Outcome>> {
        let changed = self.watched.among(&events);
        let outcomes = self.recorder.record(events).await.inspect_err(|error| {
            if matches!(error.kind(), ErrorKind::Transient | ErrorKind::Internal) {
                self.suspect.raise();
            }
        })?;
        for customer in changed {
            customer.send_modify(|changes| *changes = changes.wrapping_add(1));
        }
        Ok(outcomes)
    }
}

/// Which customers are watched: who watches is told when this process has recorded usage of theirs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched(Arc<Watches>);

#[derive(Debug, Default)]
struct Watches {
    /// How many are watched, so that recording looks no further if nobody is.
    count: AtomicUsize,
    customers: RwLock<HashMap<String, watch::Sender<u64>>>,
}

impl Watched {
    /// Watches a customer until what is given is dropped.
    pub(crate) fn watch(&self, customer: &str) -> Watching {
        let mut customers = self.0.customers.write().unwrap_or_else(PoisonError::into_inner);
        let sender = customers.entry(customer.to_owned()).or_insert_with(|| watch::channel(0).0);
        let changes = sender.subscribe();
        self.0.count.store(customers.len(), Ordering::Release);
        Watching { watched: self.clone(), customer: customer.to_owned(), changes: Some(changes) }
    }

    /// Those customers of events that are watched.
    fn among(&self, events: &[Arrived]) -> Vec<watch::Sender<u64>> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let customers = self.0.customers.read().unwrap_or_else(PoisonError::into_inner);
        let mut found: HashMap<&str, &watch::Sender<u64>> = HashMap::new();
        for arrived in events {
            if let Some((name, sender)) = customers.get_key_value(&arrived.event.customer) {
                found.insert(name, sender);
            }
        }
        found.into_values().cloned().collect()
    }
}

/// Somebody who watches a customer.
#[derive(Debug)]
pub(crate) struct Watching {
    watched: Watched,
    customer: String,
    /// None once it is dropped.
    changes: Option<watch::Receiver<u64>>,
}

impl Watching {
    /// Waits until usage was recorded here.
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

impl Drop for Watching {
    fn drop(&mut self) {
        let watches = &self.watched.0;
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
    fn who_is_watched_by_nobody_any_more_is_forgotten() {
        let watched = Watched::default();
        let (one, two) = (watched.watch("acme"), watched.watch("acme"));
        drop(one);
        assert_eq!(watched.0.count.load(Ordering::Acquire), 1);
        drop(two);
        assert_eq!(watched.0.count.load(Ordering::Acquire), 0);
        assert!(watched.0.customers.read().expect("not poisoned").is_empty());
    }
}
