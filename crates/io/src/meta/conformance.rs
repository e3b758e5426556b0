//! Tests that every [`MetaStore`] must pass: the guarantees of the trait as cases.
//!
//! Run them against a new implementation with [`run`]. They write only keys and fences under their own prefix,
//! so they can run against a store with other data. They must reject a store whose conditional writes lose
//! races, so the racing cases run many rounds with many writers.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::join_all;

use super::{BATCH_OPS_MAX, KEY_BYTES_MAX};
use super::{Batch, Condition, Fence, Key, KeyRange, MetaStore, MetaStoreExt, Op, Version};
use crate::entropy::Entropy;
use crate::error::{ErrorKind, Result};
use crate::violation::Violation;

/// Number of writers that race for one key.
const RACERS: usize = 16;
/// Number of races.
const ROUNDS: usize = 25;

/// Runs all cases; stops at the first violation.
pub async fn run(store: &Arc<dyn MetaStore>, entropy: &dyn Entropy) -> Result<(), Violation> {
    let suite = Suite { store, prefix: format!("conformance/{:016x}/", entropy.next_u64()) };
    suite.records().await?;
    suite.conditions().await?;
    suite.versions_are_never_reused().await?;
    suite.batches_are_atomic().await?;
    suite.checks().await?;
    suite.scans().await?;
    suite.limits().await?;
    suite.fences().await?;
    suite.the_clock_does_not_go_back().await?;
    suite.one_of_many_inserts_wins().await?;
    suite.no_increment_is_lost().await?;
    suite.two_checks_do_not_pass_each_other().await?;
    suite.no_stale_write_lands_after_a_take_over().await
}

struct Suite<'a> {
    store: &'a Arc<dyn MetaStore>,
    prefix: String,
}

type Case = Result<(), Violation>;

