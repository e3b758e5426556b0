//! Concurrent statements share a commit on SQLite, and none is affected by the failure of another.

use futures::future::join_all;
use logmill_io::sql::{Execute, StatementResult};
use logmill_io::{ErrorKind, Result, Sql, Value, params};
use logmill_sim::Database;
use tokio::sync::oneshot;

use super::{number, run};

/// Runs statements that all wait for the writer when it gets to the first of them.
pub(super) async fn together(
    sql: &Sql,
    statements: Vec<(&str, Vec<Value>)>,
) -> Vec<Result<StatementResult>> {
    let (begun, has_begun) = oneshot::channel();
    let (release, released) = oneshot::channel();
    let mut signals = Some((begun, released));
    let holds = sql.write(|_| {
        let (begun, released) = signals.take().expect("the first attempt works");
        async move {
            begun.send(()).expect("the test waits");
            released.await.expect("the test lets go");
            Ok::<_, logmill_io::Error>(())
        }
    });
    let queued = async {
        has_begun.await.expect("it begins");
        let all = join_all(statements.into_iter().map(|(text, params)| sql.execute(text, params)));
        // In the order of their first poll: all are sent to the writer before it is released.
        let (answers, ()) = tokio::join!(all, async { release.send(()).expect("it holds") });
        answers
    };
    let (held, answers) = tokio::join!(holds, queued);
    held.expect("the holder commits");
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_statement_fails_no_other() {
    const CALLERS: i64 = 100;
    let database = Database::file();
    let sql = database.open().await;
    run(&sql, "CREATE TABLE entry (id BIGINT PRIMARY KEY, caller BIGINT NOT NULL)").await;
    let insert = "INSERT INTO entry (id, caller) VALUES ($1, $2) RETURNING caller";
    // Every tenth statement uses a key that is taken, every tenth is invalid, every tenth violates NOT NULL.
    let statements = (0..CALLERS).map(|caller| match caller % 10 {
        3 => (insert, params![0_i64, caller]),
        4 => ("INSERT INTO nowhere (id) VALUES ($1)", params![caller]),
        5 => (insert, params![caller, Value::Null]),
        _ => (insert, params![caller, caller]),
    });
    let answers = together(&sql, statements.collect()).await;
    for (caller, answer) in (0..CALLERS).zip(answers) {
        match (caller % 10, answer) {
            (3 | 5, answer) => {
                assert_eq!(answer.expect_err("refused").kind(), ErrorKind::Conflict, "{caller}");
            }
            (4, answer) => {
                assert_eq!(answer.expect_err("refused").kind(), ErrorKind::Invalid, "{caller}");
            }
            (_, answer) => {
                let own = answer.expect("nothing is in its way").rows[0].int(0);
                assert_eq!(own.expect("a number"), caller, "each caller gets its own answer");
            }
        }
    }
    assert_eq!(number(&sql, "SELECT count(*) FROM entry").await, 70);
    assert_eq!(number(&sql, "SELECT count(*) FROM entry WHERE id = caller").await, 70);
}
