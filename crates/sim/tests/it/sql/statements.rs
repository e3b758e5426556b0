//! One statement, two engines: both treat parameters, values and errors alike.

use logmill_io::sql::Execute;
use logmill_io::{ErrorKind, Value, params};

use super::{DatabaseKinds, number, run};

#[tokio::test]
async fn parameters_bind_by_their_number_in_any_order() {
    let cases: [(&str, Vec<Value>, &[i64]); 4] = [
        ("$2, $1", params![1_i64, 2_i64], &[2, 1]),
        ("$2, $1, $2, $1, $3", params![1_i64, 2_i64, 3_i64], &[2, 1, 2, 1, 3]),
        ("$3, $3", params![1_i64, 2_i64, 3_i64], &[3, 3]),
        ("$10, $1", (1..=10_i64).map(Value::Int).collect(), &[10, 1]),
    ];
    for sql in DatabaseKinds::start().await.open().await {
        for (places, params, expected) in &cases {
            // Every parameter is used once more, because PostgreSQL needs to know the type of each.
            let all = (1..=params.len()).map(|number| format!("CAST(${number} AS bigint) IS NULL"));
            let all: Vec<String> = all.collect();
            let places: Vec<String> =
                places.split(", ").map(|place| format!("CAST({place} AS bigint)")).collect();
            let text = format!("SELECT {} WHERE NOT ({})", places.join(", "), all.join(" OR "));
            let found = sql.query(&text, params.clone()).await.expect("a query");
            let found: Vec<i64> =
                (0..expected.len()).map(|at| found.rows[0].int(at).expect("one")).collect();
            assert_eq!(found, *expected, "{sql:?}: {text}");
        }
    }
}

#[tokio::test]
async fn text_and_bytes_round_trip() {
    let texts =
        ["", " ", "'", "\"", "\\", "$1", "ключ", "\u{1f980}", "a\u{301}", "line\nline\r\n\t"];
    let blobs: [&[u8]; 5] = [b"", b"\0", b"\0\xff\0", b"\\x00", &[7; 70_000]];
    for sql in DatabaseKinds::start().await.open().await {
        run(&sql, "CREATE TABLE thing (name {name} PRIMARY KEY, words TEXT, raw {bytes})").await;
        let insert = "INSERT INTO thing (name, words, raw) VALUES ($1, $1, $2)
                      ON CONFLICT (name) DO UPDATE SET raw = excluded.raw RETURNING words, raw";
        for text in texts {
            for blob in blobs {
                let stored = sql.execute(insert, params![text, blob]).await.expect("an insert");
                assert_eq!(stored.rows[0].text(0).expect("text"), text, "{sql:?}");
                assert_eq!(stored.rows[0].blob(1).expect("bytes"), blob, "{sql:?}");
                let select = "SELECT words, raw FROM thing WHERE name = $1 AND raw = $2";
                let found = sql.query(select, params![text, blob]).await.expect("a query");
                assert_eq!(found.rows, stored.rows, "{sql:?}: {text:?}");
            }
        }
        let mut sorted = texts;
        sorted.sort_unstable();
        let found =
            sql.query("SELECT name FROM thing ORDER BY name", params![]).await.expect("all");
        let found: Vec<&str> = found.rows.iter().map(|row| row.text(0).expect("text")).collect();
        assert_eq!(found, sorted, "{sql:?}: names sort by their bytes");
    }
}

#[tokio::test]
async fn invalid_statements_are_refused_alike_by_both_engines() {
    use ErrorKind::{Conflict, Invalid};
    let cases: [(&str, Vec<Value>, ErrorKind, &str); 9] = [
        ("INSERT INTO thing (id, words) VALUES ($1, $2)", params![5_i64, "a\0b"], Invalid, "NUL"),
        ("INSERT INTO thing (id) VALUES ($1)", params![1_i64], Conflict, "INSERT INTO thing"),
        ("INSERT INTO thing (id) VALUES ($1)", params![Value::Null], Conflict, "INSERT INTO thing"),
        ("INSERT INTO thing (id) VALUES ($1)", params![], Invalid, "INSERT INTO thing"),
        ("INSERT INTO thing (id) VALUES (7)", params![1_i64], Invalid, "INSERT INTO thing"),
        ("INSERT INTO nothing (id) VALUES (1)", params![], Invalid, "nothing"),
        ("INSERT INTO thing (missing) VALUES (1)", params![], Invalid, "missing"),
        ("INSERT THING", params![], Invalid, "syntax error"),
        (
            "INSERT INTO thing (id) VALUES (8); INSERT INTO thing (id) VALUES (9)",
            params![],
            Invalid,
            "INSERT INTO thing",
        ),
    ];
    for sql in DatabaseKinds::start().await.open().await {
        run(&sql, "CREATE TABLE thing (id BIGINT NOT NULL PRIMARY KEY, words TEXT)").await;
        run(&sql, "INSERT INTO thing (id) VALUES (1)").await;
        for (text, params, kind, part) in &cases {
            let alone = sql.execute(text, params.clone()).await.expect_err("refused");
            let within = sql.write(|tx| {
                let params = params.clone();
                async move { tx.execute(text, params).await }
            });
            for error in [alone, within.await.expect_err("refused")] {
                let chain = error.chain();
                assert_eq!(error.kind(), *kind, "{sql:?}: {text}: {chain}");
                assert!(chain.contains(part), "{sql:?}: {text}: {chain}");
            }
        }
        assert_eq!(number(&sql, "SELECT count(*) FROM thing").await, 1, "{sql:?}");
    }
}

#[tokio::test]
async fn sessions_have_their_limits() {
    let kinds = DatabaseKinds::start().await;
    let sql = kinds.open().await.pop().expect("PostgreSQL is the last");
    for (setting, expected) in [
        ("statement_timeout", "1min"),
        ("idle_in_transaction_session_timeout", "10s"),
        ("plan_cache_mode", "force_generic_plan"),
        ("synchronous_commit", "off"),
    ] {
        let text = format!("SELECT current_setting('{setting}')");
        let found = sql.query(&text, params![]).await.expect("a setting");
        assert_eq!(found.rows[0].text(0).expect("text"), expected, "{setting}");
    }
}
