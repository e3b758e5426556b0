//! `daily_balance_worker`: daily change of each account's holding of each token.
//!
//! Days are UTC days, numbered from 1970-01-01.
//!
//! Guarantees: the rows of an account and token add up to its holding; a transaction counts once per day, account and
//! token. Leaves to others: the balance before a day, which is the sum of the earlier rows.

use super::TOKEN_SETTINGS;
use crate::cells;
use crate::derive::table::{folded, key};
use crate::derive::{BlockParts, DecodedBlock, Fold, Kind, Phase, Processor, Rows, Table};
use crate::error::Result;

/// Seconds of a day; block timestamps have no leap seconds.
const DAY_S: u64 = 86_400;

pub static DAILY_BALANCES: Table = Table {
    name: "daily_balances",
    columns: &[
        key("address", Kind::Address),
        key("contract_address", Kind::Address),
        key("date", Kind::Int),
        folded("delta", Kind::Amount, Fold::Sum),
        folded("tx_count", Kind::Int, Fold::Sum),
        folded("last_height", Kind::Int, Fold::Max),
    ],
    indexes: &[],
};

#[derive(Clone, Debug, Default)]
pub(crate) struct DailyBalance {
    /// Fingerprint of the token settings with which transfers are decoded.
    pub tokens: String,
}

impl Processor for DailyBalance {
    fn name(&self) -> &'static str {
        super::ProcessorName::DailyBalance.as_str()
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
        const { &[&DAILY_BALANCES] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        let date = block.timestamp() / DAY_S;
        for change in &block.tokens.ft_changes {
            let cells = cells![
                change.account,
                change.token,
                date,
                change.delta,
                change.transactions,
                block.number(),
            ];
            rows.push(&DAILY_BALANCES, change.log_index, cells)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;
    use logmill_io::Amount;

    use super::*;
    use crate::derive::block_builder::{BlockBuilder, account, erc20, rows, table};

    #[test]
    fn a_day_ends_at_midnight_and_a_transaction_counts_once() {
        let (a, b, token) = (account(1), account(2), account(3));
        let two = || [erc20(token, a, b, U256::ONE), erc20(token, a, b, U256::from(2))];
        let blocks = [
            BlockBuilder::new(4).time(2 * DAY_S - 2).transaction(two()).transaction(two()),
            BlockBuilder::new(5).time(2 * DAY_S - 1).transaction(two()),
            BlockBuilder::new(6).time(2 * DAY_S).transaction(two()),
        ]
        .map(BlockBuilder::decoded);
        let rows = rows(&DailyBalance::default(), &blocks);
        let row = |account, date: u64, delta: i64, count: u64, last: u64| {
            cells![account, token, date, Amount::from(delta), count, last]
        };
        let expected =
            [row(a, 1, -9, 3, 5), row(a, 2, -3, 1, 6), row(b, 1, 9, 3, 5), row(b, 2, 3, 1, 6)];
        assert_eq!(table(&rows, &DAILY_BALANCES), expected);
    }
}
