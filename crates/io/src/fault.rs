//! Fault injection: makes any store fail, lose an answer, be slow, or crash.
//!
//! A [`Faults`] plan counts the operations of all stores that share it and decides about each: fail before it
//! happens, let it happen and lose the answer, delay it, crash, or do something else first. After a crash every
//! further operation fails, as for a process that is gone. [`crate::FaultyStore`] applies a plan to a store,
//! [`crate::Sql::with_faults`] to a database.
//!
//! Guarantees: plans with the same seed, given operations in the same order, make the same decisions. Leaves to
//! others: restarting (open a new handle to the same store, without the plan).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;

use crate::entropy::Entropy;
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The operation fails without effect.
    Before,
    /// The operation takes effect, but its answer is lost.
    After,
    /// The process crashes just before the operation.
    CrashBefore,
    /// The process crashes just after the operation.
    CrashAfter,
}

impl Fault {
    /// All that disturb.
    pub const ALL: [Self; 4] = [Self::Before, Self::After, Self::CrashBefore, Self::CrashAfter];

    pub fn crashes(self) -> bool {
        matches!(self, Self::CrashBefore | Self::CrashAfter)
    }
}

/// A plan of faults.
pub struct Faults {
    operations: AtomicU64,
    crashed_at: AtomicU64,
    latency: Duration,
    rule: Rule,
}

/// What happens before each operation, by its number.
type Action = Box<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>;

enum Rule {
    Never,
    BeforeEach(Action),
    At { operation: u64, fault: Fault },
    Chance { entropy: Arc<dyn Entropy>, before_permille: u64, after_permille: u64 },
}

const ALIVE: u64 = u64::MAX;

impl Faults {
    fn with_rule(rule: Rule) -> Arc<Self> {
        Arc::new(Self {
            operations: AtomicU64::new(0),
            crashed_at: AtomicU64::new(ALIVE),
            latency: Duration::ZERO,
            rule,
        })
    }

    /// Injects no faults; only counts operations.
    pub fn none() -> Arc<Self> {
        Self::with_rule(Rule::Never)
    }

    /// One fault, at the operation with this number (the first is 0).
    pub fn at(operation: u64, fault: Fault) -> Arc<Self> {
        Self::with_rule(Rule::At { operation, fault })
    }

    /// Random faults, with the given chances in a thousand before and after each operation.
    pub fn seeded(
        entropy: Arc<dyn Entropy>,
        before_permille: u64,
        after_permille: u64,
    ) -> Arc<Self> {
        Self::with_rule(Rule::Chance { entropy, before_permille, after_permille })
    }

    /// Delays every operation.
    pub fn slow(latency: Duration) -> Arc<Self> {
        Arc::new(Self {
            operations: AtomicU64::new(0),
            crashed_at: AtomicU64::new(ALIVE),
            latency,
            rule: Rule::Never,
        })
    }

    /// No fault, but an action before each operation, with its number (the first is 0).
    pub fn before_each(
        action: impl Fn(u64) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_rule(Rule::BeforeEach(Box::new(action)))
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    pub fn crashed(&self) -> bool {
        self.crashed_at.load(Ordering::SeqCst) != ALIVE
    }

    pub async fn run<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        self.alive()?;
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        if let Rule::BeforeEach(action) = &self.rule {
            action(number).await;
        }
        match self.decide(number) {
            Fault::None => {
                let answer = operation.await;
                // A caller that was waiting for an answer when the process crashed does not get it.
                self.alive()?;
                answer
            }
            Fault::Before => Err(Error::Injected { operation: number }),
            Fault::CrashBefore => Err(self.crash(number)),
            Fault::After => {
                operation.await?;
                Err(Error::InDoubt {
                    doing: "an operation whose answer a test dropped".to_owned(),
                    source: Box::new(Error::Injected { operation: number }),
                })
            }
            Fault::CrashAfter => {
                operation.await?;
                Err(self.crash(number))
            }
        }
    }

    fn alive(&self) -> Result<()> {
        match self.crashed_at.load(Ordering::SeqCst) {
            ALIVE => Ok(()),
            operation => Err(Error::Crashed { operation }),
        }
    }

    fn crash(&self, operation: u64) -> Error {
        self.crashed_at.store(operation, Ordering::SeqCst);
        Error::Crashed { operation }
    }

    fn decide(&self, number: u64) -> Fault {
        match &self.rule {
            Rule::Never | Rule::BeforeEach(_) => Fault::None,
            Rule::At { operation, fault } if *operation == number => *fault,
            Rule::At { .. } => Fault::None,
            Rule::Chance { entropy, before_permille, after_permille } => {
                let drawn = entropy.below(1000);
                if drawn < *before_permille {
                    Fault::Before
                } else if drawn < before_permille + after_permille {
                    Fault::After
                } else {
                    Fault::None
                }
            }
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faults({} operations, crashed: {})", self.operations(), self.crashed())
    }
}
