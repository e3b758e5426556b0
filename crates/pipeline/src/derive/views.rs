//! SQL views of derived tables: all served chains, tip included.
//!
//! | | PostgreSQL | SQLite |
//! |---|---|---|
//! | addresses, hashes, bytes | `bytea` | text: `0x…` in lower case |
//! | amounts | `numeric` | text: exact decimal digits |
//!
//! The views of SQLite must work in any client, such as the `sqlite3` shell, so they use none of our registered
//! functions. SQLite has no integers of more than 64 bits: [`decimal_text`] does the arithmetic in plain SQL.
//!
//! Guarantees: a view shows the same rows as [`super::read`]. Leaves to others: creating them (`store`).

use super::schema::{key_names, physical, tip_of};
use super::select::{PLAIN, Select, select};
use super::table::{Column, Fold, Kind, Table};

/// Base of the limbs that hold decimal digits. A limb times 256, plus everything added to it, fits in 64 bits.
const BASE: i64 = 10_000_000_000_000_000;
const BASE_DIGITS: usize = 16;
/// Limbs of the largest sum: 112 digits; 320 bits have 97.
const LIMBS: usize = 7;
/// Multiple of [`BASE`] that is added to a limb before division, so that negative values round down too.
const LIFT: i64 = 300;

/// The statement that creates the view of a table.
pub(crate) fn view(table: &Table, serving: &[(u64, u32)], engine: &str) -> String {
    let part = |(chain_id, generation): &(u64, u32)| {
        let physical = physical(*chain_id, *generation, table.name);
        let (columns, engine) = match engine {
            "sqlite" => (plain_columns(table, &physical), PLAIN),
            _ => (columns(table), engine),
        };
        let source = select(table, &physical, engine, &Select::default());
        format!("SELECT CAST({chain_id} AS BIGINT) AS chain_id, {columns} FROM {source} AS s")
    };
    let parts: Vec<String> = serving.iter().map(part).collect();
    format!("CREATE VIEW {} AS {}", table.name, parts.join(" UNION ALL "))
}

