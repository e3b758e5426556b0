//! What the engine itself needs for the same rows: a copy from table to table, in the order of the keys.

use std::time::Instant;

use logmill_io::Sql;
use logmill_io::sql::Execute;
use logmill_pipeline::derive::{Line, Reader, Select, Table, Tables};

use super::chosen;

/// What a copy was.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copied {
    pub rows: u64,
    pub seconds: f64,
}

/// How many rows the tables of some lines have.
pub async fn rows(tables: &Tables, lines: &[Line]) -> anyhow::Result<Vec<(String, u64)>> {
    let mut counted = Vec::new();
    for line in lines {
        for table in line.processor.tables() {
            let text = format!("SELECT count(*) FROM {}", line.table(table));
            let count = tables.sql().query(&text, Vec::new()).await?.row()?.count(0)?;
            counted.push((table.name.to_owned(), count));
        }
    }
    Ok(counted)
}

/// How many rows every table has that serves readers.
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

/// Copies every table of some lines into an empty one of the same shape, and drops it again.
pub async fn copy(sql: &Sql, lines: &[Line]) -> anyhow::Result<Copied> {
    let mut copied = Copied::default();
    for line in lines {
        for table in line.processor.tables() {
            let from = line.table(table);
            let to = format!("copy_of_{}", table.name);
            for statement in line.create_statements(table, &to) {
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
