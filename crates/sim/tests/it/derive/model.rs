//! Compares the contents of tables with the expected ones. For the product's processors, [`super::naive`] computes them
//! without sharing code; for the probe, they are a naive fold of its rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use logmill_chain::Block;
use logmill_chain::sim::SimChain;
use logmill_io::Amount;
use logmill_pipeline::derive::{
    Cell, DecodedBlock, Fold, Kind, Processor, Reader, Rows, Select, Table, Tables,
};

use super::naive::{self, Assumptions};

/// The rows of a table as text, sorted.
pub(crate) type TableRows = Vec<Vec<String>>;

pub(crate) const CHAIN: u64 = 1_337;

fn cell_text(cell: &Cell) -> String {
    match cell {
        Cell::Null => "nothing".to_owned(),
        Cell::Int(value) => value.to_string(),
        Cell::Text(value) => value.clone(),
        Cell::Bytes(value) => alloy_primitives::hex::encode(value),
        Cell::Amount(value) => value.to_string(),
        Cell::Address(value) => alloy_primitives::hex::encode(value),
    }
}

/// The expected tables of a probe after these blocks.
fn expected(processor: &dyn Processor, blocks: &[Arc<Block>]) -> BTreeMap<&'static str, TableRows> {
    let mut all: BTreeMap<&'static str, Vec<Vec<Cell>>> = BTreeMap::new();
    for block in blocks {
        let decoded = DecodedBlock::new(CHAIN, Arc::clone(block)).expect("a good block");
        let mut rows = Rows::new(processor.tables());
        rows.at_block(block.at.number);
        processor.process(&decoded, &mut rows).expect("a good block");
        for (table, rows) in rows.tables() {
            let cells = rows.iter().map(|row| row.cells().to_vec());
            all.entry(table.name).or_default().extend(cells);
        }
    }
    let shown = processor.tables().iter().map(|table| {
        let rows = all.remove(table.name).unwrap_or_default();
        (table.name, naive(table, rows))
    });
    shown.collect()
}

/// Folds rows, which must be in the order of the chain.
fn naive(table: &Table, rows: Vec<Vec<Cell>>) -> TableRows {
    let keys = table.columns.iter().filter(|column| column.fold == Fold::Key).count();
    let mut groups: BTreeMap<Vec<String>, Vec<Vec<Cell>>> = BTreeMap::new();
    for row in rows {
        groups.entry(row[..keys].iter().map(cell_text).collect()).or_default().push(row);
    }
    let mut shown: TableRows = groups.into_values().map(|group| one(table, &group)).collect();
    shown.sort();
    shown
}

fn one(table: &Table, group: &[Vec<Cell>]) -> Vec<String> {
    let value = |(number, column): (usize, &logmill_pipeline::derive::Column)| {
        let cells: Vec<&Cell> = group.iter().map(|row| &row[number]).collect();
        let ints = || {
            cells.iter().filter_map(|cell| if let Cell::Int(n) = cell { Some(*n) } else { None })
        };
        let or_nothing =
            |value: Option<i64>| value.map_or("nothing".to_owned(), |value| value.to_string());
        match (column.fold, column.kind) {
            (Fold::Key, _) | (Fold::First, _) => cell_text(cells[0]),
            (Fold::Last, _) => cell_text(cells[cells.len() - 1]),
            (Fold::Once, _) => {
                assert_eq!(cells.len(), 1, "a key of {} stands twice", table.name);
                cell_text(cells[0])
            }
            (Fold::Sum, Kind::Amount) => {
                let amounts = cells.iter().map(|cell| match cell {
                    Cell::Amount(amount) => *amount,
                    other => panic!("{other:?} is no amount"),
                });
                let sum = amounts
                    .fold(Amount::ZERO, |sum, amount| sum.checked_add(amount).expect("320 bits"));
                sum.to_string()
            }
            (Fold::Sum, _) => ints().sum::<i64>().to_string(),
            (Fold::Min, _) => or_nothing(ints().min()),
            (Fold::Max, _) => or_nothing(ints().max()),
        }
    };
    table.columns.iter().enumerate().map(value).collect()
}

