//! `Checkpoint`: heights of workers that write no tables, for clients of the view `indexing_checkpoints`.
//!
//! | name | `from_height` | `last_height` |
//! |---|---|---|
//! | `main_ingester` | the lowest block of the unbroken range below the newest | the newest stored block |
//! | `history_ingester` | the newest stored block | the lowest block of the unbroken range below it |
//! | `history_deriver` | the lowest stored final block | the highest up to which all tables cover everything |
//! | `history_deriver_down` | the highest stored final block | the lowest down to which all tables cover everything |
//! | async workers | the lowest height in their scope | the highest height up to which everything is done |
//!
//! Guarantees: a row is written only when it changes, under the writer's fence. Leaves to others: coverage, which
//! decides what is done; no decision depends on these rows.

use logmill_io::sql::Execute;
use logmill_io::{Fence, Sql, params};

use super::{Tables, chain_param, hold};
use crate::error::Result;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub name: &'static str,
    /// Where it began; none if nothing is done.
    pub from: Option<u64>,
    /// How far it is; none if nothing is done.
    pub last: Option<u64>,
}

impl Tables {
    /// Stores those checkpoints of a chain that have changed.
    pub(crate) async fn put_checkpoints(
        &self,
        fence: Option<&Fence>,
        chain_id: u64,
        checkpoints: &[Checkpoint],
    ) -> Result<()> {
        let chain = chain_param(chain_id)?;
        let stored = read(&self.sql, chain).await?;
        let rows =
            checkpoints.iter().map(|it| (it.name.to_owned(), height(it.from), height(it.last)));
        let changed = &rows.filter(|row| !stored.contains(row)).collect::<Vec<_>>();
        if changed.is_empty() {
            return Ok(());
        }
        let written = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            for (name, from, last) in changed {
                let text =
                    "INSERT INTO checkpoint (chain_id, name, from_height, last_height, updated_at)
                    VALUES ($1, $2, $3, $4, now_ms())
                    ON CONFLICT (chain_id, name) DO UPDATE SET from_height = excluded.from_height,
                        last_height = excluded.last_height, updated_at = excluded.updated_at";
                tx.execute(text, params![chain, name.as_str(), *from, *last]).await?;
            }
            Ok(())
        });
        written.await
    }
}

type Row = (String, Option<i64>, Option<i64>);

async fn read(sql: &Sql, chain: i64) -> Result<Vec<Row>> {
    let text = "SELECT name, from_height, last_height FROM checkpoint WHERE chain_id = $1";
    let found = sql.query(text, params![chain]).await?;
    let height = |row: &logmill_io::sql::Row, column| {
        if row.is_null(column) { Ok(None) } else { row.int(column).map(Some) }
    };
    let row = |row: &logmill_io::sql::Row| {
        Ok((row.text(0)?.to_owned(), height(row, 1)?, height(row, 2)?))
    };
    found.rows.iter().map(row).collect()
}

fn height(height: Option<u64>) -> Option<i64> {
    height.map(|height| i64::try_from(height).unwrap_or(i64::MAX))
}
