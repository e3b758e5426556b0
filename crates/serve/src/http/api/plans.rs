//! Records the SQL statements that a test's requests ran, to examine their query plans.
//!
//! Guarantees: a test sees only the statements of its own thread. A thread that never takes statements records none.
//! Leaves to others: judging them.

use std::cell::RefCell;

use logmill_io::Value;

type Statements = Vec<(String, Vec<Value>)>;

thread_local! {
    static STATEMENTS: RefCell<Option<Statements>> = const { RefCell::new(None) };
}

/// Records a statement and returns it.
pub(super) fn record_statement(text: String, params: &[Value]) -> String {
    STATEMENTS.with_borrow_mut(|all| {
        if let Some(all) = all {
            all.push((text.clone(), params.to_vec()));
        }
    });
    text
}

/// Takes all statements recorded since the last call; the first call begins the recording.
pub fn take_statements() -> Statements {
    STATEMENTS.replace(Some(Vec::new())).unwrap_or_default()
}
