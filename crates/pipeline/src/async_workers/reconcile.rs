//! `nft_ownership_reconciler`: owners and balances, compared with what contracts say.
//!
//! Tables count what logs tell. A contract can lie in its logs, or change balances without any: rebasing tokens, fees
//! on transfers, owners that are computed. So of every range some items and holders are taken, and their contracts
//! are asked who owns them and how much they have, at the very block up to which the tables have counted.
//!
//! Guarantees: a comparison is of one block, and only where the tables have every block from the first on up to that
//! one; it leaves a flag ([`Verdict`]) and an observation, and never changes what it compares. Leaves to others: what
//! to make of a flag.

use std::borrow::Cow;

use alloy_primitives::{Address, B256, U256};
use async_trait::async_trait;
use logmill_io::sql::{Bulk, ColumnType, Migration, Migrations};
use logmill_io::{Sql, Value, params};
use logmill_work::{Heights, IntervalSet};

use super::RangeWork;
use crate::derive::store::chain_param;
use crate::derive::{Reader, Tables};
use crate::error::{Error, Result};
use crate::observe::{
    Call, Observations, Question, StateAnswer, StateReader, Status, answer, height,
};

mod sample;

/// The checkpoint's name.
pub const NAME: &str = "nft_ownership_reconciler";

const OWNER_OF: [u8; 4] = [0x63, 0x52, 0x21, 0x1e];
const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];
const BALANCE_OF_ITEM: [u8; 4] = [0x00, 0xfd, 0xd5, 0x8e];

/// The table of flags.
pub static MIGRATIONS: Migrations = Migrations {
    component: "reconciliation",
    list: &[Migration {
        name: "reconciliation",
        // The subject is that of the observation; expected and observed are an address or a number.
        statements: "
            CREATE TABLE reconciliation (
                chain_id BIGINT NOT NULL,
                kind {name} NOT NULL,
                subject {bytes} NOT NULL,
                block BIGINT NOT NULL,
                expected TEXT NOT NULL,
                observed TEXT,
                verdict TEXT NOT NULL,
                PRIMARY KEY (chain_id, kind, subject, block)
            );
            CREATE INDEX reconciliation_verdict ON reconciliation (chain_id, verdict, block);",
        postgres_only: "",
    }],
};

/// How a comparison came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The contract says the same.
    Agrees,
    /// It says something else.
    Differs,
    /// It reverts, and the table has something.
    Reverts,
    /// It says nothing that could be compared.
    Unclear,
}

impl Verdict {
    /// The name that is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "differs",
            Self::Reverts => "reverts",
            Self::Unclear => "unclear",
        }
    }
}

/// What a table says, and whom to ask about it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Claim {
    /// Who owns an item.
    Owner { contract: Address, id: U256, owner: Address },
    /// How many of an item somebody has.
    Quantity { contract: Address, id: U256, owner: Address, quantity: String },
    /// How much of a token somebody has.
    Balance { token: Address, owner: Address, balance: String },
}

impl Claim {
    fn question(&self) -> Question {
        match self {
            Self::Owner { contract, id, .. } => {
                Question::new("nft_owner", &[contract.as_slice(), B256::from(*id).as_slice()])
            }
            Self::Quantity { contract, id, owner, .. } => {
                let id = B256::from(*id);
                let parts = [contract.as_slice(), id.as_slice(), owner.as_slice()];
                Question::new("nft_balance", &parts)
            }
            Self::Balance { token, owner, .. } => {
                Question::new("ft_balance", &[token.as_slice(), owner.as_slice()])
            }
        }
    }

    fn call(&self) -> Call {
        match self {
            Self::Owner { contract, id, .. } => Call::new(*contract, OWNER_OF, &[B256::from(*id)]),
            Self::Quantity { contract, id, owner, .. } => {
                let words = [owner.into_word(), B256::from(*id)];
                Call::new(*contract, BALANCE_OF_ITEM, &words)
            }
            Self::Balance { token, owner, .. } => {
                Call::new(*token, BALANCE_OF, &[owner.into_word()])
            }
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Owner { owner, .. } => format!("{owner:#x}"),
            Self::Quantity { quantity, .. } => quantity.clone(),
            Self::Balance { balance, .. } => balance.clone(),
        }
    }

