//! Creating and dropping the generations of every processor.
//!
//! Guarantees: a processor has one serving generation and at most one that is being built beside it; the version,
//! settings and declarations of a generation never change, so rows of two kinds cannot mix. Leaves to others: which one
//! serves (`swap`), and when a generation is complete.

use std::sync::Arc;

use finalized_log_index::ReplacementPosition;
use logmill_io::sql::Execute;
use logmill_io::{ErrorKind, Tx, Value, params};
use logmill_work::{Coverage, IntervalSet};

use super::Tables;
use crate::derive::generation::{self, Generation, GenerationState, TipBlocks};
use crate::derive::processor::Processor;
use crate::derive::{schema, views};
use crate::error::{Error, Result};
use crate::record;

/// Attempts to create an index that another process is creating too.
const INDEX_ATTEMPTS_MAX: u32 = 3;

/// A stored generation.
#[derive(Clone, Debug)]
pub(crate) struct StoredGeneration {
    pub(crate) processor: String,
    pub(crate) number: u32,
    pub(crate) state: GenerationState,
    /// Position up to which it has applied replacements of stored blocks.
    pub(crate) replacements: ReplacementPosition,
    /// End of the replacement log when it was last recorded here.
    pub(crate) seen: ReplacementPosition,
    /// Why it has not applied a later replacement, if known; for a complete generation that is building, why it does
    /// not serve.
    pub(crate) behind: Option<String>,
    /// Whether it may serve without blocks that the serving generation has and that are no longer stored.
    pub(super) drops_unstored: bool,
    /// Whether it may serve although changed settings leave a table empty that has rows now.
    pub(super) allows_empty: bool,
    /// Why it does not serve although it is complete: changed settings leave a table empty that has rows now.
    pub(super) empties: Option<String>,
    /// Tables that had rows in the tip when it was cleared, separated by commas.
    pub(super) cleared: Option<String>,
    version: i64,
    pub(crate) parameters: String,
    tables: String,
}

impl Tables {
    /// The generations that these processors can fill: those with the same version, settings and declarations. Creates
    /// missing ones: the first generation, or one beside that of an older version.
    pub async fn generations(
        &self,
        chain_id: u64,
        processors: &[Arc<dyn Processor>],
    ) -> Result<Vec<Generation>> {
        let mut generations = Vec::new();
        for processor in processors {
            for table in processor.tables() {
                table.check().map_err(|what| Error::Invalid { what })?;
            }
            let ensured = self.sql.write(|tx| async move {
                lock(&tx).await?;
                self.ensure(&tx, chain_id, &**processor).await?;
                stored_generations(&tx, chain_id, Some(processor.name())).await
            });
            let usable =
                ensured.await?.into_iter().filter(|generation| generation.is_made_by(&**processor));
            generations.extend(usable.map(|generation| Generation {
                chain_id,
                processor: Arc::clone(processor),
                number: generation.number,
                state: generation.state,
                replacements: generation.replacements,
                seen: generation.seen,
                behind: generation.behind,
            }));
        }
        Ok(generations)
    }

    pub(super) async fn ensure(
        &self,
        tx: &Tx,
        chain_id: u64,
        processor: &dyn Processor,
    ) -> Result<()> {
        let stored = stored_generations(tx, chain_id, Some(processor.name())).await?;
        if stored.iter().any(|generation| generation.is_made_by(processor)) {
            // The settings that would have left a table empty were reverted.
            let refused = |generation: &&StoredGeneration| {
                generation.empties.is_some() && !generation.is_made_by(processor)
            };
            for generation in stored.iter().filter(refused) {
                self.drop_generation(tx, chain_id, generation).await?;
            }
            // Earlier versions created other views.
            if self.sql.engine_name() == "sqlite" {
                self.make_views(tx, processor).await?;
            }
            return Ok(());
        }
        // A generation that another version began to build is useless now.
        for generation in
            stored.iter().filter(|generation| generation.state == GenerationState::Building)
        {
            self.drop_generation(tx, chain_id, generation).await?;
        }
        let number = stored.iter().map(|generation| generation.number).max().unwrap_or(0) + 1;
        let serving = stored.iter().find(|generation| generation.state == GenerationState::Serving);
        let state = match serving {
            None => GenerationState::Serving,
            Some(old) => {
                // No processor of that version is left to remove a dead branch from its tip.
                self.clear_tip(tx, chain_id, old).await?;
                GenerationState::Building
            }
        };
        let nothing = ReplacementPosition::default();
        self.create(tx, chain_id, processor, number, state, nothing).await
    }

