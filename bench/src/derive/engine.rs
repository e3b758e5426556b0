//! Copies the same rows from table to table in the order of the keys, to measure the engine itself.

use std::time::Instant;

use logmill_io::Sql;
use logmill_io::sql::Execute;
use logmill_pipeline::derive::{Generation, Reader, Select, Table, Tables};

use super::chosen;

/// Result of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyResult {
    pub rows: u64,
    pub seconds: f64,
}

/// Number of rows in each table of these generations.
pub async fn rows(
    tables: &Tables,
    generations: &[Generation],
) -> anyhow::Result<Vec<(String, u64)>> {
    let mut counted = Vec::new();
    for generation in generations {
        for table in generation.processor.tables() {
            let text = format!("SELECT count(*) FROM {}", generation.table(table));
            let count = tables.sql().query(&text, Vec::new()).await?.row()?.count(0)?;
            counted.push((table.name.to_owned(), count));
        }
    }
    Ok(counted)
}

/// Number of rows in each table that serves readers.
pub async fn served_rows(reader: &Reader) -> anyhow::Result<Vec<(String, u64)>> {
    let mut counted = Vec::new();
    for table in chosen(reader.chain_id(), None).iter().flat_map(|one| one.tables().iter().copied())
    {
        if !reader.serves(table).await? {
            continue;
        }
        let text = |source: &dyn Fn(&'static Table, &Select<'_>) -> String| {
            format!("SELECT count(*) FROM {} AS s", source(table, &Select::default()))
        };
        let count = reader.query(text, Vec::new()).await?.row()?.count(0)?;
        counted.push((table.name.to_owned(), count));
    }
    Ok(counted)
}

/// Copies every table of these generations into an empty one of the same shape, and drops the copy.
pub async fn copy(sql: &Sql, generations: &[Generation]) -> anyhow::Result<CopyResult> {
    let mut copied = CopyResult::default();
    for generation in generations {
        for table in generation.processor.tables() {
            let from = generation.table(table);
            let to = format!("copy_of_{}", table.name);
            for statement in generation.create_statements(table, &to) {
                sql.execute(&statement, Vec::new()).await?;
            }
            let key: Vec<&str> =
                table.columns[..table.key_len()].iter().map(|column| column.name).collect();
            let key = key.join(", ");
            let text = format!("INSERT INTO {to} SELECT * FROM {from} ORDER BY {key}");
            let started = Instant::now();
            copied.rows += sql.execute(&text, Vec::new()).await?.changed;
            copied.seconds += started.elapsed().as_secs_f64();
            sql.execute(&format!("DROP TABLE {to}"), Vec::new()).await?;
        }
    }
    Ok(copied)
}
