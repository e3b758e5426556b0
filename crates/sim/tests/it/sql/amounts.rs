//! Amounts of 256 bits and more: both engines sort and sum them exactly.

use std::str::FromStr;

use logmill_io::sql::Execute;
use logmill_io::{Amount, Entropy, ErrorKind, OsEntropy, SeededEntropy, Sql, Value, params};

use super::{DatabaseKinds, run};

const AMOUNTS: usize = 150;

fn largest_token_amount() -> Amount {
    Amount::from_be_bytes(&[0xff; 32]).expect("256 bits fit")
}

/// The extremes, the powers of ten (whose stored form drops zeros), and random widths.
fn amounts(entropy: &dyn Entropy) -> Vec<Amount> {
    let mut amounts = vec![Amount::ZERO, Amount::from(1_i64), largest_token_amount()];
    let powers = (0..78).step_by(3).map(|zeros| format!("1{}", "0".repeat(zeros)));
    amounts.extend(powers.map(|text| Amount::from_str(&text).expect("a number")));
    while amounts.len() < AMOUNTS {
        let mut bytes = vec![0; usize::try_from(entropy.below(33)).expect("small")];
        entropy.fill(&mut bytes);
        amounts.push(Amount::from_be_bytes(&bytes).expect("256 bits fit"));
    }
    let negative: Vec<Amount> = amounts.iter().map(|amount| -*amount).collect();
    amounts.extend(negative);
    amounts
}

#[tokio::test]
async fn amounts_sort_and_sum_exactly_on_both_engines() {
    let seed = OsEntropy.next_u64();
    let mut amounts = amounts(&*SeededEntropy::shared(seed));
    for sql in DatabaseKinds::start().await.open().await {
        run(&sql, "CREATE TABLE held (id BIGINT PRIMARY KEY, amount {amount})").await;
        let rows = (0_i64..).zip(&amounts).map(|(id, amount)| params![id, *amount]);
        let mut rows: Vec<Vec<Value>> = rows.collect();
        rows.push(params![-1_i64, Value::Null]);
        let insert = "INSERT INTO held (id, amount) VALUES ($1, $2)";
        let inserted = sql.write(|tx| {
            let rows = rows.clone();
            async move { tx.execute_many(insert, rows).await }
        });
        inserted.await.expect("they are stored");

        amounts.sort_unstable();
        let sorted = "SELECT amount, amount_text(amount) FROM held WHERE amount IS NOT NULL
                      ORDER BY amount";
        let found = sql.query(sorted, params![]).await.expect("a query");
        for (row, amount) in found.rows.iter().zip(&amounts) {
            assert_eq!(row.amount(0).expect("an amount"), *amount, "seed {seed}, {sql:?}");
            assert_eq!(row.text(1).expect("text"), amount.to_string(), "seed {seed}, {sql:?}");
        }
        assert_eq!(found.rows.len(), amounts.len(), "seed {seed}, {sql:?}");

        let above = amounts[amounts.len() / 3];
        let text = "SELECT amount_sum(amount) FROM held WHERE amount > $1";
        let sum = sql.query(text, params![above]).await.expect("a sum");
        let expected = amounts.iter().filter(|amount| **amount > above);
        let expected = expected.fold(Amount::ZERO, |sum, amount| sum.saturating_add(*amount));
        assert_eq!(sum.rows[0].amount(0).expect("an amount"), expected, "seed {seed}, {sql:?}");
        let none = "SELECT amount_sum(amount) FROM held WHERE id < 0";
        assert!(sql.query(none, params![]).await.expect("a sum").rows[0].is_null(0), "{sql:?}");
    }
}

#[tokio::test]
async fn amounts_are_added_up_by_upserts_exactly_on_both_engines() {
    let seed = OsEntropy.next_u64();
    let amounts = amounts(&*SeededEntropy::shared(seed));
    for sql in DatabaseKinds::start().await.open().await {
        run(&sql, "CREATE TABLE total (id BIGINT PRIMARY KEY, amount {amount})").await;
        let upsert = "INSERT INTO total (id, amount) VALUES (1, $1) ON CONFLICT (id)
                      DO UPDATE SET amount = amount_add(total.amount, excluded.amount)
                      RETURNING amount";
        let mut expected = Amount::ZERO;
        for amount in amounts.iter().take(AMOUNTS) {
            let total = sql.execute(upsert, params![*amount]).await.expect("an upsert");
            expected = expected.checked_add(*amount).expect("it fits");
            assert_eq!(total.rows[0].amount(0).expect("one"), expected, "seed {seed}, {sql:?}");
        }
        let null = sql.execute(upsert, params![Value::Null]).await.expect("an upsert");
        assert!(null.rows[0].is_null(0), "{sql:?}: nothing is added to nothing");
    }
}

async fn overflows(sql: &Sql, text: &str, params: Vec<Value>) {
    let error = sql.query(text, params).await.expect_err("it has more than 320 bits");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{sql:?}: {}", error.chain());
    assert!(error.chain().contains("more than 320 bits"), "{sql:?}: {}", error.chain());
}

#[tokio::test]
async fn a_sum_beyond_320_bits_is_an_error_on_both_engines() {
    let one = Amount::from(1_i64);
    for sql in DatabaseKinds::start().await.open().await {
        overflows(&sql, "SELECT amount_add($1, $2)", params![Amount::MAX, one]).await;
        overflows(&sql, "SELECT amount_add($1, $2)", params![-one, Amount::MIN]).await;
        run(&sql, "CREATE TABLE held (amount {amount})").await;
        for amount in [Amount::MAX, one] {
            let insert = "INSERT INTO held (amount) VALUES ($1)";
            sql.execute(insert, params![amount]).await.expect("it fits");
        }
        overflows(&sql, "SELECT amount_sum(amount) FROM held", params![]).await;
        let add = "UPDATE held SET amount = amount_add(amount, $1)";
        let error = sql.execute(add, params![one]).await.expect_err("one of them overflows");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{sql:?}: {}", error.chain());
        assert!(error.chain().contains("more than 320 bits"), "{sql:?}: {}", error.chain());
        let kept = sql.query("SELECT max(amount) FROM held", params![]).await.expect("a query");
        assert_eq!(kept.rows[0].amount(0).expect("an amount"), Amount::MAX, "{sql:?}");
    }
}