    /// Creates a generation without blocks. Its `replacements` may be behind the log: as long as it has no blocks, no
    /// replacement touches it.
    pub(super) async fn create(
        &self,
        tx: &Tx,
        chain_id: u64,
        processor: &dyn Processor,
        number: u32,
        state: GenerationState,
        replacements: ReplacementPosition,
    ) -> Result<()> {
        for table in processor.tables() {
            let physical = schema::physical(chain_id, number, table.name);
            for statement in schema::create(table, &physical) {
                tx.execute(&statement, params![]).await?;
            }
        }
        let params = params![
            chain_param(chain_id)?,
            processor.name(),
            number,
            processor.version(),
            processor.parameters(),
            declaration_text(processor),
            state.stored(),
            record::encode(&TipBlocks::default()),
            i64::try_from(replacements.seq).unwrap_or(i64::MAX),
            mark_param(replacements),
        ];
        let text = "INSERT INTO derive_line
                (chain_id, processor, generation, version, parameters, tables, state, indexed, tip, replacements,
                 replacement_mark, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8, $9, $10, now_ms(), now_ms())";
        tx.execute(text, params).await?;
        if state == GenerationState::Serving {
            self.make_views(tx, processor).await?;
        }
        Ok(())
    }

    /// Creates the secondary indexes of a generation, once. Other processes may do the same concurrently.
    pub async fn make_indexes(&self, generation: &Generation) -> Result<()> {
        if !self.needs_indexes(generation).await? {
            return Ok(());
        }
        let tables = generation.processor.tables().iter();
        for statement in tables.flat_map(|table| schema::indexes(table, &generation.table(table))) {
            self.make_index(generation, &statement).await?;
        }
        let text = "UPDATE derive_line SET indexed = 1
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        self.sql.execute(text, super::generation_params(generation)?).await?;
        Ok(())
    }