    /// What the contract says, and how that compares.
    fn verdict(&self, answer: &StateAnswer) -> (Option<String>, Verdict) {
        let observed = match (answer.status, self) {
            (Status::Reverted, Self::Owner { owner, .. }) if owner.is_zero() => {
                // What was burnt has no owner, and most contracts say so by failing.
                return (None, Verdict::Agrees);
            }
            (Status::Reverted, _) => return (None, Verdict::Reverts),
            (Status::Ok, Self::Owner { .. }) => {
                answer::address(&answer.value).map(|owner| format!("{owner:#x}"))
            }
            (Status::Ok, _) => answer::number(&answer.value).map(|number| number.to_string()),
            (Status::Empty | Status::TooLarge, _) => None,
        };
        let verdict = match &observed {
            None => Verdict::Unclear,
            Some(observed) if *observed == self.expected() => Verdict::Agrees,
            Some(_) => Verdict::Differs,
        };
        (observed, verdict)
    }
}

/// How much is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileSettings {
    /// How many of each sort are compared in a range.
    pub sample: usize,
    /// The first block of the chain, from which on the tables must be complete.
    pub first_block: u64,
}

impl Default for ReconcileSettings {
    fn default() -> Self {
        Self { sample: 10, first_block: 0 }
    }
}

/// The worker.
#[derive(Clone, Debug)]
pub struct Reconciler {
    reader: Reader,
    observations: Observations,
    state: StateReader,
    settings: ReconcileSettings,
}

impl Reconciler {
    /// The worker of a chain; makes its tables if need be.
    pub async fn open(
        tables: Tables,
        chain_id: u64,
        state: StateReader,
        settings: ReconcileSettings,
    ) -> Result<Self> {
        let sql = tables.sql().clone();
        sql.migrate(&MIGRATIONS).await?;
        let observations = Observations::open(sql, chain_id).await?;
        Ok(Self { reader: Reader::new(tables, chain_id), observations, state, settings })
    }

    fn sql(&self) -> &Sql {
        self.reader.tables().sql()
    }

    async fn compare(&self, claim: &Claim, block: u64) -> Result<()> {
        let answer = self.state.call(&claim.call(), block).await?;
        if answer.block != block {
            // The state of the block is gone: what a newer one has says nothing about it.
            let what = format!("the state of block {block}");
            let why = "no node has it any more".to_owned();
            return Err(Error::Unanswered { what, why });
        }
        let question = claim.question();
        let (observed, verdict) = claim.verdict(&answer);
        if verdict != Verdict::Agrees {
            let subject = alloy_primitives::hex::encode(&question.subject);
            let (kind, verdict) = (question.kind, verdict.name());
            tracing::warn!(
                kind,
                subject,
                block,
                verdict,
                "a contract does not say what its logs do"
            );
        }
        metrics::counter!("logmill_reconciled_total", "verdict" => verdict.name()).increment(1);
        let row: Vec<Value> = params![
            chain_param(self.reader.chain_id())?,
            question.kind,
            question.subject.clone(),
            height(block)?,
            claim.expected(),
            observed,
            verdict.name(),
        ];
        let (question, answer) = (&question, &answer);
        let kept = self.sql().write(|tx| {
            let row = row.clone();
            async move {
                self.observations.put_in(&tx, question, answer).await?;
                tx.bulk(&INSERT, vec![row]).await
            }
        });
        kept.await?;
        Ok(())
    }
}

static INSERT: Bulk = Bulk {
    table: Cow::Borrowed("reconciliation"),
    columns: Cow::Borrowed(&[
        ("chain_id", ColumnType::Int),
        ("kind", ColumnType::Text),
        ("subject", ColumnType::Blob),
        ("block", ColumnType::Int),
        ("expected", ColumnType::Text),
        ("observed", ColumnType::Text),
        ("verdict", ColumnType::Text),
    ]),
    key_columns: 4,
    on_conflict: Cow::Borrowed("DO NOTHING"),
};

#[async_trait]
impl RangeWork for Reconciler {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn gates(&self) -> &'static [&'static str] {
        &["nft_ownership_worker", "ft_holdings_worker", "token_worker"]
    }

    /// Only what the tables have from the first block on.
    fn ready(&self, gates: IntervalSet) -> IntervalSet {
        let first = self.settings.first_block;
        let complete = first..gates.watermark_up(first);
        gates.overlap(&complete).into_iter().collect()
    }

    async fn run(&self, range: &Heights) -> Result<()> {
        let mut failed = None;
        for sort in sample::Sort::ALL {
            let (claims, block) = self.sample(sort, range).await?;
            for claim in claims {
                if let Err(error) = self.compare(&claim, block).await {
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
