//! Output of the commands that only read: tables for people, JSON for programs.
//!
//! Guarantees: JSON has every field, times as milliseconds with `_ms` in their names; tables have one line per job,
//! whatever a key contains. Leaves to others: finding the jobs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use logmill_io::{Timestamp, millis};
use logmill_work::Queue;
use logmill_work::queue::{JobView, KindCounts, QueuePosition};
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

/// Prints the number of jobs, and which kinds are paused.
pub(super) async fn status(queues: &[Queue], json: bool) -> Result<()> {
    let (mut counts, mut paused) = (Vec::new(), Vec::new());
    for queue in queues {
        counts.extend(queue.counts().await?);
        paused.extend(queue.paused().await?);
    }
    let counts = sum_by_kind_and_state(counts);
    paused.sort();
    paused.dedup();
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

/// Merges the counts of several queues: one row per kind and state.
fn sum_by_kind_and_state(counts: Vec<KindCounts>) -> Vec<KindCounts> {
    let mut all: BTreeMap<(String, &'static str), KindCounts> = BTreeMap::new();
    for one in counts {
        let key = (one.kind.clone(), one.state.name());
        match all.entry(key) {
            Entry::Vacant(entry) => drop(entry.insert(one)),
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                sum.jobs += one.jobs;
                sum.oldest_age = sum.oldest_age.max(one.oldest_age);
            }
        }
    }
    all.into_values().collect()
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
    /// The payload text as it is stored.
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

/// Prints jobs, one per line.
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
struct JobDetails<'a> {
    #[serde(flatten)]
    job: Job<'a>,
    position: u64,
    wait_ms: Option<i64>,
}

/// Prints one job with its position in the queue.
pub(super) async fn show(queue: &Queue, kind: &str, key: &str, json: bool) -> Result<()> {
    let missing = || Error::NoJob { kind: kind.to_owned(), key: key.to_owned() };
    let job = queue.get(kind, key).await?.ok_or_else(missing)?;
    let place = queue.place(kind, key).await?;
    if json {
        let wait_ms = place.wait.map(millis);
        return output::json(&JobDetails {
            job: Job::from(&job),
            position: place.position,
            wait_ms,
        });
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

fn place_in_words(place: &QueuePosition) -> String {
    match (place.position, place.wait) {
        (0, Some(Duration::ZERO)) => "finished".to_owned(),
        (0, Some(wait)) => format!("running, done in about {}", duration(wait)),
        (0, None) => "running".to_owned(),
        (position, Some(wait)) => format!("{position}, done in about {}", duration(wait)),
        (position, None) => format!("{position}, but no process runs this kind"),
    }
}

#[cfg(test)]
mod tests {
    use logmill_work::State;

    use super::*;

    #[test]
    fn a_kind_in_several_queues_has_one_row_per_state() {
        let counts = |kind: &str, state, jobs| KindCounts {
            kind: kind.to_owned(),
            state,
            jobs,
            oldest_age: Duration::from_secs(jobs),
        };
        let all = sum_by_kind_and_state(vec![
            counts("collect-1-fees_worker", State::Dead, 2),
            counts("k", State::Pending, 1),
            counts("collect-1-fees_worker", State::Dead, 5),
            counts("collect-1-fees_worker", State::Pending, 4),
        ]);
        let shown = all.iter().map(|row| (row.kind.as_str(), row.state, row.jobs, row.oldest_age));
        let seconds = Duration::from_secs;
        let expected = [
            ("collect-1-fees_worker", State::Dead, 7, seconds(5)),
            ("collect-1-fees_worker", State::Pending, 4, seconds(4)),
            ("k", State::Pending, 1, seconds(1)),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }
}
