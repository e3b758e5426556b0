//! Tests that every [`BlobStore`] must pass, and any S3 server before it is trusted with data.
//!
//! Guarantees: a store whose conditional writes lose races is rejected with near certainty, since it would have
//! to be lucky in [`RACE_ROUNDS`] rounds of [`RACE_WRITERS`] writers. A run uses names in a random folder and
//! removes them at its end, so it can run against a bucket in use.
//!
//! Leaves to others: crash safety, which needs a process to kill.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::Barrier;

use super::{BlobMeta, BlobName, BlobStore, BlobStoreExt};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};
use crate::task::Tasks;
use crate::violation::Violation;

/// Number of races.
pub const RACE_ROUNDS: usize = 40;
/// Number of writers in each race.
pub const RACE_WRITERS: usize = 16;
/// Larger than any buffer on the way, so that a store that publishes a blob in parts is detected.
const LARGE_BYTES: usize = 5 << 20;
/// Number of readers that poll for a blob while it is being written.
const READERS: usize = 3;
/// Page size of the clean-up after a run.
const SWEEP_PAGE: usize = 100;

pub type Outcome<T = ()> = Result<T, Violation>;

/// Tests one guarantee.
pub type Case = for<'t> fn(&'t Trial) -> BoxFuture<'t, Outcome>;

/// All cases by name, in the order in which they run: simple ones first, then the most important.
pub const CASES: &[(&str, Case)] = &[
    ("a missing blob is none", |t| Box::pin(a_missing_blob_is_none(t))),
    ("a blob is read as it was put", |t| Box::pin(a_blob_is_read_as_it_was_put(t))),
    ("the same bytes can be put again", |t| Box::pin(the_same_bytes_can_be_put_again(t))),
    ("other bytes conflict", |t| Box::pin(other_bytes_conflict(t))),
    ("a range is exact", |t| Box::pin(a_range_is_exact(t))),
    ("a range beyond the end is refused", |t| Box::pin(a_range_beyond_the_end_is_refused(t))),
    ("a deleted name is free", |t| Box::pin(a_deleted_name_is_free(t))),
    ("one writer wins each race", |t| Box::pin(one_writer_wins_each_race(t))),
    ("names are independent", |t| Box::pin(names_are_independent(t))),
    ("lists are in order", |t| Box::pin(lists_are_in_order(t))),
    ("equal writers all succeed", |t| Box::pin(equal_writers_all_succeed(t))),
    ("a blob appears completely", |t| Box::pin(a_blob_appears_completely(t))),
];

/// Runs all cases; returns the first violation.
pub async fn run(store: &Arc<dyn BlobStore>, entropy: &dyn Entropy) -> Outcome {
    for (case, _) in CASES {
        run_case(store, entropy, case).await?;
    }
    Ok(())
}

/// Runs the case with this name.
///
/// # Panics
/// If there is no such case.
pub async fn run_case(store: &Arc<dyn BlobStore>, entropy: &dyn Entropy, case: &str) -> Outcome {
    let known = CASES.iter().find(|(name, _)| *name == case);
    let Some((name, try_it)) = known else { panic!("there is no case {case:?}") };
    let folder = format!("conformance-{:016x}/", entropy.next_u64());
    let trial = Trial { store: Arc::clone(store), folder, case: name };
    let outcome = try_it(&trial).await;
    let swept = trial.sweep().await;
    outcome.and(swept)
}

/// A store under test, with a folder of names that no other process uses.
#[derive(Debug)]
pub struct Trial {
    store: Arc<dyn BlobStore>,
    folder: String,
    case: &'static str,
}

impl Trial {
    fn violated<T>(&self, what: impl Into<String>) -> Outcome<T> {
        Err(Violation::new(self.case, what))
    }

    /// Unwraps an answer that must be `Ok`.
    fn given<T>(&self, doing: &str, answer: Result<T>) -> Outcome<T> {
        let failed = |error: Error| format!("it failed to {doing}: {}", error.chain());
        answer.map_err(|error| Violation::new(self.case, failed(error)))
    }

    /// Checks that the answer is an error of this kind.
    fn refused<T>(&self, doing: &str, answer: Result<T>, kind: ErrorKind) -> Outcome {
        match answer {
            Err(error) if error.kind() == kind => Ok(()),
            Err(error) => self.given(doing, Err(error)),
            Ok(_) => self
                .violated(format!("it accepted a request to {doing}, which must fail as {kind:?}")),
        }
    }

