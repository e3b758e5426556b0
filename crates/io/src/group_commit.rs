//! Group commit: callers that arrive during a commit share the next one, and with it one wait for the disk.
//!
//! ```text
//!   caller ─▶ queue ─▶ its turn? ── no: another caller has committed it
//!                         └ yes: commits all that wait ─▶ failed? each alone ─▶ answers
//! ```
//!
//! No task runs in the background: the caller whose turn it is commits for all that wait ([`PendingCommit::commit`]). A
//! writer that has a thread or a task of its own forms its groups itself and commits them with [`commit_group`].
//!
//! Guarantees: items are committed in the order in which they arrived. An item that cannot be committed fails alone. An
//! item whose commit was cancelled with another caller is reported as such. Leaves to others: what a commit is, how
//! many callers there are, and what to do with an item that was dropped.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// Commits several items at once.
pub trait GroupWriter {
    type Item: Send;
    /// Result of one item.
    type Outcome: Send;
    type Error: Send;
    /// What a commit has exclusive use of; its lock decides whose turn it is.
    type State: Send;

    /// Commits all items, or none. Returns their outcomes in order. On failure the items must be as before.
    fn commit(
        &self,
        state: &mut Self::State,
        items: &mut Vec<Self::Item>,
    ) -> impl Future<Output = Result<Vec<Self::Outcome>, Self::Error>> + Send;

    /// Whether nothing can be committed any more: the callers that wait get no answer.
    fn is_fatal(&self, _error: &Self::Error) -> bool {
        false
    }
}

/// An item, and the channel for its result.
#[derive(Debug)]
pub struct WaitingItem<T, R, E> {
    pub item: T,
    pub answer: oneshot::Sender<Result<R, E>>,
}

/// The items that wait for the next commit.
#[derive(Debug)]
pub struct GroupCommit<T, R, E> {
    waiting: Mutex<VecDeque<WaitingItem<T, R, E>>>,
}

impl<T, R, E> Default for GroupCommit<T, R, E> {
    fn default() -> Self {
        Self { waiting: Mutex::default() }
    }
}

/// An item of the next commit, which happens only if this is awaited ([`PendingCommit::commit`]).
#[derive(Debug)]
pub struct PendingCommit<'g, T, R, E> {
    group: &'g GroupCommit<T, R, E>,
    answer: oneshot::Receiver<Result<R, E>>,
}

impl<T, R, E> GroupCommit<T, R, E> {
    /// Adds an item to the next commit.
    pub fn add(&self, item: T) -> PendingCommit<'_, T, R, E> {
        let (answer, receiver) = oneshot::channel();
        self.lock().push_back(WaitingItem { item, answer });
        PendingCommit { group: self, answer: receiver }
    }

    /// Number of items that wait.
    pub fn waiting(&self) -> usize {
        self.lock().len()
    }

    fn take(&self, most: usize) -> Vec<WaitingItem<T, R, E>> {
        let mut waiting = self.lock();
        let count = waiting.len().min(most);
        waiting.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<WaitingItem<T, R, E>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, R, E> PendingCommit<'_, T, R, E> {
    /// Waits for the turn, and commits up to `most` waiting items, until this one has a result. `None` if the caller
    /// that was committing it was dropped: it may be committed or not.
    pub async fn commit<W>(
        mut self,
        writer: &W,
        turn: &tokio::sync::Mutex<W::State>,
        most: usize,
    ) -> Option<Result<R, E>>
    where
        W: GroupWriter<Item = T, Outcome = R, Error = E>,
    {
        loop {
            let mut state = turn.lock().await;
            match self.answer.try_recv() {
                Ok(outcome) => return Some(outcome),
                Err(TryRecvError::Closed) => return None,
                Err(TryRecvError::Empty) => {}
            }
            let group = self.group.take(most);
            if let Err(error) = commit_group(writer, &mut state, group).await {
                return Some(Err(error));
            }
        }
    }
}

