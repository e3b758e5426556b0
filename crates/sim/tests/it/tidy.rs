//! Rules about the source tree that can be checked automatically, each as a test.
//!
//! Guarantees: a failing rule names every violation and what to do. The rules look at the files that git tracks or
//! would add. Leaves to others: what the compiler, `rustfmt`, `clippy` (its ban list is `clippy.toml`) and `typos`
//! already check; and judgement: where a rule makes a place worse, the exception is listed with its reason beside the
//! rule.

mod advisories;
mod brief;
mod decisions;
mod dependencies;
mod kernel;
mod knots;
mod licence;
mod lock;
mod ports;
mod scan;
mod settings;
mod size;
mod source;
mod tree;

/// Fails with all `faults` at once, so that one run shows everything to fix.
#[track_caller]
fn assert_none(faults: &[String], advice: &str) {
    assert!(faults.is_empty(), "{advice}\n  {}\n", faults.join("\n  "));
}
