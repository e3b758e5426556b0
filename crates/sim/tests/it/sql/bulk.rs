//! A bulk write has the same effect as writing its rows one by one, on both engines, with and without `COPY`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Amount, Entropy, ErrorKind, OsEntropy, SeededEntropy, Sql, Value, params};

use super::{DatabaseKinds, number, run};

const COLUMNS: &[(&str, ColumnType)] = &[
    ("shard", ColumnType::Int),
    ("name", ColumnType::Text),
    ("small", ColumnType::Int),
    ("large", ColumnType::Int),
    ("words", ColumnType::Text),
    ("raw", ColumnType::Blob),
    ("amount", ColumnType::Amount),
];

const CONFLICTS: [&str; 3] = [
    "DO NOTHING",
    "DO UPDATE SET large = excluded.large, words = excluded.words, raw = excluded.raw,
     amount = amount_add(many.amount, excluded.amount)",
    "DO UPDATE SET small = excluded.small WHERE excluded.small > many.small",
];

fn bulk(on_conflict: &'static str) -> Bulk {
    Bulk {
        table: "many".into(),
        columns: COLUMNS.into(),
        key_columns: 2,
        on_conflict: on_conflict.into(),
    }
}

async fn tables(sql: &Sql) {
    for table in ["many", "single"] {
        run(
            sql,
            &format!(
                "CREATE TABLE {table} (shard BIGINT NOT NULL, name {{name}} NOT NULL, small INTEGER,
                 large BIGINT, words TEXT, raw {{bytes}}, amount {{amount}},
                 PRIMARY KEY (shard, name))"
            ),
        )
        .await;
    }
}

fn or_null(entropy: &dyn Entropy, value: impl Into<Value>) -> Value {
    if entropy.below(4) == 0 { Value::Null } else { value.into() }
}

/// Rows with unique keys from a space so small that most are already in the table.
fn rows(entropy: &dyn Entropy, count: usize) -> Vec<Vec<Value>> {
    let mut keys = BTreeSet::new();
    while keys.len() < count {
        keys.insert((entropy.below(3), format!("ключ-{}", entropy.below(250))));
    }
    let row = |(shard, name): (u64, String)| {
        let mut bytes = vec![0; usize::try_from(entropy.below(33)).expect("small")];
        entropy.fill(&mut bytes);
        let amount = Amount::from_be_bytes(&bytes).expect("256 bits");
        let amount = if entropy.below(2) == 0 { -amount } else { amount };
        let small = i32::from_ne_bytes(entropy.next_u64().to_ne_bytes()[..4].try_into().unwrap());
        let words = ["", "plain", "\"quoted\", \\ and \t tabbed", "\u{1f980}"];
        let words = words[usize::try_from(entropy.below(4)).expect("small")];
        vec![
            Value::Int(i64::try_from(shard).expect("small")),
            name.into(),
            or_null(entropy, small),
            or_null(entropy, i64::from_ne_bytes(entropy.next_u64().to_ne_bytes())),
            or_null(entropy, words),
            or_null(entropy, bytes),
            or_null(entropy, amount),
        ]
    };
    let mut rows: Vec<Vec<Value>> = keys.into_iter().map(row).collect();
    let turn = usize::try_from(entropy.below(count.max(1) as u64)).expect("small");
    rows.rotate_left(turn);
    rows
}

async fn insert_bulk(sql: &Sql, bulk: Bulk, rows: &[Vec<Value>]) -> logmill_io::Result<u64> {
    let bulk = &bulk;
    sql.write(|tx| async move { tx.bulk(bulk, rows.to_vec()).await }).await
}

async fn insert_singly(sql: &Sql, on_conflict: &str, rows: &[Vec<Value>]) -> u64 {
    let text = format!(
        "INSERT INTO single (shard, name, small, large, words, raw, amount)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (shard, name) {}",
        on_conflict.replace("many.", "single.")
    );
    let mut changed = 0;
    for row in rows {
        changed += sql.execute(&text, row.clone()).await.expect("one row").changed;
    }
    changed
}