fn columns(table: &Table) -> String {
    let column = |column: &Column| {
        let name = column.name;
        match column.kind {
            Kind::Address => format!("(SELECT address FROM address WHERE id = s.{name}) AS {name}"),
            _ => format!("s.{name} AS {name}"),
        }
    };
    table.columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Columns for SQLite clients without our functions.
fn plain_columns(table: &Table, physical: &str) -> String {
    let column = |column: &Column| {
        let name = column.name;
        let value = match (column.kind, column.fold) {
            (Kind::Int | Kind::Text, _) => format!("s.{name}"),
            (Kind::Address, _) => {
                format!("(SELECT '0x' || lower(hex(address)) FROM address WHERE id = s.{name})")
            }
            (Kind::Bytes, _) => {
                format!("CASE WHEN s.{name} IS NOT NULL THEN '0x' || lower(hex(s.{name})) END")
            }
            (Kind::Amount, Fold::Sum) => decimal_text(&summands(table, physical, name)),
            (Kind::Amount, _) => decimal_text(&format!("SELECT s.{name} AS x")),
        };
        format!("{value} AS {name}")
    };
    table.columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// Query for the summands of a row's amount: the final one, and those of blocks that are not final.
fn summands(table: &Table, physical: &str, name: &str) -> String {
    let of = |from: &str| {
        let keys = key_names(table);
        let same: Vec<String> = keys.iter().map(|key| format!("p.{key} = s.{key}")).collect();
        format!("SELECT p.{name} AS x FROM {from} AS p WHERE {}", same.join(" AND "))
    };
    format!("{} UNION ALL {}", of(physical), of(&tip_of(physical)))
}

/// SQL for the sum of stored amounts in decimal digits; NULL if there are none. `rows` is a query with one column `x`
/// of amounts as [`logmill_io::Amount`] encodes them for SQLite.
///
/// A recursive query walks over the bytes of all amounts at once, most significant first: `v` is the sum of the bytes
/// at a place, `i` the number of places left, `l0` and so on the limbs of the sum so far, lowest first, all but the
/// last from 0 to [`BASE`]. It does so for the sum (`s` is 1) and for its negation (-1), and shows the one whose last
/// limb is not negative.
fn decimal_text(rows: &str) -> String {
    let limbs: Vec<String> = (0..LIMBS).map(|limb| format!("l{limb}")).collect();
    let lift = BASE * LIFT;
    let mut next = Vec::new();
    let mut carry = "a.v".to_owned();
    for limb in &limbs[..LIMBS - 1] {
        let lifted = format!("(a.{limb} * 256 + {carry} + {lift})");
        next.push(format!("{lifted} % {BASE}"));
        carry = format!("{lifted} / {BASE} - {LIFT}");
    }
    let last = format!("l{}", LIMBS - 1);
    next.push(format!("a.{last} * 256 + {carry}"));
    // Negative amounts have inverted bytes, and their first byte is below 0x80.
    let byte_sum = |place: &str| {
        let digit =
            |at: u8| format!("instr('123456789ABCDEF', substr(hex(x), -2 * {place} + {at}, 1))");
        let (high, low) = (digit(0), digit(1));
        format!(
            "(SELECT sum(CASE WHEN length(x) <= {place} THEN 0 ELSE 16 * {high} + {low} - 255 * (x < x'80') END) \
             FROM ({rows}))"
        )
    };
    let (first, second) = (byte_sum("m.i"), byte_sum("(a.i - 1)"));
    let zeros = ["0"; LIMBS].join(", ");
    let format = format!("%d{}", format!("%0{BASE_DIGITS}d").repeat(LIMBS - 1));
    let digits: Vec<String> = limbs.iter().rev().map(|limb| format!("a.{limb}")).collect();
    format!(
        "(WITH RECURSIVE m(i) AS (SELECT max(length(x)) - 1 FROM ({rows})), a(s, i, v, {names}) AS (\
         SELECT s, i, s * {first}, {zeros} FROM m, (SELECT 1 AS s UNION ALL SELECT -1) \
         UNION ALL SELECT a.s, a.i - 1, a.s * {second}, {next} FROM a WHERE a.i > 0) \
         SELECT CASE a.s WHEN 1 THEN '' ELSE '-' END \
         || coalesce(nullif(ltrim(printf('{format}', {digits}), '0'), ''), '0') \
         FROM a WHERE a.i = 0 AND a.{last} >= 0 ORDER BY a.s DESC LIMIT 1)",
        names = limbs.join(", "),
        next = next.join(", "),
        digits = digits.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use logmill_io::sql::SqliteSettings;
    use logmill_io::{Amount, OsEntropy, Sql, SystemClock, Value, params};
    use proptest::prelude::*;

    use super::*;

    fn amount() -> impl Strategy<Value = Amount> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..=32);
        (any::<bool>(), bytes).prop_map(|(negative, bytes)| {
            let amount = Amount::from_be_bytes(&bytes).unwrap_or_default();
            if negative { -amount } else { amount }
        })
    }

    /// The decimal digits of a sum, as computed by SQLite.
    async fn shown(sql: &Sql, amounts: &[Amount]) -> Option<String> {
        let values: Vec<Value> = amounts.iter().map(|amount| Value::Amount(*amount)).collect();
        let rows: Vec<String> = (1..=values.len()).map(|n| format!("SELECT ${n} AS x")).collect();
        let rows =
            if rows.is_empty() { "SELECT NULL AS x".into() } else { rows.join(" UNION ALL ") };
        let text = format!("SELECT {}", decimal_text(&rows));
        let found = sql.query(&text, values).await.expect("it is SQL");
        found.row().expect("one").opt_text(0).expect("text").map(str::to_owned)
    }

    async fn database() -> Sql {
        let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
        Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await.expect("a database")
    }

    #[tokio::test]
    async fn sums_of_the_largest_amounts_are_exact() {
        let sql = database().await;
        let one = Amount::from(1_u64);
        for amounts in [
            vec![],
            vec![Amount::ZERO],
            vec![Amount::MAX],
            vec![Amount::MIN],
            vec![Amount::MAX, Amount::MIN],
            vec![Amount::MIN, one],
            vec![-one, Amount::ZERO, one, -one],
            vec![Amount::from(255_u64), one],
            vec![Amount::from(10_000_000_000_000_000_u64), -one],
        ] {
            let sum = amounts.iter().copied().reduce(|a, b| a.checked_add(b).expect("it fits"));
            assert_eq!(shown(&sql, &amounts).await, sum.map(|sum| sum.to_string()), "{amounts:?}");
        }
        let nothing = sql.query("SELECT amount_text(NULL)", params![]).await.expect("SQL");
        assert_eq!(nothing.row().expect("one").opt_text(0).expect("text"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(64)))]
        #[test]
        fn any_sum_is_exact(amounts in proptest::collection::vec(amount(), 1..6)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let shown = runtime.expect("a runtime").block_on(async {
                shown(&database().await, &amounts).await
            });
            let sum = amounts.iter().copied().reduce(|a, b| a.checked_add(b).expect("it fits"));
            prop_assert_eq!(shown, sum.map(|sum| sum.to_string()));
        }
    }
}