/// The tables of a processor, as readers see them.
pub(crate) async fn found(
    tables: &Tables,
    processor: &dyn Processor,
) -> BTreeMap<&'static str, TableRows> {
    found_on(CHAIN, tables, processor).await
}

/// The same for a chain with another id.
pub(crate) async fn found_on(
    chain_id: u64,
    tables: &Tables,
    processor: &dyn Processor,
) -> BTreeMap<&'static str, TableRows> {
    let reader = Reader::new(tables.clone(), chain_id);
    let mut all = BTreeMap::new();
    for table in processor.tables() {
        let column = |column: &logmill_pipeline::derive::Column| match column.kind {
            Kind::Int => format!("CAST(s.{} AS BIGINT)", column.name),
            Kind::Text | Kind::Bytes => format!("s.{}", column.name),
            Kind::Amount => format!("amount_text(s.{})", column.name),
            Kind::Address => {
                format!("(SELECT address FROM address WHERE id = s.{})", column.name)
            }
        };
        let columns: Vec<String> = table.columns.iter().map(column).collect();
        let columns = columns.join(", ");
        let text = |source: &dyn Fn(&'static Table, &Select<'_>) -> String| {
            format!("SELECT {columns} FROM {} AS s", source(table, &Select::default()))
        };
        let answer = reader.query(text, Vec::new()).await.expect("it can be read");
        let mut shown: TableRows = answer.rows.iter().map(|row| row_text(table, row)).collect();
        shown.sort();
        let view = view(chain_id, tables, table).await;
        assert_eq!(view, shown.len(), "the view of {}", table.name);
        all.insert(table.name, shown);
    }
    all
}

/// Number of rows in the view of a table.
async fn view(chain_id: u64, tables: &Tables, table: &Table) -> usize {
    let text = format!("SELECT count(*) FROM {} WHERE chain_id = {chain_id}", table.name);
    let count = tables.sql().query(&text, Vec::new()).await.expect("a view");
    usize::try_from(count.row().expect("one").count(0).expect("a number")).expect("few")
}

fn row_text(table: &Table, row: &logmill_io::sql::Row) -> Vec<String> {
    let value = |(number, column): (usize, &logmill_pipeline::derive::Column)| {
        if row.is_null(number) {
            return "nothing".to_owned();
        }
        match column.kind {
            Kind::Int => row.int(number).expect("a number").to_string(),
            Kind::Text | Kind::Amount => row.text(number).expect("text").to_owned(),
            Kind::Bytes | Kind::Address => {
                alloy_primitives::hex::encode(row.blob(number).expect("bytes"))
            }
        }
    };
    table.columns.iter().enumerate().map(value).collect()
}

/// Compares all tables of processors with the expected ones after these blocks, which must be in chain order.
pub(crate) async fn check(
    tables: &Tables,
    processors: &[Arc<dyn Processor>],
    sim: &SimChain,
    blocks: impl IntoIterator<Item = u64>,
) {
    let blocks: Vec<Arc<Block>> =
        blocks.into_iter().map(|number| sim.block(number).expect("it exists")).collect();
    let assumptions = Assumptions { chain_id: CHAIN, blob_gas_price: None, forwarder: None };
    let mut naive = naive::tables(&assumptions, &blocks);
    for processor in processors {
        let expected = if processor.tables().iter().any(|table| table.name.starts_with("probe")) {
            expected(&**processor, &blocks)
        } else {
            let own = processor.tables().iter();
            own.map(|table| (table.name, naive.remove(table.name).unwrap_or_default())).collect()
        };
        let found = found(tables, &**processor).await;
        for (name, expected) in expected {
            assert_same(name, &found[name], &expected);
        }
    }
}

/// Compares the rows of a table.
pub(crate) fn assert_same(name: &str, found: &TableRows, expected: &TableRows) {
    let missing: Vec<_> = expected.iter().filter(|row| !found.contains(row)).take(3).collect();
    let extra: Vec<_> = found.iter().filter(|row| !expected.contains(row)).take(3).collect();
    assert!(
        missing.is_empty() && extra.is_empty() && found.len() == expected.len(),
        "{name}: {} rows, expected {}; missing {missing:#?}; extra {extra:#?}",
        found.len(),
        expected.len()
    );
}
