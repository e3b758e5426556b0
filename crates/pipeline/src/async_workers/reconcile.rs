//! `nft_ownership_reconciler`: compares derived owners and balances with the answers of contracts.
//!
//! | module | what |
//! |---|---|
//! | `claim` | what the tables claim, and how an answer compares with it |
//! | `sample` | which claims of a range are compared |
//! | `list` | stored comparisons, page by page |
//!
//! Tables are derived from logs. A contract can emit false logs, or change balances without any: rebasing tokens, fees
//! on transfers, computed owners. So some items and holders of every range are sampled, and their contracts are asked
//! for owners and balances.
//!
//! Where the tables cover every block from the first on, a contract is asked at the last covered block. Where they do
//! not (history is still being filled, or `--start-block` leaves it out), it is asked twice: at the last block before
//! the range and at the last block of it. The difference must be the sum of the range's transfers.
//!
//! Guarantees: the counted blocks end at the block that the contract is asked about. If no node has the state of one of
//! the two blocks, nothing is compared, and the range records that once ([`Verdict::NoState`]). A comparison stores a
//! flag and its observations, and never changes what it compares. Leaves to others: acting on a flag.

use std::borrow::Cow;

use async_trait::async_trait;
use logmill_io::sql::{Bulk, ColumnType, Migration, Migrations};
use logmill_io::{Sql, Value, params};
use logmill_work::Heights;

use super::RangeWork;
use crate::derive::store::chain_param;
use crate::derive::{Reader, Tables};
use crate::error::Result;
use crate::observe::{Observations, StateAnswer, StateReader, height};
use claim::Claim;
use sample::{ClaimKind, Sample};

mod claim;
mod list;
mod sample;

pub use claim::Verdict;
pub use list::{Comparison, ComparisonPosition, KINDS, list};

pub const NAME: &str = "nft_ownership_reconciler";

