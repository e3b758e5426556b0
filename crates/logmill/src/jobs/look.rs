//! What the commands that only look print: tables for people, JSON for programs.
//!
//! Guarantees: JSON has every field, times as milliseconds with `_ms` in their names; tables stay one line per job,
//! whatever a key holds. Leaves to others: finding the jobs.

use std::time::Duration;

use logmill_io::{Timestamp, millis};
use logmill_work::Queue;
use logmill_work::queue::{JobView, KindCounts, Place};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::output::{self, duration, moment, one_line};

#[derive(Serialize)]
struct Status {
    kinds: Vec<Counts>,
    paused: Vec<String>,
}

#[derive(Serialize)]
struct Counts {
    kind: String,
    state: &'static str,
    jobs: u64,
    oldest_age_ms: i64,
}

impl From<&KindCounts> for Counts {
    fn from(counts: &KindCounts) -> Self {
        Self {
            kind: counts.kind.clone(),
            state: counts.state.name(),
            jobs: counts.jobs,
            oldest_age_ms: millis(counts.oldest_age),
        }
    }
}

/// How many jobs there are, and which kinds are paused.
pub(super) async fn status(queues: &[Queue], json: bool) -> Result<()> {
    let (mut counts, mut paused) = (Vec::new(), Vec::new());
    for queue in queues {
        counts.extend(queue.counts().await?);
        paused.extend(queue.paused().await?);
    }
    if json {
        return output::json(&Status { kinds: counts.iter().map(Counts::from).collect(), paused });
    }
    if counts.is_empty() {
        output::line("no jobs")?;
    } else {
        let row = |counts: &KindCounts| {
            let oldest = duration(counts.oldest_age);
            vec![
                one_line(&counts.kind),
                counts.state.name().to_owned(),
                counts.jobs.to_string(),
                oldest,
            ]
        };
        let head = ["KIND", "STATE", "JOBS", "OLDEST"].map(str::to_owned).to_vec();
        output::table(&std::iter::once(head).chain(counts.iter().map(row)).collect::<Vec<_>>())?;
    }
    paused.iter().try_for_each(|kind| output::line(&format!("paused: {}", one_line(kind))))
}

#[derive(Serialize)]
struct Job<'a> {
    kind: &'a str,
    key: &'a str,
    state: &'static str,
    priority: i64,
    attempts: i64,
    attempts_max: i64,
    revived: i64,
    /// The text as it is stored.
    payload: &'a str,
    error: Option<&'a str>,
    owner: Option<&'a str>,
    due_at_ms: i64,
    lease_until_ms: Option<i64>,
    created_at_ms: i64,
    started_at_ms: Option<i64>,
    finished_at_ms: Option<i64>,
}

impl<'a> From<&'a JobView> for Job<'a> {
    fn from(job: &'a JobView) -> Self {
        Self {
            kind: &job.kind,
            key: &job.key,
            state: job.state.name(),
            priority: job.priority,
            attempts: job.attempts,
            attempts_max: job.attempts_max,
            revived: job.revived,
            payload: &job.payload,
            error: job.error.as_deref(),
            owner: job.owner.as_deref(),
            due_at_ms: job.due_at.millis(),
            lease_until_ms: job.lease_until.map(Timestamp::millis),
            created_at_ms: job.created_at.millis(),
            started_at_ms: job.started_at.map(Timestamp::millis),
            finished_at_ms: job.finished_at.map(Timestamp::millis),
        }
    }
}

/// Jobs, one a line.
pub(super) fn list(jobs: &[JobView], json: bool) -> Result<()> {
    if json {
        return output::json(&jobs.iter().map(Job::from).collect::<Vec<_>>());
    }
    let row = |job: &JobView| {
        let attempts = format!("{}/{}", job.attempts, job.attempts_max);
        let error = one_line(job.error.as_deref().unwrap_or_default());
        let since = moment(job.finished_at.or(job.started_at).unwrap_or(job.created_at));
        vec![one_line(&job.key), job.priority.to_string(), attempts, since, error]
    };
    let head = ["KEY", "PRIORITY", "ATTEMPTS", "SINCE", "ERROR"].map(str::to_owned).to_vec();
    output::table(&std::iter::once(head).chain(jobs.iter().map(row)).collect::<Vec<_>>())
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    job: Job<'a>,
    position: u64,
    wait_ms: Option<i64>,
}

/// One job with its place in the queue.
pub(super) async fn show(queue: &Queue, kind: &str, key: &str, json: bool) -> Result<()> {
    let missing = || Error::NoJob { kind: kind.to_owned(), key: key.to_owned() };
    let job = queue.get(kind, key).await?.ok_or_else(missing)?;
    let place = queue.place(kind, key).await?;
    if json {
        let wait_ms = place.wait.map(millis);
        return output::json(&Shown { job: Job::from(&job), position: place.position, wait_ms });
    }
    let or_none = |at: Option<Timestamp>| at.map_or("-".to_owned(), moment);
    let rows = [
        ("kind", one_line(&job.kind)),
        ("key", one_line(&job.key)),
        ("state", job.state.name().to_owned()),
        ("place", place_in_words(&place)),
        ("priority", job.priority.to_string()),
        ("attempts", format!("{} of {}", job.attempts, job.attempts_max)),
        ("revived", job.revived.to_string()),
        ("owner", one_line(job.owner.as_deref().unwrap_or("-"))),
        ("due", moment(job.due_at)),
        ("lease until", or_none(job.lease_until)),
        ("created", moment(job.created_at)),
        ("started", or_none(job.started_at)),
        ("finished", or_none(job.finished_at)),
        ("error", one_line(job.error.as_deref().unwrap_or("-"))),
        ("payload", one_line(&job.payload)),
    ];
    output::table(&rows.map(|(name, value)| vec![name.to_owned(), value]))
}

fn place_in_words(place: &Place) -> String {
    match (place.position, place.wait) {
        (0, Some(Duration::ZERO)) => "finished".to_owned(),
        (0, Some(wait)) => format!("running, done in about {}", duration(wait)),
        (0, None) => "running".to_owned(),
        (position, Some(wait)) => format!("{position}, done in about {}", duration(wait)),
        (position, None) => format!("{position}, but nobody runs this kind"),
    }
}
