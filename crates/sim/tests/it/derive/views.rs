//! The views of derived tables in SQLite, read by a client that knows nothing of Logmill.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use logmill_io::params;
use logmill_io::sql::{Durability, Execute, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::derive::{Kind, Processor, Tables};
use logmill_sim::chain_world::World;

use super::life::{all, deriver};
use super::model;

/// All rows of some views, read with Python's SQLite: a list of rows for each name.
fn read(file: &Path, names: &[&str]) -> BTreeMap<String, Vec<Vec<serde_json::Value>>> {
    let script = "import json, sqlite3, sys
database = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)
read = lambda name: database.execute(f'SELECT * FROM {name}').fetchall()
print(json.dumps({name: read(name) for name in sys.argv[2:]}))";
    let output = Command::new("python3").args(["-c", script]).arg(file).args(names).output();
    let output = output.expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The rows that our own reader returns, formatted like the views.
async fn expected(
    tables: &Tables,
    processor: &dyn Processor,
) -> BTreeMap<String, Vec<Vec<String>>> {
    let mut all = BTreeMap::new();
    let found = model::found(tables, processor).await;
    for table in processor.tables() {
        let cell = |(value, kind): (&String, Kind)| match kind {
            _ if value == "nothing" => "null".to_owned(),
            Kind::Bytes | Kind::Address => format!("0x{value}"),
            _ => value.clone(),
        };
        let kinds = || table.columns.iter().map(|column| column.kind);
        let row = |row: &Vec<String>| row.iter().zip(kinds()).map(cell).collect();
        let mut rows: Vec<Vec<String>> = found[table.name].iter().map(row).collect();
        rows.sort();
        all.insert(table.name.to_owned(), rows);
    }
    all
}

/// The rows that a client read, without the chain id; amounts must be text.
fn shown(
    rows: &[Vec<serde_json::Value>],
    processor: &dyn Processor,
    name: &str,
) -> Vec<Vec<String>> {
    let table = processor.tables().iter().find(|table| table.name == name).expect("its table");
    let mut all = Vec::new();
    for row in rows {
        let (chain, row) = row.split_first().expect("the chain comes first");
        assert_eq!(*chain, model::CHAIN);
        let cells = row.iter().zip(table.columns).map(|(cell, column)| {
            if let Some(text) = cell.as_str() {
                return text.to_owned();
            }
            let is_text = column.kind == Kind::Int || cell.is_null();
            assert!(is_text, "{name}.{}: {cell}", column.name);
            cell.to_string()
        });
        all.push(cells.collect());
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_client_of_sqlite_reads_the_views_exactly() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tables.db");
    let mut settings = SqliteSettings::file(&file);
    settings.durability = Durability::Relaxed;
    let sql = Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    let tables = Tables::open(sql.expect("a database")).await.expect("tables");
    let world = World::new(25, Some(5)).await;
    world.sim.grow(40);
    let process = world.stored().await;
    let processors: Vec<Arc<dyn Processor>> = all();
    deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
    // As an earlier version created it: it needs one of our SQL functions.
    let old = ["DROP VIEW ft_holdings", "CREATE VIEW ft_holdings AS SELECT amount_text(x'80')"];
    let replaced = tables.sql().write(|tx| async move {
        for statement in old {
            tx.execute(statement, params![]).await?;
        }
        Ok::<_, logmill_io::Error>(())
    });
    replaced.await.expect("an old view");
    tables.generations(model::CHAIN, &processors).await.expect("a start");
    let (mut rows, mut negative) = (0, 0);
    for processor in &processors {
        let names: Vec<&str> = processor.tables().iter().map(|table| table.name).collect();
        let read = read(&file, &names);
        for (name, expected) in expected(&tables, &**processor).await {
            let shown = shown(&read[&name], &**processor, &name);
            model::assert_same(&name, &shown, &expected);
            rows += shown.len();
            negative += shown.iter().flatten().filter(|cell| cell.starts_with('-')).count();
        }
    }
    assert!(rows > 500 && negative > 5, "{rows} rows, {negative} numbers below zero");
}