impl Suite<'_> {
    fn key(&self, name: &str) -> Key {
        Key::from(format!("{}{name}", self.prefix))
    }

    async fn value(&self, key: &Key) -> Option<Vec<u8>> {
        self.store.get(key).await.ok().flatten().map(|record| record.value.to_vec())
    }

    async fn records(&self) -> Case {
        let case = "records are read as they were written";
        let key = self.key("records");
        same(case, self.value(&key).await, None)?;
        for value in [&b"one"[..], b"", &[0, 255, 0], &vec![7; 100_000]] {
            let put = self.store.put(key.clone(), value.to_vec(), Condition::Any).await;
            let version = works(case, put)?;
            let found = works(case, self.store.get(&key).await)?;
            let found = found.ok_or_else(|| Violation::new(case, "a record is gone"))?;
            same(case, (&found.value[..], found.version), (value, version))?;
        }
        works(case, self.store.delete(key.clone(), Condition::Any).await)?;
        same(case, self.value(&key).await, None)?;
        works(case, self.store.delete(key, Condition::Any).await)
    }

    async fn conditions(&self) -> Case {
        let case = "a write happens only if its condition holds";
        let key = self.key("conditions");
        let first = works(case, self.store.put(key.clone(), "1", Condition::Absent).await)?;
        let again = self.store.put(key.clone(), "x", Condition::Absent).await;
        fails(case, again, ErrorKind::Conflict)?;
        let second =
            works(case, self.store.put(key.clone(), "2", Condition::Version(first)).await)?;
        let stale = self.store.put(key.clone(), "x", Condition::Version(first)).await;
        fails(case, stale, ErrorKind::Conflict)?;
        let stale = self.store.delete(key.clone(), Condition::Version(first)).await;
        fails(case, stale, ErrorKind::Conflict)?;
        same(case, self.value(&key).await, Some(b"2".to_vec()))?;
        works(case, self.store.delete(key.clone(), Condition::Version(second)).await)?;
        same(case, self.value(&key).await, None)?;
        let gone = self.store.put(key.clone(), "x", Condition::Version(second)).await;
        fails(case, gone, ErrorKind::Conflict)?;
        let senseless = self.store.delete(key, Condition::Absent).await;
        fails(case, senseless, ErrorKind::Invalid)
    }

    async fn versions_are_never_reused(&self) -> Case {
        let case = "a version is never used twice";
        let key = self.key("versions");
        let mut seen = BTreeSet::new();
        for round in 0..20_u8 {
            let condition = if round % 3 == 0 { Condition::Any } else { Condition::Absent };
            let put = self.store.put(key.clone(), "same value", condition).await;
            let Version(version) = works(case, put)?;
            if !seen.insert(version) {
                return Err(Violation::new(case, format!("version {version} was reused")));
            }
            works(case, self.store.delete(key.clone(), Condition::Any).await)?;
        }
        Ok(())
    }

    async fn batches_are_atomic(&self) -> Case {
        let case = "a batch happens completely or not at all";
        let (a, b, c) = (self.key("batch/a"), self.key("batch/b"), self.key("batch/c"));
        works(case, self.store.put(c.clone(), "old", Condition::Any).await)?;
        let batch = || {
            Batch::new()
                .put(a.clone(), "new", Condition::Absent)
                .put(b.clone(), "new", Condition::Any)
                .delete(c.clone(), Condition::Any)
        };
        let broken = batch().check(self.key("batch/missing"), Condition::Version(Version(1)));
        fails(case, self.store.commit(broken).await, ErrorKind::Conflict)?;
        same(case, (self.value(&a).await, self.value(&b).await), (None, None))?;
        same(case, self.value(&c).await, Some(b"old".to_vec()))?;
        let versions = works(case, self.store.commit(batch()).await)?;
        let wrote: Vec<bool> = versions.iter().map(Option::is_some).collect();
        same(case, wrote, vec![true, true, false])?;
        let stored = self.store.get(&b).await.ok().flatten().map(|record| record.version);
        same(case, stored, versions[1])?;
        same(case, self.value(&c).await, None)?;
        works(case, self.store.commit(Batch::new()).await).map(|_| ())
    }

    async fn checks(&self) -> Case {
        let case = "a check changes nothing";
        let (key, other) = (self.key("check/a"), self.key("check/b"));
        let version = works(case, self.store.put(key.clone(), "1", Condition::Any).await)?;
        let good = Batch::new()
            .check(key.clone(), Condition::Version(version))
            .check(other.clone(), Condition::Absent);
        works(case, self.store.commit(good).await)?;
        let bad = Batch::new().check(key.clone(), Condition::Absent);
        fails(case, self.store.commit(bad).await, ErrorKind::Conflict)?;
        let bad = Batch::new().check(other.clone(), Condition::Version(version));
        fails(case, self.store.commit(bad).await, ErrorKind::Conflict)?;
        let found = works(case, self.store.get(&key).await)?.map(|record| record.version);
        same(case, (found, self.value(&other).await), (Some(version), None))
    }

    async fn scans(&self) -> Case {
        let case = "a scan returns the keys of its range in byte order";
        let names: [&[u8]; 7] = [b"", b"\x00", b"\x00\xff", b"a", b"a/b", b"\xfe", b"\xff\xff"];
        let prefix = self.key("scan/");
        let keys: Vec<Key> =
            names.iter().map(|name| Key::from([prefix.as_bytes(), name].concat())).collect();
        for key in keys.iter().rev() {
            works(case, self.store.put(key.clone(), key.to_bytes(), Condition::Any).await)?;
        }
        works(case, self.store.put(self.key("scan0"), "after", Condition::Any).await)?;
        works(case, self.store.put(self.key("scan."), "before", Condition::Any).await)?;
        let range = KeyRange::prefix(prefix);
        let all = works(case, self.store.scan(&range, 100).await)?;
        same(case, all.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), keys.clone())?;
        if let Some((key, record)) = all.iter().find(|(key, record)| key.as_bytes() != record.value)
        {
            return Err(Violation::new(case, format!("{key} has the value {:?}", record.value)));
        }
        let mut paged = Vec::new();
        let mut page_range = range.clone();
        loop {
            let page = works(case, self.store.scan(&page_range, 2).await)?;
            let Some((last, _)) = page.last() else {
                break;
            };
            page_range = range.clone().after(last.clone());
            paged.extend(page.into_iter().map(|(key, _)| key));
        }
        same(case, paged, keys)?;
        same(case, works(case, self.store.scan(&range, 0).await)?.len(), 0)
    }

    async fn limits(&self) -> Case {
        let case = "oversized and invalid requests are refused";
        let long = Key::from(vec![b'k'; KEY_BYTES_MAX + 1]);
        fails(case, self.store.put(long, "", Condition::Any).await, ErrorKind::Invalid)?;
        let twice = Batch::new()
            .put(self.key("twice"), "1", Condition::Any)
            .delete(self.key("twice"), Condition::Any);
        fails(case, self.store.commit(twice).await, ErrorKind::Invalid)?;
        let op =
            |number| Op::Check { key: self.key(&format!("{number}")), condition: Condition::Any };
        let many = Batch { ops: (0..=BATCH_OPS_MAX).map(op).collect(), fence: None };
        fails(case, self.store.commit(many).await, ErrorKind::Invalid)
    }

    fn fence(&self, name: &str, counter: i64) -> Fence {
        Fence { name: format!("{}{name}", self.prefix), counter }
    }

    async fn fences(&self) -> Case {
        let case = "a stale fence is refused, and counters only grow";
        let key = self.key("fenced");
        let write = |counter| {
            let batch = Batch::new().put(key.clone(), format!("{counter}"), Condition::Any);
            self.store.commit(batch.fenced(self.fence("f", counter)))
        };
        let raise = |counter| self.store.commit(Batch::new().raise(self.fence("f", counter)));
        fails(case, write(1).await, ErrorKind::Fenced)?;
        works(case, raise(1).await)?;
        works(case, write(1).await)?;
        fails(case, write(2).await, ErrorKind::Fenced)?;
        works(case, raise(5).await)?;
        fails(case, write(1).await, ErrorKind::Fenced)?;
        fails(case, raise(5).await, ErrorKind::Conflict)?;
        fails(case, raise(4).await, ErrorKind::Conflict)?;
        same(case, self.value(&key).await, Some(b"1".to_vec()))?;
        let delete = |counter| {
            let batch = Batch::new().delete(key.clone(), Condition::Any);
            self.store.commit(batch.fenced(self.fence("f", counter)))
        };
        fails(case, delete(1).await, ErrorKind::Fenced)?;
        same(case, self.value(&key).await, Some(b"1".to_vec()))?;
        works(case, delete(5).await)?;
        same(case, self.value(&key).await, None)?;
        works(case, write(5).await)?;
        let both = Batch::new().raise(self.fence("f", 6)).check(key.clone(), Condition::Absent);
        fails(case, self.store.commit(both).await, ErrorKind::Conflict)?;
        let down = Batch::new().raise(self.fence("f", 8)).raise(self.fence("f", 7));
        fails(case, self.store.commit(down).await, ErrorKind::Invalid)?;
        works(case, write(5).await).map(|_| ())
    }

    async fn the_clock_does_not_go_back(&self) -> Case {
        let case = "the store's clock does not go back";
        let first = works(case, self.store.now().await)?;
        let second = works(case, self.store.now().await)?;
        if second < first || first.millis() <= 0 {
            return Err(Violation::new(case, format!("{first:?}, then {second:?}")));
        }
        Ok(())
    }

    async fn one_of_many_inserts_wins(&self) -> Case {
        let case = "of many inserts of one key exactly one wins";
        for round in 0..ROUNDS {
            let key = self.key(&format!("insert/{round}"));
            let racers = (0..RACERS).map(|racer| {
                let value = racer.to_string();
                let key = key.clone();
                async move { self.store.put(key, value, Condition::Absent).await.is_ok() }
            });
            let won = join_all(racers).await;
            let winners: Vec<usize> = (0..RACERS).filter(|racer| won[*racer]).collect();
            let [winner] = winners[..] else {
                return Err(Violation::new(case, format!("round {round} had winners {winners:?}")));
            };
            same(case, self.value(&key).await, Some(winner.to_string().into_bytes()))?;
        }
        Ok(())
    }

    async fn no_increment_is_lost(&self) -> Case {
        let case = "no increment by read and conditional write is lost";
        let key = self.key("counter");
        works(case, self.store.put(key.clone(), "0", Condition::Any).await)?;
        let increments = ROUNDS.min(8);
        let racers = (0..RACERS).map(|_| async {
            for _ in 0..increments {
                while !self.increment(&key).await? {}
            }
            Ok(())
        });
        for outcome in join_all(racers).await {
            works::<()>(case, outcome)?;
        }
        let total = (RACERS * increments).to_string().into_bytes();
        same(case, self.value(&key).await, Some(total))
    }

    async fn increment(&self, key: &Key) -> Result<bool> {
        let record = self.store.read(key).await?;
        let number: u64 = String::from_utf8_lossy(&record.value).parse().unwrap_or(0);
        let next = (number + 1).to_string();
        match self.store.put(key.clone(), next, Condition::Version(record.version)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn two_checks_do_not_pass_each_other(&self) -> Case {
        let case = "two batches that each forbid the other do not both happen";
        for round in 0..ROUNDS {
            let (a, b) =
                (self.key(&format!("skew/{round}/a")), self.key(&format!("skew/{round}/b")));
            let batch = |mine: &Key, other: &Key| {
                Batch::new().check(other.clone(), Condition::Absent).put(
                    mine.clone(),
                    "here",
                    Condition::Absent,
                )
            };
            let (left, right) =
                tokio::join!(self.store.commit(batch(&a, &b)), self.store.commit(batch(&b, &a)));
            if left.is_ok() && right.is_ok() {
                return Err(Violation::new(case, format!("both happened in round {round}")));
            }
        }
        Ok(())
    }

    async fn no_stale_write_lands_after_a_take_over(&self) -> Case {
        let case = "no write with a stale fence lands after the take-over";
        for round in 0..ROUNDS {
            let name = format!("take/{round}");
            let key = self.key(&name);
            works(case, self.store.commit(Batch::new().raise(self.fence(&name, 1))).await)?;
            let writers = (0..RACERS).map(|writer| {
                let batch = Batch::new().put(key.clone(), writer.to_string(), Condition::Any);
                self.store.commit(batch.fenced(self.fence(&name, 1)))
            });
            let take_over = async {
                self.store.commit(Batch::new().raise(self.fence(&name, 2))).await?;
                self.store.get(&key).await
            };
            let (_, seen) = tokio::join!(join_all(writers), take_over);
            let seen = works(case, seen)?;
            same(case, works(case, self.store.get(&key).await)?, seen)?;
        }
        Ok(())
    }
}

fn works<T>(case: &'static str, result: Result<T>) -> Result<T, Violation> {
    result.map_err(|error| Violation::new(case, error.chain()))
}

fn fails<T>(case: &'static str, result: Result<T>, wanted: ErrorKind) -> Case {
    match result {
        Err(error) if error.kind() == wanted => Ok(()),
        Err(error) => {
            Err(Violation::new(case, format!("expected {wanted:?}, got: {}", error.chain())))
        }
        Ok(_) => Err(Violation::new(case, format!("expected {wanted:?}, but it succeeded"))),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "fifty call sites stay short")]
fn same<T: PartialEq + Debug>(case: &'static str, found: T, wanted: T) -> Case {
    if found == wanted {
        return Ok(());
    }
    Err(Violation::new(case, format!("{found:?} instead of {wanted:?}")))
}

#[cfg(test)]
mod tests;