/// The table of comparisons.
pub static MIGRATIONS: Migrations = Migrations {
    component: "reconciliation",
    list: &[
        Migration {
            name: "reconciliation",
            // `subject` is that of the observation; `expected` and `observed` are an address or a number.
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
        },
        Migration {
            name: "reconciliation_since",
            // Changes are counted from after `since`, or from the first block on if it is null. `expected` is null if
            // the state of block `since` is not available.
            statements: "
            CREATE TABLE reconciliation_within (
                chain_id BIGINT NOT NULL,
                kind {name} NOT NULL,
                subject {bytes} NOT NULL,
                block BIGINT NOT NULL,
                since BIGINT,
                expected TEXT,
                observed TEXT,
                verdict {name} NOT NULL,
                PRIMARY KEY (chain_id, kind, subject, block)
            );
            INSERT INTO reconciliation_within
                    (chain_id, kind, subject, block, expected, observed, verdict)
                SELECT chain_id, kind, subject, block, expected, observed, verdict
                FROM reconciliation;
            DROP TABLE reconciliation;
            ALTER TABLE reconciliation_within RENAME TO reconciliation;
            CREATE INDEX reconciliation_order ON reconciliation (chain_id, block, kind, subject);
            CREATE INDEX reconciliation_verdict
                ON reconciliation (chain_id, verdict, block, kind, subject);",
            postgres_only: "",
        },
    ],
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileSettings {
    /// Number of claims of each kind that are compared per range.
    pub sample: usize,
    /// First block of the chain: before it, all balances are zero.
    pub first_block: u64,
}

impl Default for ReconcileSettings {
    fn default() -> Self {
        Self { sample: 10, first_block: 0 }
    }
}

#[derive(Clone, Debug)]
pub struct Reconciler {
    reader: Reader,
    observations: Observations,
    state: StateReader,
    settings: ReconcileSettings,
}

impl Reconciler {
    /// Creates its tables if they do not exist.
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

    /// Asks the contract of a claim, and stores the comparison.
    async fn compare(&self, claim: &Claim, sample: &Sample) -> Result<Verdict> {
        let call = claim.call();
        let since = sample.since.filter(|_| claim.is_change());
        let before = match since {
            None => None,
            Some(since) => match self.state.call_at(&call, since).await? {
                Some(before) => Some(before),
                None => return self.put_without_state(claim, sample, since).await,
            },
        };
        let Some(answer) = self.state.call_at(&call, sample.block).await? else {
            return self.put_without_state(claim, sample, sample.block).await;
        };
        let expected = claim.expected(before.as_ref());
        let (observed, verdict) = claim.verdict(expected.as_deref(), &answer);
        // Other verdicts do not show that anything is wrong; they are stored and served.
        if verdict == Verdict::Differs {
            let question = claim.question();
            tracing::warn!(
                chain = self.reader.chain_id(),
                kind = question.kind,
                subject = alloy_primitives::hex::encode(&question.subject),
                since,
                block = sample.block,
                expected,
                observed,
                "the answer of a contract differs from the derived tables"
            );
        }
        let answers: Vec<StateAnswer> = before.into_iter().chain([answer]).collect();
        let flag = ComparisonRow { since, block: sample.block, expected, observed, verdict };
        self.put(claim, flag, &answers).await?;
        Ok(verdict)
    }

    /// Stores that no node has the state of block `gone`.
    async fn put_without_state(
        &self,
        claim: &Claim,
        sample: &Sample,
        gone: u64,
    ) -> Result<Verdict> {
        let chain = self.reader.chain_id();
        tracing::debug!(
            chain,
            block = gone,
            "no node has the state of the block, so nothing was compared"
        );
        let since = sample.since.filter(|_| claim.is_change());
        let expected = since.is_none().then(|| claim.expected(None)).flatten();
        let (block, verdict) = (sample.block, Verdict::NoState);
        self.put(claim, ComparisonRow { since, block, expected, observed: None, verdict }, &[])
            .await?;
        Ok(verdict)
    }

    async fn put(&self, claim: &Claim, flag: ComparisonRow, answers: &[StateAnswer]) -> Result<()> {
        let (question, verdict) = (&claim.question(), flag.verdict.name());
        let chain = self.reader.chain_id();
        let row: Vec<Value> = params![
            chain_param(chain)?,
            question.kind,
            question.subject.clone(),
            height(flag.block)?,
            flag.since.map(height).transpose()?,
            flag.expected,
            flag.observed,
            verdict,
        ];
        let kept = self.sql().write(|tx| {
            let row = row.clone();
            async move {
                for answer in answers {
                    self.observations.put_in(&tx, question, answer).await?;
                }
                tx.bulk(&INSERT, vec![row]).await
            }
        });
        kept.await?;
        let labels = [("chain", chain.to_string()), ("verdict", verdict.to_owned())];
        metrics::counter!("logmill_reconciled_total", &labels).increment(1);
        Ok(())
    }
}

/// A stored comparison.
struct ComparisonRow {
    since: Option<u64>,
    block: u64,
    expected: Option<String>,
    observed: Option<String>,
    verdict: Verdict,
}

static INSERT: Bulk = Bulk {
    table: Cow::Borrowed("reconciliation"),
    columns: Cow::Borrowed(&[
        ("chain_id", ColumnType::Int),
        ("kind", ColumnType::Text),
        ("subject", ColumnType::Blob),
        ("block", ColumnType::Int),
        ("since", ColumnType::Int),
        ("expected", ColumnType::Text),
        ("observed", ColumnType::Text),
        ("verdict", ColumnType::Text),
    ]),
    key_columns: 4,
    // A range is compared again after stored blocks were replaced: the last comparison is of the blocks that remain.
    on_conflict: Cow::Borrowed(
        "DO UPDATE SET since = excluded.since, expected = excluded.expected,
            observed = excluded.observed, verdict = excluded.verdict",
    ),
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

    async fn run(&self, range: &Heights) -> Result<()> {
        let mut failed = None;
        for kind in ClaimKind::ALL {
            let sample = self.sample(kind, range).await?;
            for claim in &sample.claims {
                match self.compare(claim, &sample).await {
                    // All claims of a sample are about the same blocks.
                    Ok(Verdict::NoState) => break,
                    Ok(_) => {}
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
