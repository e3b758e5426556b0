//! Records the SQL statements that a test's requests ran, to examine their query plans.
//!
//! Guarantees: a test sees only the statements of its own thread. Leaves to others: judging them.

use std::cell::RefCell;

use logmill_io::Value;

thread_local! {
    static STATEMENTS: RefCell<Vec<(String, Vec<Value>)>> = const { RefCell::new(Vec::new()) };
}

/// Records a statement and returns it.
pub(super) fn record_statement(text: String, params: &[Value]) -> String {
    STATEMENTS.with_borrow_mut(|all| all.push((text.clone(), params.to_vec())));
    text
}

/// Takes all statements recorded since the last call.
pub(in crate::http) fn take_statements() -> Vec<(String, Vec<Value>)> {
    STATEMENTS.take()
}
