//! Observations: what a node or the web said beyond blocks, kept for ever.
//!
//! | module | what |
//! |---|---|
//! | [`state`] | asking a node for the state of a contract |
//! | [`answer`] | what contracts answer, read |
//! | [`plain`] | text of strangers, made fit to be shown |
//!
//! Tables that tell what tokens are called or where their pictures lie can not be derived from blocks alone. What was
//! answered to a question, at which block, is written down here once, as it came. From then on the answer is a source
//! like the blocks are: tables are built from it again and again, without a node and without the web.
//!
//! The table `observation` is the only place where these answers are: it belongs into every backup, and nothing can
//! build it anew.
//!
//! Guarantees: an observation never changes; a second answer to the same question at the same block does not replace
//! the first, and if it differs, somebody hears of it. Values are bounded. Leaves to others: what answers mean.

use bytes::Bytes;
use logmill_io::sql::{Execute, Migration, Migrations, Row};
use logmill_io::{Sql, Timestamp, params};

use crate::derive::store::chain_param;
use crate::error::{Error, Result};

pub mod answer;
#[cfg(test)]
pub(crate) mod fake;
pub mod plain;
pub mod state;

pub use state::{Call, StateAnswer, StateReader, StateSettings};

/// The most bytes of a value; of what is larger, only that is kept ([`Status::TooLarge`]).
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// The most observations of one list.
pub const LIST_MAX: usize = 1_000;

/// The table of observations.
pub static MIGRATIONS: Migrations = Migrations {
    component: "observe",
    list: &[Migration {
        name: "observations",
        // Status numbers are those of `Status`.
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

/// What sort of answer it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The value is the answer.
    Ok,
    /// The contract failed; the value is what the node said about it.
    Reverted,
    /// There was an answer, and nothing in it.
    Empty,
    /// There was more than is kept.
    TooLarge,
}

impl Status {
    /// All of them, by their numbers.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Reverted, Self::Empty, Self::TooLarge];

    /// The number that is stored.
    pub fn number(self) -> i64 {
        match self {
            Self::Ok => 0,
            Self::Reverted => 1,
            Self::Empty => 2,
            Self::TooLarge => 3,
        }
    }

    /// The name that people see.
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
        found.ok_or_else(|| Error::corrupt(format!("an observation of status {number}")))
    }
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// What sort of question.
    pub kind: &'static str,
    /// About what.
    pub subject: Bytes,
}

impl Question {
    /// A question about a contract, or about something of it: the parts follow each other.
    pub fn new(kind: &'static str, parts: &[&[u8]]) -> Self {
        Self { kind, subject: parts.concat().into() }
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// About what.
    pub subject: Bytes,
    /// At which block.
    pub block: u64,
    /// What sort of answer.
    pub status: Status,
    /// The answer as it came.
    pub value: Bytes,
    /// When, by the database's clock.
    pub observed_at: Timestamp,
}

/// What became of an answer that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is new.
    New,
    /// It was there already.
    Same,
    /// Another was there, and stays.
    Another,
}

/// The observations of one chain. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Observations {
    sql: Sql,
    chain_id: i64,
}

const COLUMNS: &str = "subject, block, status, value, observed_at";

impl Observations {
    /// Opens the observations of a chain, to be added to: makes or updates their table if need be.
    pub async fn open(sql: Sql, chain_id: u64) -> Result<Self> {
        sql.migrate(&MIGRATIONS).await?;
        Ok(Self { sql, chain_id: chain_param(chain_id)? })
    }

    /// Opens the observations of a chain, to be read.
    pub async fn open_read_only(sql: Sql, chain_id: u64) -> Result<Self> {
        sql.expect_migrated(&MIGRATIONS).await?;
        Ok(Self { sql, chain_id: chain_param(chain_id)? })
    }

    /// Keeps an answer, in a transaction of the caller's.
    pub async fn put_in(
        &self,
        on: &impl Execute,
        question: &Question,
        answer: &StateAnswer,
    ) -> logmill_io::Result<Kept> {
        if answer.value.len() > VALUE_BYTES_MAX {
            let what = format!("an observation of {} bytes", answer.value.len());
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
            return Ok(Kept::New);
        }
        let text = "SELECT status, value FROM observation
            WHERE chain_id = $1 AND kind = $2 AND subject = $3 AND block = $4";
        let params = params![self.chain_id, question.kind, question.subject.clone(), block];
        let found = on.execute(text, params).await?;
        let row = found.row()?;
        if row.int(0)? == answer.status.number() && row.blob(1)? == answer.value {
            return Ok(Kept::Same);
        }
        let subject = alloy_primitives::hex::encode(&question.subject);
        tracing::warn!(
            kind = question.kind,
            subject,
            block,
            "a second answer differs from the first, which stays"
        );
        metrics::counter!("logmill_observations_contradicted_total", "kind" => question.kind)
            .increment(1);
        Ok(Kept::Another)
    }

    /// The newest answer to a question, at or before a block.
    pub async fn latest(&self, question: &Question, block: u64) -> Result<Option<Observation>> {
        let text = format!(
            "SELECT {COLUMNS} FROM observation
             WHERE chain_id = $1 AND kind = $2 AND subject = $3 AND block <= $4
             ORDER BY block DESC LIMIT 1"
        );
        let subject = question.subject.clone();
        // Above all heights that are stored, so that `u64::MAX` means "the newest".
        let block = i64::try_from(block).unwrap_or(i64::MAX);
        let params = params![self.chain_id, question.kind, subject, block];
        let found = self.sql.query(&text, params).await?;
        found.rows.first().map(observation).transpose()
    }

    /// The answers to all questions of a kind, by subject and block, after the given one; at most [`LIST_MAX`].
    pub async fn list(
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
        status: Status::of_number(row.int(2)?)?,
        value: row.blob(3)?,
        observed_at: row.time(4)?,
    })
}

/// A height as it is stored.
pub(crate) fn height(block: u64) -> logmill_io::Result<i64> {
    let what = || logmill_io::Error::Invalid { what: format!("the height {block} is too high") };
    i64::try_from(block).map_err(|_| what())
}

#[cfg(test)]
mod tests;
