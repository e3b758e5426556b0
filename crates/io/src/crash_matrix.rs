//! The crash matrix: repeats a run with a fault at each of its store operations, and compares how the runs end.
//!
//! A run lives with a plan of faults as one process, restarts without it, finishes, and returns what is stored in the
//! end. That must not depend on the fault.
//!
//! Guarantees: it fails with the fault and the operation if a run ends differently or does not reach its fault.
//! Leaves to others: the runs.

use std::fmt::Debug;
use std::sync::Arc;

use crate::fault::{Fault, Faults};

/// Which operations of a run are disturbed, and how.
#[derive(Clone, Copy, Debug)]
pub struct CrashMatrix {
    operations_min: u64,
    operations_max: u64,
    step: u64,
    in_turn: bool,
    is_repeatable: bool,
}

impl CrashMatrix {
    /// Every fault at every operation. An undisturbed run that has fewer operations than `operations_min` does not do
    /// what it is meant to do.
    pub fn of_at_least(operations_min: u64) -> Self {
        Self {
            operations_min,
            operations_max: u64::MAX,
            step: 1,
            in_turn: false,
            is_repeatable: true,
        }
    }

    /// Only this many operations, evenly spread.
    #[must_use]
    pub fn at_most(self, operations_max: u64) -> Self {
        Self { operations_max, ..self }
    }

    /// Only every `step`-th operation.
    #[must_use]
    pub fn every(self, step: u64) -> Self {
        Self { step, ..self }
    }

    /// One fault at each operation, the kinds in turn; but all at each, if no operation is left out.
    #[must_use]
    pub fn in_turn(self) -> Self {
        Self { in_turn: true, ..self }
    }

    /// The operations of a run depend on more than its plan, so that it may end before its fault.
    #[must_use]
    pub fn with_varying_runs(self) -> Self {
        Self { is_repeatable: false, ..self }
    }

    /// Makes all runs; returns how the undisturbed one ended.
    ///
    /// # Panics
    ///
    /// If a run ends differently.
    pub async fn check<T: Debug + PartialEq>(self, run: impl AsyncFn(Arc<Faults>) -> T) -> T {
        let counted = Faults::none();
        let undisturbed = run(Arc::clone(&counted)).await;
        let operations = counted.operations();
        assert!(operations >= self.operations_min, "the run has only {operations} operations");
        for (operation, fault) in self.plan(operations) {
            let faults = Faults::at(operation, fault);
            let end = run(Arc::clone(&faults)).await;
            assert_eq!(end, undisturbed, "{fault:?} at operation {operation} of {operations}");
            let is_reached = faults.operations() > operation && faults.crashed() == fault.crashes();
            let must_be_reached = self.is_repeatable;
            assert!(!must_be_reached || is_reached, "{fault:?} at {operation} was not reached");
        }
        undisturbed
    }

    fn plan(self, operations: u64) -> Vec<(u64, Fault)> {
        let step = self.step.max(operations.div_ceil(self.operations_max));
        let is_single = self.in_turn && step > 1;
        let disturbed = (0..operations).filter(|operation| operation.is_multiple_of(step));
        let kinds = |operation: u64| {
            let turn = operation / step % 4;
            let is_due = move |kind: u64| !is_single || kind == turn;
            let kinds = (0..).zip(Fault::ALL).filter(move |(kind, _)| is_due(*kind));
            kinds.map(move |(_, fault)| (operation, fault))
        };
        disturbed.flat_map(kinds).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A protocol of five operations, which repeats a failed one.
    async fn run(faults: &Faults) -> u32 {
        let mut done = 0;
        while done < 5 && !faults.crashed() {
            done += u32::from(faults.run(async { Ok(()) }).await.is_ok());
        }
        5
    }

    #[tokio::test]
    async fn every_fault_is_tried_at_every_operation() {
        let plan = CrashMatrix::of_at_least(5).plan(5);
        assert_eq!(plan.len(), 20);
        assert_eq!(plan[4..6], [(1, Fault::Before), (1, Fault::After)]);
        assert_eq!(CrashMatrix::of_at_least(5).check(async |faults| run(&faults).await).await, 5);
    }

    #[test]
    fn samples_are_evenly_spread() {
        let matrix = CrashMatrix::of_at_least(0);
        let plan = matrix.at_most(3).in_turn().plan(8);
        assert_eq!(plan, [(0, Fault::Before), (3, Fault::After), (6, Fault::CrashBefore)]);
        assert_eq!(matrix.at_most(3).plan(8).len(), 12);
        assert_eq!(matrix.every(4).in_turn().plan(8), [(0, Fault::Before), (4, Fault::After)]);
        assert_eq!(matrix.at_most(8).in_turn().plan(8).len(), 32);
    }

    #[tokio::test]
    #[should_panic(expected = "CrashBefore at operation 2 of 5")]
    async fn a_run_that_ends_differently_is_found() {
        let careless = async |faults: Arc<Faults>| {
            run(&faults).await;
            faults.crashed() && faults.operations() == 3
        };
        CrashMatrix::of_at_least(5).check(careless).await;
    }

    #[tokio::test]
    #[should_panic(expected = "was not reached")]
    async fn a_run_that_does_not_reach_its_fault_is_found() {
        let runs = std::sync::atomic::AtomicU32::new(0);
        let lazy = async |faults: Arc<Faults>| {
            if runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                run(&faults).await;
            }
        };
        CrashMatrix::of_at_least(5).check(lazy).await;
    }
}
