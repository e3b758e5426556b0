//! The server's work for usage: recording, aggregation, thresholds, webhooks, housekeeping.
//!
//! ```text
//!   open ─▶ recorder, runners, schedules ─▶ stopped: no new job, what was accepted is recorded
//! ```
//!
//! Guarantees: everything stops like the other tasks of the server; acknowledged usage is on disk. Leaves to others:
//! the work itself ([`logmill_meter`]), HTTP ([`logmill_serve::http`]), commands ([`crate::commands::meter`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use logmill_io::BlobStore;
use logmill_io::wire::GuardedClient;
use logmill_meter::aggregate::Aggregator;
use logmill_meter::alerts::{ALERT_JOB, Watcher};
use logmill_meter::audit::{AUDIT_JOB, Auditor, audit_schedule};
use logmill_meter::due::AGGREGATE_JOB;
use logmill_meter::service::{
    HOUSEKEEPING_JOB, Housekeeper, SWEEP_JOB, Sweeper, housekeeping_schedule, sweep_schedule,
};
use logmill_meter::sources::KeySource;
use logmill_meter::webhooks::{ConfiguredEndpoint, Secret, Webhooks};
use logmill_meter::{Meter, Recorder};
use logmill_serve::usage::Usage;
use logmill_serve::usage::key_sources::KeySources;
use logmill_work::{Cron, Handler, Queue, Runner, RunnerSettings, Schedule};

use super::maintenance;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::stores::Databases;
use crate::stores::meter::MeterStores;

mod secret_keys;

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
pub(crate) async fn open(databases: &Databases) -> Result<Option<OpenMeter>> {
    open_as(Opener::Server, databases, SourceChange::Refuse).await
}

pub(crate) async fn open_for_command(databases: &Databases) -> Result<OpenMeter> {
    let opened = open_as(Opener::Command, databases, SourceChange::Refuse).await?;
    opened.ok_or(Error::NothingMetered)
}

pub(crate) async fn open_as(
    opener: Opener,
    databases: &Databases,
    change: SourceChange,
) -> Result<Option<OpenMeter>> {
    let settings = &databases.settings;
    let Some(metered) = settings.meter.settings() else { return Ok(None) };
    let stores = MeterStores::open(databases).await?;
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
    let keys = secret_keys::open(opener, settings, queue).await?;
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
    pub(crate) keys: Vec<KeySource>,
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
        let mut usage = Usage::new(self.meter.clone(), recorder);
        usage.sources = KeySources::new(&self.keys);
        Ok((usage, tasks))
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
