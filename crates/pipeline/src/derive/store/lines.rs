//! The generations of every processor: made, replaced, dropped.
//!
//! Guarantees: a processor has one generation that serves, and at most one beside it that is built; what a generation
//! was made by (version, settings, declarations) never changes, so rows of two kinds can not mix; the change of the one
//! that serves is one transaction. Leaves to others: when a generation is complete.

use std::sync::Arc;

use logmill_io::sql::Execute;
use logmill_io::{ErrorKind, Tx, Value, params};
use logmill_work::{Coverage, IntervalSet};

use super::{Stored, Tables, hold};
use crate::derive::line::{self, Line, LineState, TipBlocks};
use crate::derive::processor::Processor;
use crate::derive::{read, schema};
use crate::error::{Error, Result};
use crate::record;

/// How often an index is made that another process makes too.
const INDEX_ATTEMPTS_MAX: u32 = 3;

/// A stored generation.
#[derive(Clone, Debug)]
pub(crate) struct StoredLine {
    pub(crate) processor: String,
    pub(crate) generation: u32,
    pub(crate) state: LineState,
    /// The last replacement of stored blocks that it has applied.
    pub(crate) replacements: u64,
    /// Why it has not applied a later one, if that is known.
    pub(crate) behind: Option<String>,
    version: i64,
    parameters: String,
    tables: String,
}

