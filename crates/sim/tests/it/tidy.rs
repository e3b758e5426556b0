//! The rules of the tree that a machine can keep, each a test of its own.
//!
//! Guarantees: a rule that fails names every place that breaks it and says what to do. The rules look at the
//! files that git knows or would add. Leaves to others: what the compiler, `rustfmt`, `clippy` (its ban list is
//! `clippy.toml`) and `typos` already see; and judgment, so where a rule makes a place worse, the exception is
//! listed with its reason beside the rule.

mod advisories;
mod decisions;
mod dependencies;
mod licence;
mod lock;
mod ports;
mod scan;
mod settings;
mod size;
mod source;
mod tree;

/// Fails with all `faults` at once, so that one run shows the whole work.
#[track_caller]
fn assert_none(faults: &[String], advice: &str) {
    assert!(faults.is_empty(), "{advice}\n  {}\n", faults.join("\n  "));
}
