//! `logmill jobs …`: list jobs, and change them.
//!
//! Commands that only read open the database, beside a server or without one. Commands that change something write
//! to PostgreSQL directly; on SQLite they send the change to the server that holds the data folder or, if no
//! process holds it, take the folder for as long as the command runs:
//!
//! ```text
//!   take the folder ──▶ taken ──▶ change it here
//!         ▲                └ in use ──▶ connect to its holder ──▶ connected ──▶ let the server change it
//!         └──── wait ◀── not listening (it starts, stops, or is a command like this one)
//! ```
//!
//! On SQLite usage jobs are in the database of usage, and those of collectors and async workers beside the tables
//! that they fill; a command finds them by their kind.
//!
//! Guarantees: a change is made by exactly one process, the one that holds the folder; every path runs the same
//! code ([`crate::control::change`]). Leaves to others: what a change does to a job ([`logmill_work::Queue`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_io::SystemClock;
use logmill_io::sql::DataFolder;
use logmill_work::{NewJob, Queue, State};

use crate::cli;
use crate::config::Settings;
use crate::control::Client;
use crate::control::change::{
    self, Cancel, Change, Enqueue, EnqueueOutcome, Pause, Purge, Redrive, Resume,
};
use crate::error::{Error, Result};
use crate::output;
use crate::stores::{Database, Databases, OpenMode, database_of_jobs, tables};

mod look;

/// Number of attempts to reach the holder of the folder, and the delay between them: five seconds in all.
const TRIES_MAX: u32 = 50;
const TRY_WAIT: Duration = Duration::from_millis(100);
/// After this time, a command prints that it is waiting for a server.
const NOTE_AFTER: Duration = Duration::from_secs(2);
/// On PostgreSQL the wake-up of the servers is sent in the background, a moment after the change; without it they
/// would find the change by their slow poll.
const WAKE_UP_WAIT: Duration = Duration::from_millis(100);

pub(crate) async fn run(command: cli::Jobs, settings: &Settings) -> Result<()> {
    match command {
        cli::Jobs::Status { json } => look::status(&open_all_to_read(settings).await?, json).await,
        cli::Jobs::List { kind, state, after, limit, json } => {
            let queue = open_to_read(settings, &kind).await?;
            let jobs = queue.list(&kind, state, after.as_deref(), limit).await?;
            if jobs.is_empty() {
                change::expect_kind(&queue, &kind).await?;
            }
            look::list(&jobs, json)
        }
        cli::Jobs::Show { kind, key, json } => {
            look::show(&open_to_read(settings, &kind).await?, &kind, &key, json).await
        }
        cli::Jobs::Enqueue { kind, key, payload, priority } => {
            let enqueue = Enqueue::new(kind, key, payload, priority)?;
            let jobs = Jobs::open(settings, enqueue.kind()).await?;
            let enqueued = jobs.change(&enqueue).await?;
            note_if_not_run(settings, enqueue.kind()).await;
            output::line(match enqueued {
                EnqueueOutcome::Created => "created",
                EnqueueOutcome::Revived => "revived",
                EnqueueOutcome::Exists { .. } => "already exists, unchanged",
            })
        }
        cli::Jobs::Cancel { kind, key } => {
            let outcome =
                open_existing(settings, &kind).await?.change(&Cancel { kind, key }).await?;
            output::line(if outcome.cancelled {
                "cancelled"
            } else {
                "already finished, unchanged"
            })
        }
        cli::Jobs::Redrive { kind, key } => {
            let outcome =
                open_existing(settings, &kind).await?.change(&Redrive { kind, key }).await?;
            output::line(&format!("{} redriven", outcome.redriven))
        }
        cli::Jobs::Purge { kind, state, older_than } => {
            let outcome = open_existing(settings, &kind)
                .await?
                .change(&Purge::new(kind, state, older_than))
                .await?;
            output::line(&format!("{} removed", outcome.removed))
        }
        cli::Jobs::Pause { kind } => {
            open_existing(settings, &kind).await?.change(&Pause { kind }).await?;
            output::line("paused")
        }
        cli::Jobs::Resume { kind } => {
            open_existing(settings, &kind).await?.change(&Resume { kind }).await?;
            output::line("resumed")
        }
    }
}

/// Says on standard error that no process runs jobs of a kind: the name may be mistyped. The job is enqueued all the
/// same, because a process that runs its kind may start later.
async fn note_if_not_run(settings: &Settings, kind: &str) {
    // The job is stored: an error here must not look like a failed command.
    let Ok(queue) = open_to_read(settings, kind).await else { return };
    if matches!(queue.has_runner(kind).await, Ok(false)) {
        output::note(&format!(
            "warning: no process runs jobs of the kind {kind:?} now; the job stays pending until one does \
             (`logmill jobs status` lists the kinds)"
        ));
    }
}

/// Opens jobs for a change, which needs an existing database.
async fn open_existing(settings: &Settings, kind: &str) -> Result<Jobs> {
    database_of_jobs(kind).expect(settings)?;
    Jobs::open(settings, kind).await
}

