//! The tables of all events that were ever collected, as the database declares them.
//!
//! Guarantees: a table stays readable when its event is no longer collected, and by a process that never collected it.
//! Leaves to others: reading rows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::derive::table::{key, once};
use crate::derive::{Column, Kind, Table, Tables};
use crate::error::{Error, Result};

/// Prefix of the processor names of collected events.
const PREFIX: &str = "collect_";

/// Cache of parsed declarations. They are `'static` like those of processors, so each is leaked once.
static READ: Mutex<BTreeMap<String, &'static Table>> = Mutex::new(BTreeMap::new());

/// The table of a collected event.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub chain_id: u64,
    /// Name of the processor whose coverage applies.
    pub consumer: String,
    pub table: &'static Table,
}

impl StoredEvent {
    /// All events ever collected into these tables, by chain and name.
    pub async fn list(tables: &Tables) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (chain_id, consumer, declared) in tables.declarations().await? {
            if !consumer.starts_with(PREFIX) {
                continue;
            }
            for line in declared.lines() {
                let table = table(line)?;
                all.push(Self { chain_id, consumer: consumer.clone(), table });
            }
        }
        Ok(all)
    }
}

/// Parses a stored declaration: the table's name, and every column with its kind and fold.
fn table(line: &str) -> Result<&'static Table> {
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(table) = read.get(line) {
        return Ok(table);
    }
    let corrupt = || Error::corrupt(format!("the declaration of a collected event: {line:?}"));
    let mut words = line.split(' ');
    let name = words.next().filter(|name| !name.is_empty()).ok_or_else(corrupt)?;
    let columns: Option<Vec<Column>> = words.map(column).collect();
    let columns = columns.ok_or_else(corrupt)?;
    let table = Table { name: name.to_owned().leak(), columns: columns.leak(), indexes: &[] };
    table.check().map_err(|_| corrupt())?;
    let table: &'static Table = Box::leak(Box::new(table));
    read.insert(line.to_owned(), table);
    Ok(table)
}

fn column(word: &str) -> Option<Column> {
    let mut parts = word.split(':');
    let (name, kind, fold) = (parts.next()?, parts.next()?, parts.next()?);
    let kind = match kind {
        "Int" => Kind::Int,
        "Text" => Kind::Text,
        "Bytes" => Kind::Bytes,
        "Amount" => Kind::Amount,
        "Address" => Kind::Address,
        _ => return None,
    };
    let name: &'static str = name.to_owned().leak();
    match fold {
        "Key" => Some(key(name, kind)),
        "Once" => Some(once(name, kind)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_is_read_as_it_was_written() {
        let line = "collected_paid_00ff block_height:Int:Key event_index:Int:Key payer:Address:Once \
             value:Amount:Once note:Text:Once id:Bytes:Once";
        let read = table(line).expect("a declaration");
        assert_eq!(read.name, "collected_paid_00ff");
        let expected = [
            key("block_height", Kind::Int),
            key("event_index", Kind::Int),
            once("payer", Kind::Address),
            once("value", Kind::Amount),
            once("note", Kind::Text),
            once("id", Kind::Bytes),
        ];
        assert_eq!(read.columns, expected);
        assert!(std::ptr::eq(read, table(line).expect("again")), "it is made once");
        for wrong in ["", "t", "t a:Int", "t a:Float:Key", "t a:Int:Sum", "T a:Int:Key"] {
            table(wrong).expect_err(wrong);
        }
    }
}