/// Commits a group and answers each caller; if the group fails, commits each item alone, because one of them may be the
/// cause. Returns whether all were committed together, or the error after which nothing can be committed any more.
pub async fn commit_group<W: GroupWriter>(
    writer: &W,
    state: &mut W::State,
    group: Vec<WaitingItem<W::Item, W::Outcome, W::Error>>,
) -> Result<bool, W::Error> {
    let (mut items, mut answers) = (Vec::with_capacity(group.len()), VecDeque::new());
    for waiting in group {
        items.push(waiting.item);
        answers.push_back(waiting.answer);
    }
    // A caller that was dropped needs no answer; what was committed stays.
    let mut answer = |outcome| drop(answers.pop_front().map(|answer| answer.send(outcome)));
    match writer.commit(state, &mut items).await {
        Ok(outcomes) => {
            outcomes.into_iter().for_each(|outcome| answer(Ok(outcome)));
            return Ok(true);
        }
        Err(error) if writer.is_fatal(&error) => return Err(error),
        Err(error) if items.len() == 1 => answer(Err(error)),
        Err(_) => {
            for item in items {
                match writer.commit(state, &mut vec![item]).await {
                    Ok(outcomes) => outcomes.into_iter().for_each(|outcome| answer(Ok(outcome))),
                    Err(error) if writer.is_fatal(&error) => return Err(error),
                    Err(error) => answer(Err(error)),
                }
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    /// Commits numbers, of which 13 fails; remembers the committed groups.
    #[derive(Default)]
    struct Numbers(Mutex<Vec<Vec<u32>>>);

    impl GroupWriter for Numbers {
        type Item = u32;
        type Outcome = u32;
        type Error = &'static str;
        type State = ();

        async fn commit(
            &self,
            (): &mut (),
            items: &mut Vec<u32>,
        ) -> Result<Vec<u32>, &'static str> {
            // Others arrive meanwhile.
            tokio::task::yield_now().await;
            if items.contains(&13) {
                return Err("unlucky");
            }
            self.0.lock().expect("no panic").push(items.clone());
            Ok(items.iter().map(|item| item * 2).collect())
        }
    }

    type Outcome = Option<Result<u32, &'static str>>;

    /// Commits each number as a caller of its own, at most four together; returns the outcomes and the groups.
    async fn commit_all(numbers: &[u32]) -> (Vec<Outcome>, Vec<Vec<u32>>) {
        let (writer, group, turn) =
            (Numbers::default(), GroupCommit::default(), tokio::sync::Mutex::new(()));
        let callers = numbers.iter().map(async |number| {
            if *number > 1 {
                tokio::task::yield_now().await;
            }
            group.add(*number).commit(&writer, &turn, 4).await
        });
        let outcomes = join_all(callers).await;
        assert_eq!(group.waiting(), 0);
        drop(group);
        (outcomes, writer.0.into_inner().expect("no panic"))
    }

    #[tokio::test]
    async fn callers_that_arrive_during_a_commit_share_the_next_one() {
        let (outcomes, groups) = commit_all(&[1, 2, 3, 4, 5, 6, 7]).await;
        assert_eq!(outcomes, [2, 4, 6, 8, 10, 12, 14].map(|double| Some(Ok(double))));
        // The first caller whose turn it is does not wait for others.
        assert_eq!(groups, [vec![1], vec![2], vec![3, 4, 5, 6], vec![7]]);
    }

    #[tokio::test]
    async fn an_item_that_cannot_be_committed_fails_alone() {
        let (outcomes, groups) = commit_all(&[1, 2, 13, 4, 5]).await;
        let expected = [Ok(2), Ok(4), Err("unlucky"), Ok(8), Ok(10)];
        assert_eq!(outcomes, expected.map(Some));
        assert_eq!(groups, [vec![1], vec![2], vec![4], vec![5]]);
    }

    #[tokio::test]
    async fn a_caller_dropped_during_a_commit_leaves_the_others_without_an_outcome() {
        let (writer, group, turn) =
            (Numbers::default(), GroupCommit::default(), tokio::sync::Mutex::new(()));
        let (first, second) = (group.add(1), group.add(2));
        let first = Box::pin(first.commit(&writer, &turn, 4));
        // Dropped at its first wait, in the middle of the commit of both.
        assert!(futures::FutureExt::now_or_never(first).is_none());
        assert_eq!(second.commit(&writer, &turn, 4).await, None);
        assert_eq!(group.add(3).commit(&writer, &turn, 4).await, Some(Ok(6)));
    }
}