impl Tables {
    /// The generations of these processors that they can fill: those made by the same version, settings and
    /// declarations. Makes what is missing: the first generation, or one beside an older version's.
    pub async fn lines(
        &self,
        chain_id: u64,
        processors: &[Arc<dyn Processor>],
    ) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        for processor in processors {
            for table in processor.tables() {
                table.check().map_err(|what| Error::Invalid { what })?;
            }
            let ensured = self.sql.write(|tx| async move {
                lock(&tx).await?;
                self.ensure(&tx, chain_id, &**processor).await?;
                stored_lines(&tx, chain_id, Some(processor.name())).await
            });
            let usable = ensured.await?.into_iter().filter(|line| line.is_made_by(&**processor));
            lines.extend(usable.map(|line| Line {
                chain_id,
                processor: Arc::clone(processor),
                generation: line.generation,
                state: line.state,
                replacements: line.replacements,
                behind: line.behind,
            }));
        }
        Ok(lines)
    }

    async fn ensure(&self, tx: &Tx, chain_id: u64, processor: &dyn Processor) -> Stored<()> {
        let stored = stored_lines(tx, chain_id, Some(processor.name())).await?;
        if stored.iter().any(|line| line.is_made_by(processor)) {
            return Ok(());
        }
        // One that another version has begun to build is of no use any more.
        for line in stored.iter().filter(|line| line.state == LineState::Building) {
            self.drop_line(tx, chain_id, line).await?;
        }
        let generation = stored.iter().map(|line| line.generation).max().unwrap_or(0) + 1;
        let serving = stored.iter().find(|line| line.state == LineState::Serving);
        let state = match serving {
            None => LineState::Serving,
            Some(old) => {
                // Nobody is left who could take a dead branch out of it.
                self.clear_tip(tx, chain_id, old).await?;
                LineState::Building
            }
        };
        self.create(tx, chain_id, processor, generation, state, 0).await
    }

    /// Begins a new generation beside the one that serves, unless there is one; it serves when all is derived.
    pub async fn rederive(&self, chain_id: u64, processor: &Arc<dyn Processor>) -> Result<()> {
        let begun = self.sql.write(|tx| async move {
            lock(&tx).await?;
            self.ensure(&tx, chain_id, &**processor).await?;
            let stored = stored_lines(&tx, chain_id, Some(processor.name())).await?;
            if stored.iter().any(|line| line.state == LineState::Building) {
                return Ok(());
            }
            let generation = stored.iter().map(|line| line.generation).max().unwrap_or(0) + 1;
            self.create(&tx, chain_id, &**processor, generation, LineState::Building, 0).await
        });
        Ok(begun.await?)
    }

    /// Makes a generation without blocks. That it has not applied any replacement yet costs nothing: without blocks,
    /// no replacement touches it.
    pub(super) async fn create(
        &self,
        tx: &Tx,
        chain_id: u64,
        processor: &dyn Processor,
        generation: u32,
        state: LineState,
        replacements: u64,
    ) -> Stored<()> {
        for table in processor.tables() {
            let physical = line::physical(chain_id, generation, table.name);
            for statement in schema::create(table, &physical) {
                tx.execute(&statement, params![]).await?;
            }
        }
        let params = params![
            chain_param(chain_id)?,
            processor.name(),
            generation,
            processor.version(),
            processor.parameters(),
            declared(processor),
            state.stored(),
            record::encode(&TipBlocks::default()),
            i64::try_from(replacements).unwrap_or(i64::MAX),
        ];
        let text = "INSERT INTO derive_line
                (chain_id, processor, generation, version, parameters, tables, state, indexed, tip, replacements,
                 created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8, $9, now_ms(), now_ms())";
        tx.execute(text, params).await?;
        if state == LineState::Serving {
            self.make_views(tx, processor).await?;
        }
        Ok(())
    }

    /// Makes a generation that is complete the one that serves, and drops the one before it; false if what it covers
    /// is less than what that one covers. Where blocks were replaced since, that one may cover blocks that no longer
    /// exist: then only those count that are `stored`.
    pub async fn swap(
        &self,
        fence: Option<&logmill_io::Fence>,
        new: &Line,
        stored_blocks: &IntervalSet,
    ) -> Result<bool> {
        let swapped = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            lock(&tx).await?;
            let name = new.processor.name();
            let stored = stored_lines(&tx, new.chain_id, Some(name)).await?;
            let of_state = |state| stored.iter().find(|line: &&StoredLine| line.state == state);
            let building = of_state(LineState::Building);
            let is_same = |line: &StoredLine| {
                line.generation == new.generation && line.replacements == new.replacements
            };
            if !building.is_some_and(is_same) {
                return Ok(false);
            }
            if let Some(old) = of_state(LineState::Serving) {
                let covered = Coverage::read(&tx, &new.scope()).await?.done;
                let scope = line::scope(new.chain_id, name, old.generation);
                let before = Coverage::read(&tx, &scope).await?.done;
                let is_behind = old.replacements < new.replacements;
                let lost = before.ranges().flat_map(|range| covered.gaps(&range));
                let lost: IntervalSet = lost.collect();
                let is_lost = match is_behind {
                    true => lost.ranges().any(|range| !stored_blocks.overlap(&range).is_empty()),
                    false => !lost.is_empty(),
                };
                if is_lost {
                    return Ok(false);
                }
                self.drop_line(&tx, new.chain_id, old).await?;
            }
            let text = "UPDATE derive_line SET state = 1
                WHERE chain_id = $1 AND processor = $2 AND generation = $3";
            let chain = chain_param(new.chain_id)?;
            tx.execute(text, params![chain, name, new.generation]).await?;
            self.make_views(&tx, &*new.processor).await?;
            Ok(true)
        });
        Ok(swapped.await?)
    }

    /// Makes the secondary indexes of a line, once. Others may do the same at the same time.
    pub async fn make_indexes(&self, line: &Line) -> Result<()> {
        if !self.needs_indexes(line).await? {
            return Ok(());
        }
        let tables = line.processor.tables().iter();
        for statement in tables.flat_map(|table| schema::indexes(table, &line.table(table))) {
            self.make_index(line, &statement).await?;
        }
        let text = "UPDATE derive_line SET indexed = 1
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        self.sql.execute(text, super::line_params(line)?).await?;
        Ok(())
    }

    async fn make_index(&self, line: &Line, statement: &str) -> Result<()> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            // No transaction, whose time is bounded: an index of a large table takes what it takes.
            let Err(error) = self.sql.execute(statement, params![]).await else {
                return Ok(());
            };
            // PostgreSQL looks whether the index is there, builds it, and only then finds out that another process was
            // faster: who asks again finds that index. A table that is gone was replaced.
            let may_be_there = error.kind() == ErrorKind::Conflict || error.is_missing_table();
            if attempt >= INDEX_ATTEMPTS_MAX || !may_be_there {
                return Err(error.into());
            }
            if !self.needs_indexes(line).await? {
                return Ok(());
            }
        }
    }

    /// Whether a line is there, and its indexes may not be.
    async fn needs_indexes(&self, line: &Line) -> Result<bool> {
        let text = format!("SELECT indexed {}", super::LINE);
        let found = self.sql.query(&text, super::line_params(line)?).await?;
        found.rows.first().map_or(Ok(false), |row| Ok(row.int(0)? == 0))
    }

    /// The chains that a processor has tables of, lowest first.
    pub async fn chains(&self, processor: &str) -> Result<Vec<u64>> {
        let text =
            "SELECT DISTINCT chain_id FROM derive_line WHERE processor = $1 ORDER BY chain_id";
        let found = self.sql.query(text, params![processor]).await?;
        Ok(found.rows.iter().map(|row| row.count(0)).collect::<Stored<_>>()?)
    }

    /// Every stored generation of a chain.
    pub(crate) async fn stored(&self, chain_id: u64) -> Result<Vec<StoredLine>> {
        Ok(stored_lines(&self.sql.reading(), chain_id, None).await?)
    }

    /// The generation that serves the readers of a processor's tables.
    pub async fn serving(&self, chain_id: u64, processor: &str) -> Result<Option<u32>> {
        let stored = self.stored(chain_id).await?;
        let serves =
            |line: &&StoredLine| line.processor == processor && line.state == LineState::Serving;
        Ok(stored.iter().find(serves).map(|line| line.generation))
    }

    /// How many blocks the generation has that is built beside the one that serves, if there is one.
    pub async fn building(&self, chain_id: u64, processor: &str) -> Result<Option<u64>> {
        let stored = self.stored(chain_id).await?;
        let is_built =
            |line: &&StoredLine| line.processor == processor && line.state == LineState::Building;
        match stored.iter().find(is_built) {
            Some(line) => Ok(Some(self.covered_by(chain_id, line).await?.total())),
            None => Ok(None),
        }
    }

    /// What a stored generation covers.
    pub(crate) async fn covered_by(&self, chain_id: u64, line: &StoredLine) -> Result<IntervalSet> {
        let scope = line::scope(chain_id, &line.processor, line.generation);
        Ok(Coverage::read(&self.sql, &scope).await?.done)
    }

    pub(super) async fn drop_line(&self, tx: &Tx, chain_id: u64, line: &StoredLine) -> Stored<()> {
        for table in line.table_names() {
            tx.execute(&format!("DROP VIEW IF EXISTS {table}"), params![]).await?;
            for statement in schema::drop(&line::physical(chain_id, line.generation, &table)) {
                tx.execute(&statement, params![]).await?;
            }
        }
        let params = params![chain_param(chain_id)?, line.processor.as_str(), line.generation];
        let text = "DELETE FROM derive_line
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params.clone()).await?;
        let text = "DELETE FROM coverage WHERE chain_id = $1 AND consumer = $2 AND version = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    async fn clear_tip(&self, tx: &Tx, chain_id: u64, line: &StoredLine) -> Stored<()> {
        for table in line.table_names() {
            let tip = line::tip_of(&line::physical(chain_id, line.generation, &table));
            tx.execute(&format!("DELETE FROM {tip}"), params![]).await?;
        }
        let params = params![
            chain_param(chain_id)?,
            line.processor.as_str(),
            line.generation,
            record::encode(&TipBlocks::default()),
        ];
        let text = "UPDATE derive_line SET tip = $4
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    /// Makes the views by which people see the tables of a processor: all chains, addresses as bytes, tip included.
    async fn make_views(&self, tx: &Tx, processor: &dyn Processor) -> Stored<()> {
        let text = "SELECT chain_id, generation, tables FROM derive_line
            WHERE processor = $1 AND state = 1 ORDER BY chain_id";
        let found = tx.execute(text, params![processor.name()]).await?;
        let declared = declared(processor);
        let mut serving = Vec::new();
        for row in &found.rows {
            if row.text(2)? == declared {
                serving.push((row.count(0)?, u32::try_from(row.count(1)?).unwrap_or(u32::MAX)));
            }
        }
        for table in processor.tables() {
            tx.execute(&format!("DROP VIEW IF EXISTS {}", table.name), params![]).await?;
            if !serving.is_empty() {
                let view = read::view(table, &serving, self.sql.engine_name());
                tx.execute(&view, params![]).await?;
            }
        }
        Ok(())
    }
}

