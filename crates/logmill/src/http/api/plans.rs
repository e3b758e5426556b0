//! The statements that requests of a test have run, to look at their plans.
//!
//! Guarantees: a test sees those of its own thread alone. Leaves to others: judging them.

use std::cell::RefCell;

use logmill_io::Value;

thread_local! {
    static STATEMENTS: RefCell<Vec<(String, Vec<Value>)>> = const { RefCell::new(Vec::new()) };
}

/// Notes a statement, and gives it back.
pub(super) fn noted(text: String, params: &[Value]) -> String {
    STATEMENTS.with_borrow_mut(|all| all.push((text.clone(), params.to_vec())));
    text
}

/// All that were noted since the last time.
pub(in crate::http) fn taken() -> Vec<(String, Vec<Value>)> {
    STATEMENTS.take()
}