    async fn make_index(&self, generation: &Generation, statement: &str) -> Result<()> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            // Not in a transaction, whose duration is bounded: an index of a large table may take long.
            let Err(error) = self.sql.execute(statement, params![]).await else {
                return Ok(());
            };
            // PostgreSQL checks for the index, builds it, and only then notices that another process was faster: a
            // retry finds that index. A missing table means that the generation was replaced.
            let may_be_there = error.kind() == ErrorKind::Conflict || error.is_missing_table();
            if attempt >= INDEX_ATTEMPTS_MAX || !may_be_there {
                return Err(error.into());
            }
            if !self.needs_indexes(generation).await? {
                return Ok(());
            }
        }
    }

    /// Whether a generation exists without its indexes.
    async fn needs_indexes(&self, generation: &Generation) -> Result<bool> {
        let text = format!("SELECT indexed {}", super::GENERATION_ROW);
        let found = self.sql.query(&text, super::generation_params(generation)?).await?;
        found.rows.first().map_or(Ok(false), |row| Ok(row.int(0)? == 0))
    }

    /// The chains for which a processor has tables, lowest first.
    pub async fn chains(&self, processor: &str) -> Result<Vec<u64>> {
        let text =
            "SELECT DISTINCT chain_id FROM derive_line WHERE processor = $1 ORDER BY chain_id";
        let found = self.sql.query(text, params![processor]).await?;
        Ok(found.rows.iter().map(|row| row.count(0)).collect::<logmill_io::Result<_>>()?)
    }

    /// Every serving generation: chain, processor, and the declarations of its tables, one per line.
    pub(crate) async fn declarations(&self) -> Result<Vec<(u64, String, String)>> {
        let text = "SELECT chain_id, processor, tables FROM derive_line WHERE state = 1
            ORDER BY chain_id, processor";
        let found = self.sql.query(text, params![]).await?;
        let read = |row: &logmill_io::sql::Row| {
            Ok((row.count(0)?, row.text(1)?.to_owned(), row.text(2)?.to_owned()))
        };
        Ok(found.rows.iter().map(read).collect::<logmill_io::Result<_>>()?)
    }

    pub(crate) async fn stored_generations(&self, chain_id: u64) -> Result<Vec<StoredGeneration>> {
        stored_generations(&self.sql.reading(), chain_id, None).await
    }

    /// The serving generation of a processor.
    pub async fn serving(&self, chain_id: u64, processor: &str) -> Result<Option<u32>> {
        let stored = self.stored_generations(chain_id).await?;
        let serves = |generation: &&StoredGeneration| {
            generation.processor == processor && generation.state == GenerationState::Serving
        };
        Ok(stored.iter().find(serves).map(|generation| generation.number))
    }

    /// The number of blocks in the generation that is being built, if there is one.
    pub async fn building(&self, chain_id: u64, processor: &str) -> Result<Option<u64>> {
        let stored = self.stored_generations(chain_id).await?;
        let is_built = |generation: &&StoredGeneration| {
            generation.processor == processor && generation.state == GenerationState::Building
        };
        match stored.iter().find(is_built) {
            Some(generation) => Ok(Some(self.covered_by(chain_id, generation).await?.total())),
            None => Ok(None),
        }
    }

    /// Why the generation that is being built does not serve although it has all stored blocks; none if it will.
    pub async fn cannot_serve(&self, chain_id: u64, processor: &str) -> Result<Option<String>> {
        let stored = self.stored_generations(chain_id).await?;
        let is_built = |generation: &StoredGeneration| {
            generation.processor == processor && generation.state == GenerationState::Building
        };
        Ok(stored.into_iter().find(is_built).and_then(|generation| generation.behind))
    }

    pub(crate) async fn covered_by(
        &self,
        chain_id: u64,
        generation: &StoredGeneration,
    ) -> Result<IntervalSet> {
        let scope = generation::scope(chain_id, &generation.processor, generation.number);
        Ok(Coverage::read(&self.sql, &scope).await?.done)
    }

    pub(super) async fn drop_generation(
        &self,
        tx: &Tx,
        chain_id: u64,
        generation: &StoredGeneration,
    ) -> Result<()> {
        for table in generation.table_names() {
            // Views show the serving generation.
            if generation.state == GenerationState::Serving {
                tx.execute(&format!("DROP VIEW IF EXISTS {table}"), params![]).await?;
            }
            for statement in schema::drop(&schema::physical(chain_id, generation.number, &table)) {
                tx.execute(&statement, params![]).await?;
            }
        }
        let params =
            params![chain_param(chain_id)?, generation.processor.as_str(), generation.number];
        let text = "DELETE FROM derive_line
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        let scope = generation::scope(chain_id, &generation.processor, generation.number);
        Ok(Coverage::forget(tx, &scope).await?)
    }

    /// Clears the tip of a generation and records which tables had rows in it. An earlier record stays as long as the
    /// tip has remained empty since.
    async fn clear_tip(&self, tx: &Tx, chain_id: u64, generation: &StoredGeneration) -> Result<()> {
        let mut cleared: Vec<String> = Vec::new();
        for table in generation.table_names() {
            let tip = schema::tip_of(&schema::physical(chain_id, generation.number, &table));
            if has_rows(tx, &tip).await? {
                tx.execute(&format!("DELETE FROM {tip}"), params![]).await?;
                cleared.push(table);
            }
        }
        let cleared = Some(cleared.join(",")).filter(|cleared| !cleared.is_empty());
        let params = params![
            chain_param(chain_id)?,
            generation.processor.as_str(),
            generation.number,
            record::encode(&TipBlocks::default()),
            cleared,
        ];
        let text = "UPDATE derive_line SET tip = $4, cleared = COALESCE($5, cleared)
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    /// Creates or updates the SQL views of a processor's tables.
    pub(super) async fn make_views(&self, tx: &Tx, processor: &dyn Processor) -> Result<()> {
        let text = "SELECT chain_id, generation, tables FROM derive_line
            WHERE processor = $1 AND state = 1 ORDER BY chain_id";
        let found = tx.execute(text, params![processor.name()]).await?;
        let declared = declaration_text(processor);
        let mut serving = Vec::new();
        for row in &found.rows {
            if row.text(2)? == declared {
                serving.push((row.count(0)?, u32::try_from(row.count(1)?).unwrap_or(u32::MAX)));
            }
        }
        for table in processor.tables() {
            let view = views::view(table, &serving, self.sql.engine_name());
            if !serving.is_empty() && self.has_view(tx, table.name, &view).await? {
                continue;
            }
            tx.execute(&format!("DROP VIEW IF EXISTS {}", table.name), params![]).await?;
            if !serving.is_empty() {
                tx.execute(&view, params![]).await?;
            }
        }
        Ok(())
    }

    /// Whether a view exists exactly as this statement creates it. Only SQLite keeps the text.
    async fn has_view(&self, tx: &Tx, name: &str, statement: &str) -> Result<bool> {
        if self.sql.engine_name() != "sqlite" {
            return Ok(false);
        }
        let text = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = $1 AND sql = $2";
        Ok(!tx.execute(text, params![name, statement]).await?.rows.is_empty())
    }
}

