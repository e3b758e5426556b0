//! `contract_code_worker`: fetches the code of contracts that transactions created.
//!
//! The code is requested at the newest final block, or at the last block of the range if a node lags behind the tables,
//! and stored as an observation: it does not change after the creation, unless the contract destroys itself.
//!
//! Guarantees: each contract is queried once. One that cannot be queried fails its range, but does not delay others.
//! Leaves to others: interpreting the code; contracts created by contracts, which no receipt names.

use alloy_primitives::Address;
use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::params;
use logmill_work::Heights;

use super::RangeWork;
use super::derived;
use crate::derive::store::chain_param;
use crate::derive::{Reader, Table, Tables};
use crate::error::{Error, Result};
use crate::observe::{Observations, Question, StateReader, height};
use crate::processors::evm::EVM_TRANSACTIONS;

pub const NAME: &str = "contract_code_worker";
/// Kind of its observations: the subject is the contract, the value its code.
pub const CODE: &str = "code";

/// Contracts per page.
const PAGE: usize = 200;

#[derive(Clone, Debug)]
pub struct ContractCode {
    reader: Reader,
    observations: Observations,
    state: StateReader,
}

impl ContractCode {
    /// Creates its tables if they do not exist.
    pub async fn open(tables: Tables, chain_id: u64, state: StateReader) -> Result<Self> {
        let observations = Observations::open(tables.sql().clone(), chain_id).await?;
        Ok(Self { reader: Reader::new(tables, chain_id), observations, state })
    }

    /// Contracts created in a range whose code is not stored, after the given one.
    async fn unknown(&self, range: &Heights, after: Option<Address>) -> Result<Vec<Address>> {
        let text = |name: &dyn Fn(&'static Table) -> String| {
            let transactions = name(&EVM_TRANSACTIONS);
            format!(
                "SELECT DISTINCT a.address FROM {transactions} AS t JOIN address AS a ON a.id = t.contract_address
                 WHERE t.block_height >= $1 AND t.block_height < $2 AND a.address > $4
                     AND NOT EXISTS (SELECT 1 FROM observation AS o
                         WHERE o.chain_id = $3 AND o.kind = '{CODE}' AND o.subject = a.address)
                 ORDER BY a.address LIMIT {PAGE}"
            )
        };
        let after = after.map_or_else(Bytes::new, |after| Bytes::copy_from_slice(after.as_slice()));
        let params = params![
            height(range.start)?,
            height(range.end)?,
            chain_param(self.reader.chain_id())?,
            after
        ];
        let found = self.reader.query_final(text, params).await?;
        found.rows.iter().map(|row| derived::address(row, 0)).collect()
    }

    async fn learn(&self, contract: Address, block: u64) -> Result<()> {
        let code = self.state.code(contract, block).await?;
        let question = Question::new(CODE, &[contract.as_slice()]);
        let sql = self.reader.tables().sql();
        self.observations.put_in(sql, &question, &code).await?;
        Ok(())
    }
}

#[async_trait]
impl RangeWork for ContractCode {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn gates(&self) -> &'static [&'static str] {
        &["evm_worker"]
    }

    async fn run(&self, range: &Heights) -> Result<()> {
        let (mut after, mut failed) = (None, None);
        loop {
            let contracts = self.unknown(range, after).await?;
            let Some(last) = contracts.last() else {
                return failed.map_or(Ok(()), Err);
            };
            after = Some(*last);
            let block = self.state.final_block(range.end.saturating_sub(1)).await?;
            for contract in contracts {
                if let Err(error) = self.learn(contract, block).await {
                    let why = logmill_io::error_chain(&error);
                    let what = format!("the code of contract {contract}");
                    failed = Some(Error::Unanswered { what, why });
                }
            }
        }
    }
}
