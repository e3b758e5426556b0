//! Addresses stored as numbers.
//!
//! A row names up to four addresses, and indexes repeat some of them: a number takes eight bytes instead of twenty. New
//! addresses of one batch get neighbouring numbers, so that a batch touches few pages.
//!
//! Guarantees: an address has one number, permanently. Numbers are assigned in a transaction of their own, before the
//! rows that use them, so that writers with the same new address do not wait for each other's rows. Leaves to others:
//! which columns are addresses.

use std::collections::{BTreeSet, HashMap};

use alloy_primitives::Address;
use alloy_primitives::map::DefaultHashBuilder;
use logmill_io::sql::{Bulk, ColumnType};
use logmill_io::{Sql, Value};
use quick_cache::sync::Cache;

use crate::error::{Error, Result};

/// Size of the cache.
const CACHED_MAX: usize = 1 << 20;
/// Addresses in one lookup statement.
const LOOKUP_MAX: usize = 256;

pub(crate) type Ids = HashMap<Address, i64, DefaultHashBuilder>;

/// Assigns numbers to addresses.
#[derive(Debug)]
pub(crate) struct Interner {
    known: Cache<Address, i64>,
}

impl Interner {
    pub(crate) fn new() -> Self {
        Self { known: Cache::new(CACHED_MAX) }
    }

    /// The numbers of these addresses; assigns numbers to new ones.
    pub(crate) async fn ids(&self, sql: &Sql, addresses: BTreeSet<Address>) -> Result<Ids> {
        let mut ids = Ids::default();
        let unknown = self.take_cached(addresses, &mut ids);
        let unknown = self.look_up(sql, unknown, &mut ids).await?;
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
        let unknown = self.look_up(sql, unknown, &mut ids).await?;
        if unknown.is_empty() {
            Ok(ids)
        } else {
            Err(Error::corrupt("an address was stored without a number"))
        }
    }

    /// The numbers of those addresses that have one; assigns none.
    pub(crate) async fn find(&self, sql: &Sql, addresses: BTreeSet<Address>) -> Result<Ids> {
        let mut ids = Ids::default();
        let unknown = self.take_cached(addresses, &mut ids);
        self.look_up(sql, unknown, &mut ids).await?;
        Ok(ids)
    }

    fn take_cached(&self, addresses: BTreeSet<Address>, ids: &mut Ids) -> Vec<Address> {
        let mut unknown = Vec::new();
        for address in addresses {
            match self.known.get(&address) {
                Some(id) => drop(ids.insert(address, id)),
                None => unknown.push(address),
            }
        }
        unknown
    }

    /// Looks addresses up in the database; returns those without a number.
    async fn look_up(
        &self,
        sql: &Sql,
        unknown: Vec<Address>,
        ids: &mut Ids,
    ) -> Result<Vec<Address>> {
        for batch in unknown.chunks(LOOKUP_MAX) {
            // Lengths are powers of two, so that there are few distinct statements; the last address fills the rest.
            let length = batch.len().next_power_of_two();
            let filled = (0..length).filter_map(|n| batch.get(n).or(batch.last()));
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
