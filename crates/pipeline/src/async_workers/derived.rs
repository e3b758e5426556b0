//! What async workers read of derived tables: final rows alone, and what they cover.
//!
//! Guarantees: a statement reads the generation that serves; one that was replaced meanwhile is asked for again.
//! Leaves to others: what to ask.

use alloy_primitives::{Address, U256};
use logmill_io::sql::{Answer, Row};
use logmill_io::{Amount, Value};
use logmill_work::IntervalSet;

use crate::derive::line::{LineState, physical};
use crate::derive::{Table, Tables};
use crate::error::{Error, Result};

/// How often a statement is asked for again when generations change.
const ATTEMPTS_MAX: usize = 3;

/// The derived tables of one chain.
#[derive(Clone, Debug)]
pub(crate) struct Derived {
    tables: Tables,
    chain_id: u64,
}

impl Derived {
    pub(crate) fn new(tables: Tables, chain_id: u64) -> Self {
        Self { tables, chain_id }
    }

    pub(crate) fn chain_id(&self) -> u64 {
        self.chain_id
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The final blocks that the serving generation of a processor has.
    pub(crate) async fn covered(&self, processor: &str) -> Result<IntervalSet> {
        let stored = self.tables.stored(self.chain_id).await?;
        let serving = stored
            .iter()
            .find(|line| line.processor == processor && line.state == LineState::Serving);
        match serving {
            Some(line) => self.tables.covered_by(self.chain_id, line).await,
            None => Ok(IntervalSet::new()),
        }
    }

    /// Runs a query over the final rows of tables: `text` gets their names in the database, in the same order.
    pub(crate) async fn query(
        &self,
        tables: &[&'static Table],
        text: impl Fn(&[String]) -> String + Send + Sync,
        params: Vec<Value>,
    ) -> Result<Answer> {
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            let names = self.names(tables).await?;
            match self.tables.sql().query(&text(&names), params.clone()).await {
                Err(error) if error.is_missing_table() => last = Some(error),
                answer => return Ok(answer?),
            }
        }
        Err(last.map_or_else(|| Error::corrupt("no table to read"), Error::from))
    }

    async fn names(&self, tables: &[&'static Table]) -> Result<Vec<String>> {
        let stored = self.tables.stored(self.chain_id).await?;
        let name = |table: &&'static Table| {
            let serving = stored.iter().find(|line| {
                let names = line.table_names();
                line.state == LineState::Serving && names.iter().any(|name| name == table.name)
            });
            serving
                .map(|line| physical(self.chain_id, line.generation, table.name))
                .ok_or(Error::NotDerived { table: table.name, chain_id: self.chain_id })
        };
        tables.iter().map(name).collect()
    }
}

/// An address of a row.
pub(crate) fn address(row: &Row, column: usize) -> Result<Address> {
    let bytes = row.blob(column)?;
    Address::try_from(&bytes[..]).map_err(|_| Error::corrupt("a stored address"))
}

/// A number of the chain, as a row has it.
pub(crate) fn number(row: &Row, column: usize) -> Result<U256> {
    of_amount(row.amount(column)?).ok_or_else(|| Error::corrupt("a stored number of the chain"))
}

/// The number of an amount; none if it is negative or too large.
pub(crate) fn of_amount(amount: Amount) -> Option<U256> {
    U256::from_str_radix(&amount.to_string(), 10).ok()
}
