//! `ft_holdings_worker`: each account's balance of each token, according to transfers.
//!
//! Guarantees: the balance is the sum of incoming and outgoing transfers in the covered blocks. Leaves to others:
//! whether these reach back to the token's creation; tokens whose balances change without transfers.

use super::TOKEN_SETTINGS;
use crate::cells;
use crate::derive::table::{folded, key};
use crate::derive::{BlockParts, DecodedBlock, Fold, Kind, Phase, Processor, Rows, Table};
use crate::error::Result;

/// Holdings of fungible tokens. The index serves queries for the holders of a token.
pub static FT_HOLDINGS: Table = Table {
    name: "ft_holdings",
    columns: &[
        key("address", Kind::Address),
        key("contract_address", Kind::Address),
        folded("balance", Kind::Amount, Fold::Sum),
        folded("transfer_count", Kind::Int, Fold::Sum),
        folded("last_height", Kind::Int, Fold::Max),
    ],
    indexes: &[&["contract_address", "balance", "address"]],
};

#[derive(Clone, Debug, Default)]
pub struct FtHoldings {
    /// Fingerprint of the token settings with which transfers are decoded.
    pub tokens: String,
}

impl Processor for FtHoldings {
    fn name(&self) -> &'static str {
        super::ProcessorName::FtHoldings.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn parameters(&self) -> String {
        self.tokens.clone()
    }

    fn parameter_settings(&self) -> &'static str {
        TOKEN_SETTINGS
    }

    fn phase(&self) -> Phase {
        Phase::Two
    }

    fn reads(&self) -> BlockParts {
        BlockParts::Logs
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&FT_HOLDINGS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for change in &block.tokens.ft_changes {
            let cells = cells![
                change.account,
                change.token,
                change.delta,
                change.transfers,
                block.number()
            ];
            rows.push(&FT_HOLDINGS, change.log_index, cells)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Address, U256};
    use logmill_io::Amount;

    use super::*;
    use crate::derive::block_builder::{BlockBuilder, account, erc20, rows, table};

    #[test]
    fn the_balance_is_the_sum_of_the_transfers() {
        let (a, b, token) = (account(1), account(2), account(3));
        let blocks = [
            BlockBuilder::new(5).transaction([erc20(token, a, b, U256::from(30))]),
            BlockBuilder::new(4).transaction([
                erc20(token, Address::ZERO, a, U256::from(100)),
                erc20(token, a, a, U256::from(1_000)),
            ]),
            BlockBuilder::new(6).transaction([erc20(token, b, Address::ZERO, U256::from(50))]),
        ]
        .map(BlockBuilder::decoded);
        let rows = rows(&FtHoldings::default(), &blocks);
        let row = |account, balance: i64, count: u64, last: u64| {
            cells![account, token, Amount::from(balance), count, last]
        };
        assert_eq!(table(&rows, &FT_HOLDINGS), [row(a, 70, 3, 5), row(b, -20, 2, 6)]);
    }
}