/// All rows of a table, as the engine returns them.
async fn contents(sql: &Sql, table: &str) -> Vec<logmill_io::Row> {
    let text = format!(
        "SELECT shard, name, small, large, words, raw, amount FROM {table} ORDER BY shard, name"
    );
    sql.query(&text, params![]).await.expect("a query").rows
}

#[tokio::test]
async fn a_bulk_equals_its_rows_one_by_one() {
    let seed = OsEntropy.next_u64();
    for sql in DatabaseKinds::start().await.open().await {
        tables(&sql).await;
        let entropy = SeededEntropy::shared(seed);
        for (round, count) in [0, 1, 63, 64, 65, 200, 64, 63, 150].into_iter().enumerate() {
            let rows = rows(&*entropy, count);
            let on_conflict = CONFLICTS[round % CONFLICTS.len()];
            let bulked = insert_bulk(&sql, bulk(on_conflict), &rows).await;
            let singly = insert_singly(&sql, on_conflict, &rows).await;
            let at = format!("seed {seed}, {sql:?}, round {round}, {count} rows");
            assert_eq!(bulked.expect("a bulk"), singly, "{at}");
            assert_eq!(contents(&sql, "many").await, contents(&sql, "single").await, "{at}");
        }
    }
}

#[tokio::test]
async fn an_invalid_bulk_is_refused_on_both_engines() {
    let entropy = SeededEntropy::shared(5);
    for sql in DatabaseKinds::start().await.open().await {
        tables(&sql).await;
        for count in [3, 63, 64, 100] {
            let mut twice = rows(&*entropy, count);
            twice.push(twice[0].clone());
            let refused = insert_bulk(&sql, bulk(CONFLICTS[1]), &twice).await;
            let refused = refused.expect_err("a key stands twice");
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{sql:?}: {refused}");
            assert!(refused.to_string().contains("occurs twice"), "{sql:?}: {refused}");

            let mut short = rows(&*entropy, count);
            short[count - 1].pop();
            let refused = insert_bulk(&sql, bulk(CONFLICTS[0]), &short).await;
            let refused = refused.expect_err("a value is missing");
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{sql:?}: {refused}");

            let mut null_key = rows(&*entropy, count);
            null_key[0][0] = Value::Null;
            let refused = insert_bulk(&sql, bulk(CONFLICTS[0]), &null_key).await;
            let refused = refused.expect_err("a key must have a value");
            assert_eq!(refused.kind(), ErrorKind::Conflict, "{sql:?}: {}", refused.chain());
        }
        assert_eq!(number(&sql, "SELECT count(*) FROM many").await, 0, "{sql:?}");
        let mut twice = rows(&*entropy, 70);
        twice.push(twice[0].clone());
        let inserted = insert_bulk(&sql, bulk("DO NOTHING"), &twice).await;
        assert_eq!(inserted.expect("the second changes nothing"), 70, "{sql:?}");
    }
}

#[tokio::test]
async fn bulks_of_different_columns_of_one_table_do_not_disturb_each_other() {
    const FEW: Bulk = Bulk {
        table: Cow::Borrowed("many"),
        columns: Cow::Borrowed(&[
            ("shard", ColumnType::Int),
            ("name", ColumnType::Text),
            ("words", ColumnType::Text),
        ]),
        key_columns: 2,
        on_conflict: Cow::Borrowed("DO UPDATE SET words = excluded.words"),
    };
    let entropy = SeededEntropy::shared(6);
    for sql in DatabaseKinds::start().await.open().await {
        tables(&sql).await;
        let all = rows(&*entropy, 80);
        let few = all.iter().map(|row| vec![row[0].clone(), row[1].clone(), "changed".into()]);
        let few: Vec<Vec<Value>> = few.collect();
        let both = sql.write(|tx| {
            let (all, few) = (all.clone(), few.clone());
            async move {
                tx.bulk(&FEW, few.clone()).await?;
                tx.bulk(&bulk("DO NOTHING"), all).await?;
                tx.bulk(&FEW, few).await
            }
        });
        assert_eq!(both.await.expect("three bulks in one transaction"), 80, "{sql:?}");
        let changed = number(&sql, "SELECT count(*) FROM many WHERE words = 'changed'").await;
        assert_eq!(changed, 80, "{sql:?}");
    }
}
