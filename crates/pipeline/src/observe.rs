//! Observations: answers of nodes and of the web that are not in blocks, kept permanently.
//!
//! | module | what |
//! |---|---|
//! | [`state`] | queries a node for contract state |
//! | [`answer`] | decodes contract answers |
//! | [`plain`] | makes untrusted text safe to display |
//!
//! Names of tokens and locations of their images cannot be derived from blocks alone. The answer to a question at a
//! block is stored here once, unmodified. From then on it is a source like the blocks: tables are rebuilt from it
//! without a node and without the web.
//!
//! The table `observation` is the only copy of these answers: every backup must include it, because it cannot be
//! rebuilt.
//!
//! Guarantees: an observation never changes; a second answer to the same question at the same block does not replace
//! the first, and a different one is logged and counted. Values are bounded. Leaves to others: what answers mean.

use bytes::Bytes;
use logmill_io::sql::{Execute, Migration, Migrations, Row};
use logmill_io::{Sql, Timestamp, params};

use crate::derive::store::chain_param;
use crate::error::{Error, Result};

pub mod answer;
pub mod plain;
pub mod state;

pub(crate) use state::Call;
pub use state::{StateAnswer, StateReader, StateSettings};

/// Maximum size of a value; of a larger one only the fact is kept ([`AnswerStatus::TooLarge`]).
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 20;
/// Maximum page size of [`Observations::list`].
pub(crate) const LIST_MAX: usize = 1_000;

pub static MIGRATIONS: Migrations = Migrations {
    component: "observe",
    list: &[Migration {
        name: "observations",
        // Status numbers are those of `AnswerStatus`.
        statements: "
            CREATE TABLE observation (
                chain_id BIGINT NOT NULL,
                kind {name} NOT NULL,
                subject {bytes} NOT NULL,
                block BIGINT NOT NULL,
                status BIGINT NOT NULL,
                value {bytes} NOT NULL,
                observed_at BIGINT NOT NULL,
                PRIMARY KEY (chain_id, kind, subject, block)
            );",
        postgres_only: "",
    }],
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    Ok,
    /// The contract failed; the value is the node's error message.
    Reverted,
    /// The answer was empty.
    Empty,
    /// The answer exceeded `VALUE_BYTES_MAX`.
    TooLarge,
}

impl AnswerStatus {
    /// In the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Reverted, Self::Empty, Self::TooLarge];

    /// The stored number.
    pub fn number(self) -> i64 {
        match self {
            Self::Ok => 0,
            Self::Reverted => 1,
            Self::Empty => 2,
            Self::TooLarge => 3,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Reverted => "reverted",
            Self::Empty => "empty",
            Self::TooLarge => "too_large",
        }
    }