impl StoredGeneration {
    pub(super) fn is_made_by(&self, processor: &dyn Processor) -> bool {
        self.version == i64::from(processor.version())
            && self.parameters == processor.parameters()
            && self.tables == declaration_text(processor)
    }

    pub(crate) fn table_names(&self) -> Vec<String> {
        let declarations = self.tables.lines();
        let name = |text: &str| text.split(' ').next().map(str::to_owned);
        declarations.filter_map(name).collect()
    }
}

/// Serializes transactions that change generations: otherwise two starting processes would both create the first one.
pub(super) async fn lock(tx: &Tx) -> Result<()> {
    tx.execute("SELECT id FROM derive_lock FOR UPDATE", params![]).await?;
    Ok(())
}

pub(super) async fn has_rows(tx: &Tx, physical: &str) -> Result<bool> {
    let text = format!("SELECT 1 FROM {physical} LIMIT 1");
    Ok(!tx.execute(&text, params![]).await?.rows.is_empty())
}

/// The declarations as text: one line per table, beginning with its name.
fn declaration_text(processor: &dyn Processor) -> String {
    let table = |table: &&'static crate::derive::Table| {
        let column = |column: &crate::derive::Column| {
            format!(" {}:{:?}:{:?}", column.name, column.kind, column.fold)
        };
        let columns: String = table.columns.iter().map(column).collect();
        format!("{}{columns}\n", table.name)
    };
    processor.tables().iter().map(table).collect()
}

pub(super) async fn stored_generations(
    on: &impl Execute,
    chain_id: u64,
    processor: Option<&str>,
) -> Result<Vec<StoredGeneration>> {
    let mut params: Vec<Value> = params![chain_param(chain_id)?];
    let mut text =
        "SELECT processor, generation, state, version, parameters, tables, replacements, behind,
            replacement_mark, drops_unstored, seen_replacement, seen_mark, allows_empty, empties, cleared
        FROM derive_line WHERE chain_id = $1"
            .to_owned();
    if let Some(processor) = processor {
        params.push(processor.into());
        text.push_str(" AND processor = $2 ORDER BY generation FOR UPDATE");
    } else {
        text.push_str(" ORDER BY processor, generation");
    }
    let found = on.execute(&text, params).await?;
    let generation = |row: &logmill_io::sql::Row| {
        let unknown =
            || logmill_io::Error::Corrupt { what: "the state of a generation".to_owned() };
        Ok(StoredGeneration {
            processor: row.text(0)?.to_owned(),
            number: u32::try_from(row.count(1)?).unwrap_or(u32::MAX),
            state: GenerationState::of_stored(row.int(2)?).ok_or_else(unknown)?,
            version: row.int(3)?,
            parameters: row.text(4)?.to_owned(),
            tables: row.text(5)?.to_owned(),
            replacements: super::position(row, 6, 8)?,
            seen: super::seen(row, (6, 8), (10, 11))?,
            behind: row.opt_text(7)?.map(str::to_owned),
            drops_unstored: row.int(9)? != 0,
            allows_empty: row.int(12)? != 0,
            empties: row.opt_text(13)?.map(str::to_owned),
            cleared: row.opt_text(14)?.map(str::to_owned),
        })
    };
    found.rows.iter().map(generation).collect()
}

/// The mark of a position as a parameter; NULL if unknown.
pub(super) fn mark_param(position: ReplacementPosition) -> Option<i64> {
    (position.mark != 0).then(|| position.mark.cast_signed())
}

pub(crate) fn chain_param(chain_id: u64) -> logmill_io::Result<i64> {
    let what = || logmill_io::Error::Invalid { what: format!("chain id {chain_id} is too large") };
    i64::try_from(chain_id).map_err(|_| what())
}
