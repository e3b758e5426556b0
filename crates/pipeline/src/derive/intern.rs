//! Addresses as numbers.
//!
//! A row names up to four addresses, and every index names some again: eight bytes instead of twenty, and numbers that
//! are near each other for addresses that came at the same time, so that a batch touches few pages.
//!
//! Guarantees: an address has one number, for ever; numbers are given in a transaction of their own, before the rows
//! that use them, so that writers who meet the same new address do not wait for each other's rows. Leaves to others:
//! which columns are addresses.

use std::collections::{BTreeSet, HashMap};

use alloy_primitives::Address;
use alloy_primitives::map::DefaultHashBuilder;
use logmill_io::sql::{Bulk, ColumnType};
use logmill_io::{Sql, Value};
use quick_cache::sync::Cache;

use crate::error::{Error, Result};

/// Addresses that are remembered.
const CACHED_MAX: usize = 1 << 20;
/// Addresses that one statement asks for.
const ASKED_MAX: usize = 256;

/// The numbers of some addresses.
pub(crate) type Ids = HashMap<Address, i64, DefaultHashBuilder>;

/// Gives numbers to addresses.
#[derive(Debug)]
pub(crate) struct Interner {
    known: Cache<Address, i64>,
}

impl Interner {
    pub(crate) fn new() -> Self {
        Self { known: Cache::new(CACHED_MAX) }
    }

    /// The numbers of these addresses; new ones get one.
    pub(crate) async fn ids(&self, sql: &Sql, addresses: BTreeSet<Address>) -> Result<Ids> {
        let mut ids = Ids::default();
        let unknown = self.cached(addresses, &mut ids);
        let unknown = self.stored(sql, unknown, &mut ids).await?;
        if unknown.is_empty() {
            return Ok(ids);
        }
        let rows: Vec<Vec<Value>> =
            unknown.iter().map(|address| vec![Value::from(address.as_slice())]).collect();
        let rows: std::sync::Arc<[Vec<Value>]> = rows.into();
        sql.write(|tx| {
            let rows = rows.clone();
            async move { tx.bulk(&insert(), rows).await }
        })
        .await?;
        let unknown = self.stored(sql, unknown, &mut ids).await?;
        if unknown.is_empty() { Ok(ids) } else { Err(Error::corrupt("an address has no number")) }
    }

    /// The numbers of those addresses that have one.
    pub(crate) async fn find(&self, sql: &Sql, addresses: BTreeSet<Address>) -> Result<Ids> {
        let mut ids = Ids::default();
        let unknown = self.cached(addresses, &mut ids);
        self.stored(sql, unknown, &mut ids).await?;
        Ok(ids)
    }

    fn cached(&self, addresses: BTreeSet<Address>, ids: &mut Ids) -> Vec<Address> {
        let mut unknown = Vec::new();
        for address in addresses {
            match self.known.get(&address) {
                Some(id) => drop(ids.insert(address, id)),
                None => unknown.push(address),
            }
        }
        unknown
    }

    /// Looks them up; gives those that have no number.
    async fn stored(
        &self,
        sql: &Sql,
        unknown: Vec<Address>,
        ids: &mut Ids,
    ) -> Result<Vec<Address>> {
        for asked in unknown.chunks(ASKED_MAX) {
            // Few lengths, so that there are few statements: the last address fills the rest.
            let length = asked.len().next_power_of_two();
            let filled = (0..length).filter_map(|n| asked.get(n).or(asked.last()));
            let params = filled.map(|address| Value::from(address.as_slice())).collect();
            let places: Vec<String> = (1..=length).map(|n| format!("${n}")).collect();
            let places = places.join(", ");
            let text = format!("SELECT id, address FROM address WHERE address IN ({places})");
            for row in sql.query(&text, params).await?.rows {
                let address = Address::try_from(&row.blob(1)?[..]);
                let address = address.map_err(|_| Error::corrupt("a stored address"))?;
                self.known.insert(address, row.int(0)?);
                ids.insert(address, row.int(0)?);
            }
        }
        Ok(unknown.into_iter().filter(|address| !ids.contains_key(address)).collect())
    }
}

fn insert() -> Bulk {
    Bulk {
        table: "address".into(),
        columns: (&[("address", ColumnType::Blob)]).into(),
        key_columns: 1,
        on_conflict: "DO NOTHING".into(),
    }
}