    fn same<T: PartialEq>(&self, what: &str, found: &T, wanted: &T) -> Outcome {
        if found == wanted { Ok(()) } else { self.violated(format!("{what} is wrong")) }
    }

    fn name(&self, name: &str) -> Outcome<BlobName> {
        self.given("name a blob", BlobName::new(format!("{}{name}", self.folder)))
    }

    async fn put(&self, name: &BlobName, bytes: &Bytes) -> Outcome {
        self.given(&format!("put {name}"), self.store.put(name, bytes.clone()).await)
    }

    async fn delete(&self, name: &BlobName) -> Outcome {
        self.given(&format!("delete {name}"), self.store.delete(name).await)
    }

    /// Checks the result of a get.
    async fn holds(&self, name: &BlobName, wanted: Option<&Bytes>) -> Outcome {
        let found = self.given(&format!("get {name}"), self.store.get(name).await)?;
        self.same(&format!("the blob {name}"), &found.as_ref(), &wanted)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Outcome<Vec<BlobMeta>> {
        let prefix = format!("{}{prefix}", self.folder);
        self.given(&format!("list {prefix}"), self.store.list(&prefix, after, limit).await)
    }

    async fn sweep(&self) -> Outcome {
        loop {
            let page = self.list("", None, SWEEP_PAGE).await?;
            for meta in &page {
                self.delete(&meta.name).await?;
            }
            if page.len() < SWEEP_PAGE {
                return Ok(());
            }
        }
    }
}

/// Bytes that differ from those of any other `seed` below 251.
fn body(seed: usize, length: usize) -> Bytes {
    (0..251_u8).cycle().skip(seed).take(length).collect::<Vec<_>>().into()
}

/// A get, a range and a delete of a name that was never put.
pub async fn a_missing_blob_is_none(trial: &Trial) -> Outcome {
    let name = trial.name("missing")?;
    trial.holds(&name, None).await?;
    for range in [0..0, 0..1, 5..9] {
        let found = trial.given("get a range", trial.store.get_range(&name, range).await)?;
        trial.same("a range of a missing blob", &found, &None)?;
    }
    trial.delete(&name).await?;
    let listed = trial.list("", None, 10).await?;
    trial.same("the list of nothing", &listed, &Vec::new())
}

/// Blobs of zero, one and many bytes.
pub async fn a_blob_is_read_as_it_was_put(trial: &Trial) -> Outcome {
    for length in [0, 1, 1000, LARGE_BYTES] {
        let name = trial.name(&format!("of-{length}"))?;
        let bytes = body(length % 7, length);
        trial.put(&name, &bytes).await?;
        trial.holds(&name, Some(&bytes)).await?;
        let listed = trial.list(&format!("of-{length}"), None, 1).await?;
        trial.same("its list", &listed, &vec![BlobMeta { name, bytes: length as u64 }])?;
    }
    Ok(())
}

pub async fn the_same_bytes_can_be_put_again(trial: &Trial) -> Outcome {
    for length in [0, 100] {
        let name = trial.name(&format!("of-{length}"))?;
        let bytes = body(1, length);
        for _ in 0..3 {
            trial.put(&name, &bytes).await?;
            trial.holds(&name, Some(&bytes)).await?;
        }
    }
    Ok(())
}

/// Other bytes of the same length, of another length, and none.
pub async fn other_bytes_conflict(trial: &Trial) -> Outcome {
    let name = trial.name("taken")?;
    let bytes = body(1, 100);
    trial.put(&name, &bytes).await?;
    for other in [body(2, 100), body(1, 99), body(1, 101), Bytes::new()] {
        let put = trial.store.put(&name, other).await;
        trial.refused("put other bytes", put, ErrorKind::Conflict)?;
        trial.holds(&name, Some(&bytes)).await?;
    }
    Ok(())
}

/// Ranges at the start, in the middle, at the end, of everything, and empty ones.
pub async fn a_range_is_exact(trial: &Trial) -> Outcome {
    let bytes = body(3, 1000);
    let (name, empty) = (trial.name("some")?, trial.name("empty")?);
    trial.put(&name, &bytes).await?;
    trial.put(&empty, &Bytes::new()).await?;
    for range in
        [0..1_usize, 0..10, 400..500, 999..1000, 990..1000, 0..1000, 0..0, 7..7, 1000..1000]
    {
        let wanted = bytes.slice(range.clone());
        let asked = range.start as u64..range.end as u64;
        let found = trial.given("get a range", trial.store.get_range(&name, asked).await)?;
        trial.same(&format!("the range {range:?}"), &found, &Some(wanted))?;
    }
    let found = trial.given("get a range", trial.store.get_range(&empty, 0..0).await)?;
    trial.same("the range of nothing", &found, &Some(Bytes::new()))
}

/// Ranges that end or start beyond the end, and a reversed one.
pub async fn a_range_beyond_the_end_is_refused(trial: &Trial) -> Outcome {
    let name = trial.name("some")?;
    trial.put(&name, &body(3, 1000)).await?;
    let reversed = Range { start: 10, end: 9 };
    let vast = 0..u64::MAX;
    for range in [999..1001, 1000..1001, 1001..1001, 5000..6000, vast, reversed] {
        let found = trial.store.get_range(&name, range.clone()).await;
        trial.refused(&format!("get the range {range:?}"), found, ErrorKind::Invalid)?;
    }
    Ok(())
}

/// Deletes, deletes again, and puts other bytes.
pub async fn a_deleted_name_is_free(trial: &Trial) -> Outcome {
    let name = trial.name("a/b")?;
    for seed in 0..3 {
        let bytes = body(seed, 100 + seed);
        trial.put(&name, &bytes).await?;
        trial.holds(&name, Some(&bytes)).await?;
        for _ in 0..2 {
            trial.delete(&name).await?;
            trial.holds(&name, None).await?;
        }
        let listed = trial.list("", None, 10).await?;
        trial.same("the list after a delete", &listed, &Vec::new())?;
    }
    Ok(())
}

/// Names that a careless mapping to files or keys would confuse, in byte order.
const NEIGHBOURS: [&str; 12] =
    ["A", "a", "a-", "a-b", "a-b/c", "a.b", "a/-", "a/b", "a/b/c", "a0", "a_b", "b"];

/// Each name has its own bytes, and a delete removes only those.
pub async fn names_are_independent(trial: &Trial) -> Outcome {
    for (seed, name) in NEIGHBOURS.iter().enumerate() {
        trial.put(&trial.name(name)?, &body(seed, 50)).await?;
    }
    for (gone, next) in NEIGHBOURS.iter().enumerate() {
        for (seed, name) in NEIGHBOURS.iter().enumerate() {
            let bytes = body(seed, 50);
            let wanted = Some(&bytes).filter(|_| seed >= gone);
            trial.holds(&trial.name(name)?, wanted).await?;
        }
        trial.delete(&trial.name(next)?).await?;
    }
    Ok(())
}

/// Compares every prefix, start and limit with a plain filter over the names; then lists page by page.
pub async fn lists_are_in_order(trial: &Trial) -> Outcome {
    let mut all = BTreeSet::new();
    // Not in the order of the names.
    for name in NEIGHBOURS.iter().rev() {
        trial.put(&trial.name(name)?, &body(0, 1)).await?;
        all.insert(*name);
    }
    let starts = [None, Some("0"), Some("a"), Some("a-b"), Some("a-c"), Some("a/b"), Some("z")];
    for prefix in ["", "a", "a-", "a/", "a/b", "a/b/", "a-b/c", "c", "a//", "a/.", "~", " "] {
        for start in starts {
            for limit in [0, 1, 3, usize::MAX] {
                let later = all.iter().filter(|name| start.is_none_or(|start| **name > start));
                let matching = later.filter(|name| name.starts_with(prefix));
                let wanted: Vec<_> = matching.take(limit).copied().collect();
                let listed = listed(trial, prefix, start, limit).await?;
                let what = format!("the list of {prefix:?} after {start:?} up to {limit}");
                trial.same(&what, &listed, &wanted.into_iter().map(str::to_owned).collect())?;
            }
        }
    }
    pages_make_the_whole(trial).await
}

/// The names of a list, without the folder of the trial.
async fn listed(
    trial: &Trial,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Outcome<Vec<String>> {
    let after = after.map(|after| trial.name(after)).transpose()?;
    let metas = trial.list(prefix, after.as_ref(), limit).await?;
    let short = |meta: &BlobMeta| meta.name.as_str().strip_prefix(&trial.folder).map(str::to_owned);
    match metas.iter().map(short).collect() {
        Some(names) => Ok(names),
        None => trial.violated("a list returned a name with another prefix"),
    }
}

async fn pages_make_the_whole(trial: &Trial) -> Outcome {
    for size in [1, 2, 5] {
        let mut seen: Vec<String> = Vec::new();
        loop {
            let page = listed(trial, "", seen.last().map(String::as_str), size).await?;
            let is_last = page.len() < size;
            seen.extend(page);
            if is_last || seen.len() > NEIGHBOURS.len() {
                break;
            }
        }
        trial.same(
            &format!("the whole in pages of {size}"),
            &seen,
            &NEIGHBOURS.map(str::to_owned).to_vec(),
        )?;
    }
    Ok(())
}

pub async fn equal_writers_all_succeed(trial: &Trial) -> Outcome {
    for round in 0..RACE_ROUNDS / 4 {
        let name = trial.name(&format!("shared/{round}"))?;
        let bytes = body(round, 10_000);
        let finishes = race(trial, &name, |_| bytes.clone()).await?;
        for finish in finishes {
            trial.given("put what another is putting", finish.put)?;
            let read = trial.given("read it back", finish.read)?;
            trial.same("the shared blob", &read, &bytes)?;
        }
    }
    Ok(())
}

/// Readers see nothing or all of a large blob while it is being written.
pub async fn a_blob_appears_completely(trial: &Trial) -> Outcome {
    let name = trial.name("large")?;
    let bytes = body(5, LARGE_BYTES);
    let is_written = Arc::new(AtomicBool::new(false));
    let mut readers = Tasks::new();
    for _ in 0..READERS {
        let (store, name) = (Arc::clone(&trial.store), name.clone());
        let (wanted, is_written) = (bytes.clone(), Arc::clone(&is_written));
        readers.spawn(async move {
            while !is_written.load(Ordering::SeqCst) {
                match store.get(&name).await? {
                    Some(found) if found != wanted => return Ok(false),
                    _ => tokio::task::yield_now().await,
                }
            }
            Ok(true)
        });
    }
    let put = trial.put(&name, &bytes).await;
    is_written.store(true, Ordering::SeqCst);
    while let Some(reader) = readers.join_next().await {
        let saw = match reader {
            Ok(read) => trial.given("get while it is written", read)?,
            Err(panicked) => return trial.violated(panicked.to_string()),
        };
        trial.same("what was read while it was written", &saw, &true)?;
    }
    put?;
    trial.holds(&name, Some(&bytes)).await
}

/// Many concurrent writers of different bytes, many times: one put succeeds, all others conflict, and after its
/// own put every writer reads the winner's bytes.
pub async fn one_writer_wins_each_race(trial: &Trial) -> Outcome {
    let mut won = Vec::new();
    for round in 0..RACE_ROUNDS {
        let name = trial.name(&format!("race/{round}"))?;
        // All of one length in every second round, so that a mixture of two blobs is detected too.
        let of = |writer| body(writer, 20_000 + (round % 2) * writer);
        let finishes = race(trial, &name, of).await?;
        let mut winners = Vec::new();
        let mut reads = Vec::new();
        for finish in finishes {
            match finish.put {
                Ok(()) => winners.push(finish.writer),
                put => trial.refused("put in a race", put, ErrorKind::Conflict)?,
            }
            reads.push(trial.given("read after a race", finish.read)?);
        }
        let [winner] = winners[..] else {
            return trial.violated(format!("round {round} had the winners {winners:?}"));
        };
        if reads.iter().any(|read| *read != of(winner)) {
            return trial.violated(format!(
                "in round {round} some writers did not read the winner's bytes"
            ));
        }
        won.push((name, of(winner)));
    }
    for (name, bytes) in &won {
        trial.holds(name, Some(bytes)).await?;
    }
    Ok(())
}

struct RaceResult {
    writer: usize,
    put: Result<()>,
    /// The blob after the put.
    read: Result<Bytes>,
}

/// Makes all writers put their bytes at the same time.
async fn race(
    trial: &Trial,
    name: &BlobName,
    of: impl Fn(usize) -> Bytes,
) -> Outcome<Vec<RaceResult>> {
    let start = Arc::new(Barrier::new(RACE_WRITERS));
    let mut writers = Tasks::new();
    for writer in 0..RACE_WRITERS {
        let (store, name, bytes) = (Arc::clone(&trial.store), name.clone(), of(writer));
        let start = Arc::clone(&start);
        writers.spawn(async move {
            start.wait().await;
            let put = store.put(&name, bytes).await;
            let read = store.read(&name).await;
            RaceResult { writer, put, read }
        });
    }
    let mut finishes = Vec::new();
    while let Some(finish) = writers.join_next().await {
        match finish {
            Ok(finish) => finishes.push(finish),
            Err(panicked) => return trial.violated(panicked.to_string()),
        }
    }
    Ok(finishes)
}