    fn of_number(number: i64) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|status| status.number() == number);
        found.ok_or_else(|| {
            Error::corrupt(format!("an observation has the unknown status {number}"))
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub kind: &'static str,
    pub subject: Bytes,
}

impl Question {
    /// A question about a contract or a part of it; the subject is the concatenation of `parts`.
    pub(crate) fn new(kind: &'static str, parts: &[&[u8]]) -> Self {
        Self { kind, subject: parts.concat().into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observation {
    pub subject: Bytes,
    pub block: u64,
    pub status: AnswerStatus,
    /// The answer, unmodified.
    pub value: Bytes,
    /// By the database's clock.
    pub observed_at: Timestamp,
}

/// Outcome of storing an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOutcome {
    New,
    /// The same answer was stored before.
    Same,
    /// A different answer was stored before, and stays.
    Another,
}

/// The observations of one chain. Clones share the same handle.
#[derive(Clone, Debug)]
pub(crate) struct Observations {
    sql: Sql,
    chain_id: i64,
}

const COLUMNS: &str = "subject, block, status, value, observed_at";

impl Observations {
    /// Opens the observations of a chain for writing; creates or migrates the table if necessary.
    pub(crate) async fn open(sql: Sql, chain_id: u64) -> Result<Self> {
        sql.migrate(&MIGRATIONS).await?;
        Ok(Self { sql, chain_id: chain_param(chain_id)? })
    }

    /// Stores an answer within the caller's transaction.
    pub(crate) async fn put_in(
        &self,
        on: &impl Execute,
        question: &Question,
        answer: &StateAnswer,
    ) -> logmill_io::Result<PutOutcome> {
        if answer.value.len() > VALUE_BYTES_MAX {
            let what = format!(
                "an observation of {} bytes is larger than {VALUE_BYTES_MAX}",
                answer.value.len()
            );
            return Err(logmill_io::Error::Invalid { what });
        }
        let block = height(answer.block)?;
        let text = "INSERT INTO observation
                (chain_id, kind, subject, block, status, value, observed_at)
            VALUES ($1, $2, $3, $4, $5, $6, now_ms())
            ON CONFLICT (chain_id, kind, subject, block) DO NOTHING";
        let params = params![
            self.chain_id,
            question.kind,
            question.subject.clone(),
            block,
            answer.status.number(),
            answer.value.clone(),
        ];
        if on.execute(text, params).await?.changed > 0 {
            return Ok(PutOutcome::New);
        }
        let text = "SELECT status, value FROM observation
            WHERE chain_id = $1 AND kind = $2 AND subject = $3 AND block = $4";
        let params = params![self.chain_id, question.kind, question.subject.clone(), block];
        let found = on.execute(text, params).await?;
        let row = found.row()?;
        if row.int(0)? == answer.status.number() && row.blob(1)? == answer.value {
            return Ok(PutOutcome::Same);
        }
        let subject = alloy_primitives::hex::encode(&question.subject);
        tracing::warn!(
            kind = question.kind,
            subject,
            block,
            "a new answer differs from the stored one, which is kept"
        );
        let labels = [("chain", self.chain_id.to_string()), ("kind", question.kind.to_owned())];
        metrics::counter!("logmill_observations_contradicted_total", &labels).increment(1);
        Ok(PutOutcome::Another)
    }

    /// The newest answer to a question, at or before a block.
    pub(crate) async fn latest(
        &self,
        question: &Question,
        block: u64,
    ) -> Result<Option<Observation>> {
        let text = format!(
            "SELECT {COLUMNS} FROM observation
             WHERE chain_id = $1 AND kind = $2 AND subject = $3 AND block <= $4
             ORDER BY block DESC LIMIT 1"
        );
        let subject = question.subject.clone();
        // Larger than any stored height, so that `u64::MAX` means "the newest".
        let block = i64::try_from(block).unwrap_or(i64::MAX);
        let params = params![self.chain_id, question.kind, subject, block];
        let found = self.sql.query(&text, params).await?;
        found.rows.first().map(observation).transpose()
    }

    /// The answers to all questions of a kind, sorted by subject and block, after the given position; at most
    /// [`LIST_MAX`].
    pub(crate) async fn list(
        &self,
        kind: &'static str,
        after: Option<(&[u8], u64)>,
        limit: usize,
    ) -> Result<Vec<Observation>> {
        let limit = i64::try_from(limit.min(LIST_MAX)).unwrap_or(0);
        let (subject, block) = match after {
            Some((subject, block)) => (subject, height(block)?),
            None => (&[][..], -1),
        };
        let text = format!(
            "SELECT {COLUMNS} FROM observation
             WHERE chain_id = $1 AND kind = $2 AND (subject, block) > ($3, $4)
             ORDER BY subject, block LIMIT $5"
        );
        let params = params![self.chain_id, kind, subject, block, limit];
        let found = self.sql.query(&text, params).await?;
        found.rows.iter().map(observation).collect()
    }
}

fn observation(row: &Row) -> Result<Observation> {
    Ok(Observation {
        subject: row.blob(0)?,
        block: row.count(1)?,
        status: AnswerStatus::of_number(row.int(2)?)?,
        value: row.blob(3)?,
        observed_at: row.time(4)?,
    })
}

pub(crate) fn height(block: u64) -> logmill_io::Result<i64> {
    let what = || logmill_io::Error::Invalid { what: format!("block number {block} is too large") };
    i64::try_from(block).map_err(|_| what())
}

#[cfg(test)]
mod tests;