impl StoredLine {
    fn is_made_by(&self, processor: &dyn Processor) -> bool {
        self.version == i64::from(processor.version())
            && self.parameters == processor.parameters()
            && self.tables == declared(processor)
    }

    /// The names of its tables.
    pub(crate) fn table_names(&self) -> Vec<String> {
        let lines = self.tables.lines();
        lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    }
}

/// Two processes that start together would both make the first generation.
pub(super) async fn lock(tx: &Tx) -> Stored<()> {
    tx.execute("SELECT id FROM derive_lock FOR UPDATE", params![]).await?;
    Ok(())
}

/// The declarations as text, a line for each table, which begins with its name.
fn declared(processor: &dyn Processor) -> String {
    let table = |table: &&'static crate::derive::Table| {
        let column = |column: &crate::derive::Column| {
            format!(" {}:{:?}:{:?}", column.name, column.kind, column.fold)
        };
        let columns: String = table.columns.iter().map(column).collect();
        format!("{}{columns}\n", table.name)
    };
    processor.tables().iter().map(table).collect()
}

pub(super) async fn stored_lines(
    on: &impl Execute,
    chain_id: u64,
    processor: Option<&str>,
) -> Stored<Vec<StoredLine>> {
    let mut params: Vec<Value> = params![chain_param(chain_id)?];
    let mut text =
        "SELECT processor, generation, state, version, parameters, tables, replacements, behind
        FROM derive_line WHERE chain_id = $1"
            .to_owned();
    if let Some(processor) = processor {
        params.push(processor.into());
        text.push_str(" AND processor = $2 ORDER BY generation FOR UPDATE");
    } else {
        text.push_str(" ORDER BY processor, generation");
    }
    let found = on.execute(&text, params).await?;
    let line = |row: &logmill_io::sql::Row| {
        let unknown = || logmill_io::Error::Corrupt { what: "the state of a line".to_owned() };
        Ok(StoredLine {
            processor: row.text(0)?.to_owned(),
            generation: u32::try_from(row.count(1)?).unwrap_or(u32::MAX),
            state: LineState::of_stored(row.int(2)?).ok_or_else(unknown)?,
            version: row.int(3)?,
            parameters: row.text(4)?.to_owned(),
            tables: row.text(5)?.to_owned(),
            replacements: row.count(6)?,
            behind: row.opt_text(7)?.map(str::to_owned),
        })
    };
    found.rows.iter().map(line).collect()
}

/// A chain's id as a parameter.
pub(crate) fn chain_param(chain_id: u64) -> Stored<i64> {
    let what = || logmill_io::Error::Invalid { what: format!("chain id {chain_id} is too large") };
    i64::try_from(chain_id).map_err(|_| what())
}
