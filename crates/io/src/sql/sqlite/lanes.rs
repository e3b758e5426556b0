//! Lanes: serves the commands that wait for the writer thread in turn by lane, instead of first come, first
//! served.
//!
//! ```text
//!   A A A A A B ──▶ A: ▮▮▮▮▮ ─┐
//!                   B: ▮     ─┴▶ A B A A A A
//! ```
//!
//! Guarantees: within a lane, entries are taken in order. Between two turns of a lane, every other lane with
//! waiting entries gets one turn, among the entries that were taken from the channel, which are at most
//! [`BUFFERED_MAX`]. Leaves to others: which lane an entry belongs to ([`crate::Sql::in_lane`]).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use tokio::sync::mpsc;

/// Maximum number of entries taken from the channel ahead of their turn.
const BUFFERED_MAX: usize = 1_024;

/// A channel whose entries are received in turn by lane.
pub(super) struct Lanes<T> {
    channel: mpsc::Receiver<(u64, T)>,
    /// Waiting entries by lane; no lane is empty.
    waiting: BTreeMap<u64, VecDeque<T>>,
    buffered: usize,
    /// The lane that had the last turn.
    last: u64,
}

impl<T> Lanes<T> {
    pub(super) fn new(channel: mpsc::Receiver<(u64, T)>) -> Self {
        Self { channel, waiting: BTreeMap::new(), buffered: 0, last: 0 }
    }

    /// Returns the next entry; blocks the thread until there is one. `None` once all senders are dropped.
    pub(super) fn blocking_next(&mut self) -> Option<T> {
        if let Some(entry) = self.next_waiting() {
            return Some(entry);
        }
        let (lane, entry) = self.channel.blocking_recv()?;
        self.last = lane;
        Some(entry)
    }

    /// Returns the next waiting entry, if there is one.
    pub(super) fn next_waiting(&mut self) -> Option<T> {
        while self.buffered < BUFFERED_MAX {
            let Ok((lane, entry)) = self.channel.try_recv() else { break };
            self.waiting.entry(lane).or_default().push_back(entry);
            self.buffered += 1;
        }
        let after_last = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.waiting.range(after_last).next().or_else(|| self.waiting.iter().next());
        let lane = *next?.0;
        let queue = self.waiting.get_mut(&lane)?;
        let entry = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&lane);
        }
        self.buffered -= 1;
        self.last = lane;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_lane_does_not_delay_another() {
        let (sender, receiver) = mpsc::channel(64);
        let send = |lane, entry| sender.try_send((lane, entry)).expect("there is room");
        let mut lanes = Lanes::new(receiver);
        (0..5).for_each(|number| send(1, (1, number)));
        send(7, (7, 0));
        send(3, (3, 0));
        let mut taken = vec![lanes.blocking_next().expect("one waits")];
        // A later entry waits for at most one turn of each other lane.
        send(3, (3, 1));
        taken.extend(std::iter::from_fn(|| lanes.next_waiting()));
        assert_eq!(taken, [(1, 0), (3, 0), (7, 0), (1, 1), (3, 1), (1, 2), (1, 3), (1, 4)]);
        drop(sender);
        assert_eq!(lanes.blocking_next(), None);
    }

    #[test]
    fn the_number_of_buffered_entries_is_bounded() {
        let (sender, receiver) = mpsc::channel(2 * BUFFERED_MAX);
        for number in 0..2 * BUFFERED_MAX {
            sender.try_send((number as u64 % 2, number)).expect("there is room");
        }
        let mut lanes = Lanes::new(receiver);
        for number in 0..2 * BUFFERED_MAX {
            assert_eq!(lanes.next_waiting().map(|entry| entry % 2), Some((number + 1) % 2));
            assert!(lanes.buffered < BUFFERED_MAX);
        }
        assert_eq!(lanes.next_waiting(), None);
    }
}