/// Enqueues a job that only a server can run, and waits until it is done. If that takes longer than `within`, the job
/// is cancelled.
pub(crate) async fn run_on_server(
    settings: &Settings,
    job: NewJob,
    within: Option<Duration>,
) -> Result<()> {
    let (kind, key) = enqueue(settings, job).await?;
    let (queue, clock) = (open_to_read(settings, &kind).await?, SystemClock::shared());
    let begun = clock.monotonic();
    let mut is_noted = false;
    loop {
        let job = queue.get(&kind, &key).await?;
        match job.as_ref().map(|job| job.state) {
            Some(State::Done) => return Ok(()),
            Some(State::Pending | State::Running) => {
                let waited = clock.monotonic().saturating_sub(begun);
                if !is_noted && waited > NOTE_AFTER {
                    output::note(&format!("waiting for a server to run the job {kind} {key}"));
                    is_noted = true;
                }
                if within.is_none_or(|within| waited < within) {
                    clock.sleep(TRY_WAIT).await;
                    continue;
                }
                let cancel = Cancel { kind: kind.clone(), key: key.clone() };
                Jobs::open(settings, &kind).await?.change(&cancel).await?;
            }
            Some(State::Dead | State::Cancelled) | None => {}
        }
        let why = job.and_then(|job| job.error);
        let why = why.unwrap_or_else(|| "no server has started it".to_owned());
        return Err(Error::NotDoneByServer { kind, key, why });
    }
}

/// Enqueues one of the program's own jobs; returns its kind and key.
pub(crate) async fn enqueue(settings: &Settings, job: NewJob) -> Result<(String, String)> {
    let (kind, key) = (job.kind.clone(), job.key.clone());
    let enqueue = Enqueue::new(job.kind, job.key, job.payload, 0)?;
    Jobs::open(settings, &kind).await?.change(&enqueue).await?;
    Ok((kind, key))
}

/// Opens all queues read-only.
async fn open_all_to_read(settings: &Settings) -> Result<Vec<Queue>> {
    let databases = Databases::open(settings, OpenMode::Read).await?;
    let mut all = Vec::new();
    if settings.postgres().is_none() {
        for database in [Database::Meter, Database::Tables] {
            if databases.exists(database) {
                all.push(databases.queue(database).await?);
            }
        }
    }
    // The folder of a collector contains only tables.
    match databases.queue(Database::Work).await {
        Err(Error::NoDatabase { .. }) if !all.is_empty() => {}
        queue => all.insert(0, queue?),
    }
    Ok(all)
}

/// Opens the queue of a kind read-only.
async fn open_to_read(settings: &Settings, kind: &str) -> Result<Queue> {
    let databases = Databases::open(settings, OpenMode::Read).await?;
    let database = match database_of_jobs(kind) {
        database if databases.exists(database) => database,
        _ => Database::Work,
    };
    databases.queue(database).await
}

/// Opens the queue of a kind for writing.
async fn open_to_write(settings: &Settings, kind: &str) -> Result<Queue> {
    let databases = Databases::open(settings, OpenMode::Write).await?;
    match database_of_jobs(kind) {
        Database::Tables if settings.postgres().is_none() => {
            Ok(tables::open(&databases).await?.queue().clone())
        }
        database => databases.queue(database).await,
    }
}

/// The process that makes changes.
pub(crate) enum Jobs {
    /// This process, which may write the database and holds its folder, if there is one.
    Direct { queue: Queue, folder: Option<DataFolder> },
    /// The server that holds the folder.
    Remote(Client),
}

impl Jobs {
    /// Finds out which process may write the database of a kind.
    pub(crate) async fn open(settings: &Settings, kind: &str) -> Result<Self> {
        if settings.postgres().is_some() {
            let queue = open_to_write(settings, kind).await?;
            return Ok(Self::Direct { queue, folder: None });
        }
        let clock = SystemClock::shared();
        let mut tries = 0;
        loop {
            let pid = match DataFolder::take(&settings.data) {
                Ok(folder) => {
                    let queue = open_to_write(settings, kind).await?;
                    return Ok(Self::Direct { queue, folder: Some(folder) });
                }
                Err(logmill_io::Error::FolderInUse { pid, .. }) => pid,
                Err(error) => return Err(error.into()),
            };
            match Client::connect(&settings.data, Arc::clone(&clock)).await {
                Ok(client) => return Ok(Self::Remote(client)),
                Err(error) if tries >= TRIES_MAX => {
                    let (folder, source) = (settings.data.clone(), Box::new(error));
                    return Err(Error::NoAnswer { folder, pid, source });
                }
                Err(_) => {}
            }
            tries += 1;
            clock.sleep(TRY_WAIT).await;
        }
    }

    pub(crate) async fn change<C: Change>(self, change: &C) -> Result<C::Outcome> {
        match self {
            // The folder first, so that it is dropped last.
            Self::Direct { folder, queue } => {
                let outcome = change.apply(&queue).await?;
                if folder.is_none() {
                    queue.sql().clock().sleep(WAKE_UP_WAIT).await;
                }
                Ok(outcome)
            }
            Self::Remote(client) => client.send(change).await,
        }
    }
}
