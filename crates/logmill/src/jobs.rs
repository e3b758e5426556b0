//! `logmill jobs …`: looking at jobs, and changing them.
//!
//! Who only looks reads the database, beside a server or without one. Who changes something goes to PostgreSQL
//! itself; on SQLite to the server that has the data folder, or, if nobody has it, takes the folder for as long
//! as the command lasts:
//!
//! ```text
//!   take the folder ──▶ taken ──▶ change it here
//!         ▲                └ in use ──▶ connect to its holder ──▶ connected ──▶ let the server change it
//!         └──── wait ◀── not listening (it starts, stops, or is a command like this one)
//! ```
//!
//! On SQLite jobs about usage are in its database; a command finds them by their kind.
//!
//! Guarantees: a change is made by exactly one process, the one that has the folder; a change is the same code
//! on every way ([`change`]). Leaves to others: what a change does to a job ([`logmill_work::Queue`]).

use std::sync::Arc;
use std::time::Duration;

use logmill_io::SystemClock;
use logmill_io::sql::DataFolder;
use logmill_work::Queue;

use crate::cli;
use crate::config::Settings;
use crate::control::Client;
use crate::error::{Error, Result};
use crate::output;
use crate::stores;
use crate::stores::meter::MeterStores;
use change::{Cancel, Change, Enqueue, Enqueued, Pause, Purge, Redrive, Resume};

pub(crate) mod change;
mod look;

/// How often whoever has the folder is tried, and how long to wait in between: five seconds in all.
const TRIES_MAX: u32 = 50;
const TRY_WAIT: Duration = Duration::from_millis(100);
/// On PostgreSQL the wake-up to the servers leaves in the background, a moment after the change; without it
/// they would find the change by their slow poll.
const WAKE_UP_WAIT: Duration = Duration::from_millis(100);

/// Runs one command.
pub(crate) async fn run(command: cli::Jobs, settings: &Settings) -> Result<()> {
    match command {
        cli::Jobs::Status { json } => {
            let queue = stores::open_to_read(settings).await?;
            let of_usage = stores::meter::jobs_to_read(settings).await?;
            look::status(&[Some(queue), of_usage].into_iter().flatten().collect::<Vec<_>>(), json)
                .await
        }
        cli::Jobs::List { kind, state, after, limit, json } => {
            let queue = to_read(settings, &kind).await?;
            let jobs = queue.list(&kind, state, after.as_deref(), limit).await?;
            look::list(&jobs, json)
        }
        cli::Jobs::Show { kind, key, json } => {
            look::show(&to_read(settings, &kind).await?, &kind, &key, json).await
        }
        cli::Jobs::Enqueue { kind, key, payload, priority } => {
            let enqueue = Enqueue::new(kind, key, payload, priority)?;
            let jobs = Jobs::open(settings, enqueue.kind()).await?;
            output::line(match jobs.change(&enqueue).await? {
                Enqueued::Created => "created",
                Enqueued::Revived => "revived",
                Enqueued::Exists { .. } => "exists already, left alone",
            })
        }
        cli::Jobs::Cancel { kind, key } => {
            let answer = existing(settings, &kind).await?.change(&Cancel { kind, key }).await?;
            output::line(if answer.cancelled {
                "cancelled"
            } else {
                "finished already, left alone"
            })
        }
        cli::Jobs::Redrive { kind, key } => {
            let answer = existing(settings, &kind).await?.change(&Redrive { kind, key }).await?;
            output::line(&format!("{} redriven", answer.redriven))
        }
        cli::Jobs::Purge { kind, state, older_than } => {
            let answer = existing(settings, &kind)
                .await?
                .change(&Purge::new(kind, state, older_than))
                .await?;
            output::line(&format!("{} removed", answer.removed))
        }
        cli::Jobs::Pause { kind } => {
            existing(settings, &kind).await?.change(&Pause { kind }).await?;
            output::line("paused")
        }
        cli::Jobs::Resume { kind } => {
            existing(settings, &kind).await?.change(&Resume { kind }).await?;
            output::line("resumed")
        }
    }
}

/// For changes that make no sense in a folder where nothing is yet.
async fn existing(settings: &Settings, kind: &str) -> Result<Jobs> {
    if settings.postgres().is_none() {
        stores::expect_database(&settings.data)?;
    }
    Jobs::open(settings, kind).await
}

/// The queue of a kind, to be looked at.
async fn to_read(settings: &Settings, kind: &str) -> Result<Queue> {
    if stores::meter::has_jobs_of(kind)
        && let Some(queue) = stores::meter::jobs_to_read(settings).await?
    {
        return Ok(queue);
    }
    stores::open_to_read(settings).await
}

/// The queue of a kind, to be changed.
async fn to_write(settings: &Settings, kind: &str) -> Result<Queue> {
    match stores::meter::has_jobs_of(kind) && settings.postgres().is_none() {
        true => Ok(MeterStores::open_to_write(settings).await?.queue),
        false => stores::open_to_write(settings).await,
    }
}

/// Where changes are made.
pub(crate) enum Jobs {
    /// Here: this process may write the database, and has its folder if it has one.
    Direct { queue: Queue, folder: Option<DataFolder> },
    /// By the server that has it.
    Remote(Client),
}

impl Jobs {
    /// Finds out who has the database of a kind.
    pub(crate) async fn open(settings: &Settings, kind: &str) -> Result<Self> {
        if settings.postgres().is_some() {
            let queue = to_write(settings, kind).await?;
            return Ok(Self::Direct { queue, folder: None });
        }
        let clock = SystemClock::shared();
        let mut tries = 0;
        loop {
            let pid = match DataFolder::take(&settings.data) {
                Ok(folder) => {
                    let queue = to_write(settings, kind).await?;
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

    /// Makes one change.
    pub(crate) async fn change<C: Change>(self, change: &C) -> Result<C::Answer> {
        match self {
            // The folder first, so that it is the last to be dropped.
            Self::Direct { folder, queue } => {
                let answer = change.apply(&queue).await?;
                if folder.is_none() {
                    queue.sql().clock().sleep(WAKE_UP_WAIT).await;
                }
                Ok(answer)
            }
            Self::Remote(client) => client.send(change).await,
        }
    }
}
