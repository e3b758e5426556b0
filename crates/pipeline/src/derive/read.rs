//! Reading derived tables: final rows and tip rows combined.
//!
//! Guarantees: a statement sees one state, so its rows are of one branch, and no block counts twice. Leaves to others:
//! what to query, and the text of a query (`select`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use finalized_log_index::ReplacementPosition;
use logmill_io::Value;
use logmill_io::sql::StatementResult;
use logmill_work::IntervalSet;

use super::generation::{GenerationState, TipBlocks, stale};
use super::schema::{physical, tip_of};
use super::select::{Select, select};
use super::store::Tables;
use super::table::Table;
use crate::error::{Error, Result};

/// Attempts of a query whose generations are replaced while it runs.
const ATTEMPTS_MAX: usize = 3;

/// Which generation of every processor serves.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServingGenerations {
    /// By table name.
    generations: BTreeMap<String, u32>,
}

/// Reads the derived tables of one chain. Clones share the cached `ServingGenerations`.
#[derive(Clone, Debug)]
pub struct Reader {
    tables: Tables,
    chain_id: u64,
    serving: Arc<RwLock<Arc<ServingGenerations>>>,
}

impl Reader {
    pub fn new(tables: Tables, chain_id: u64) -> Self {
        Self { tables, chain_id, serving: Arc::default() }
    }

    pub fn chain_id(&self) -> u64 {
        self.chain_id
    }

    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Runs a query over tables: `text` gets a function that returns the parenthesised source of a table.
    pub async fn query<F>(&self, text: F, params: Vec<Value>) -> Result<StatementResult>
    where
        F: Fn(&dyn Fn(&'static Table, &Select<'_>) -> String) -> String + Send + Sync,
    {
        let engine = self.tables.sql().engine_name();
        let of_names = |name: &dyn Fn(&'static Table) -> String| {
            text(&|table, what| select(table, &name(table), engine, what))
        };
        self.query_final(of_names, params).await
    }

    /// Runs a query over final rows alone: `text` gets a function that returns a table's name in the database.
    ///
    /// If a generation is replaced and its tables dropped meanwhile, the query is repeated.
    pub(crate) async fn query_final<F>(
        &self,
        text: F,
        params: Vec<Value>,
    ) -> Result<StatementResult>
    where
        F: Fn(&dyn Fn(&'static Table) -> String) -> String + Send + Sync,
    {
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            let serving = self.serving(last.is_some()).await?;
            let statement = match self.statement(&serving, &text) {
                Ok(statement) => statement,
                Err(unknown) => {
                    last = Some(unknown);
                    continue;
                }
            };
            match self.tables.sql().query(&statement, params.clone()).await {
                Err(error) if error.is_missing_table() => last = Some(error.into()),
                answer => return Ok(answer?),
            }
        }
        Err(last.unwrap_or_else(|| Error::corrupt("no generation of the table could be read")))
    }

    /// Runs a query over the tables of one generation, whether it still serves or not: `text` gets a function that
    /// returns the names of a table's final rows and of its tip rows.
    pub async fn query_generation<F>(
        &self,
        generation: u32,
        text: F,
        params: Vec<Value>,
    ) -> Result<StatementResult>
    where
        F: Fn(&dyn Fn(&'static Table) -> (String, String)) -> String + Send + Sync,
    {
        let statement = text(&|table| {
            let of_final = physical(self.chain_id, generation, table.name);
            let of_tip = tip_of(&of_final);
            (of_final, of_tip)
        });
        Ok(self.tables.sql().query(&statement, params).await?)
    }

    /// The statement for the serving generations; an error if one of its tables has none.
    fn statement<F>(&self, serving: &ServingGenerations, text: &F) -> Result<String>
    where
        F: Fn(&dyn Fn(&'static Table) -> String) -> String,
    {
        let unknown = Cell::new(None);
        let name = |table: &'static Table| match serving.generations.get(table.name) {
            Some(generation) => physical(self.chain_id, *generation, table.name),
            None => {
                unknown.set(Some(table.name));
                String::new()
            }
        };
        let statement = text(&name);
        match unknown.get() {
            Some(table) => Err(Error::NotDerived { table, chain_id: self.chain_id }),
            None => Ok(statement),
        }
    }

    async fn serving(&self, again: bool) -> Result<Arc<ServingGenerations>> {
        let known = Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner));
        if !again && !known.generations.is_empty() {
            return Ok(known);
        }
        let stored = self.tables.stored_generations(self.chain_id).await?;
        let serving =
            stored.iter().filter(|generation| generation.state == GenerationState::Serving);
        let generations = serving.flat_map(|generation| {
            generation.table_names().into_iter().map(|name| (name, generation.number))
        });
        let serving = Arc::new(ServingGenerations { generations: generations.collect() });
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&serving);
        Ok(serving)
    }

    /// Whether a generation with this table serves.
    pub async fn serves(&self, table: &Table) -> Result<bool> {
        let has = |serving: &ServingGenerations| serving.generations.contains_key(table.name);
        Ok(has(&*self.serving(false).await?) || has(&*self.serving(true).await?))
    }

    /// Final blocks and tip blocks that the serving generation of a processor covers.
    pub async fn covered(&self, processor: &str) -> Result<ProcessorCoverage> {
        let serving = self.progress(&[processor]).await?;
        let covered = |progress: GenerationProgress| {
            let tip = progress.tip.0.iter().map(|(number, _)| *number).collect();
            ProcessorCoverage { done: progress.done, tip }
        };
        Ok(serving.into_iter().next().map(covered).unwrap_or_default())
    }

    /// Progress of the serving generations of these processors (of all, if none is named), at one moment.
    pub async fn progress(&self, processors: &[&str]) -> Result<Vec<GenerationProgress>> {
        let mut params: Vec<Value> = vec![super::store::chain_param(self.chain_id)?.into()];
        params.extend(processors.iter().map(|name| Value::from(*name)));
        let places: Vec<String> = (2..=params.len()).map(|number| format!("${number}")).collect();
        let named = match processors {
            [] => String::new(),
            _ => format!("AND l.processor IN ({})", places.join(", ")),
        };
        let text = format!(
            "SELECT l.processor, l.generation, l.tip, c.done, l.replacements, l.behind,
                l.replacement_mark, l.seen_replacement, l.seen_mark, b.empties
             FROM derive_line AS l
             LEFT JOIN coverage AS c ON c.chain_id = l.chain_id AND c.consumer = l.processor
                AND c.version = l.generation
             LEFT JOIN derive_line AS b ON b.chain_id = l.chain_id AND b.processor = l.processor
                AND b.state = 0
             WHERE l.chain_id = $1 AND l.state = 1 {named} ORDER BY l.processor"
        );
        let found = self.tables.sql().query(&text, params).await?;
        let progress = |row: &logmill_io::sql::Row| {
            let done = match row.is_null(3) {
                true => IntervalSet::new(),
                false => IntervalSet::decode(&row.blob(3)?)?,
            };
            Ok(GenerationProgress {
                processor: row.text(0)?.to_owned(),
                generation: u32::try_from(row.count(1)?).unwrap_or(u32::MAX),
                tip: crate::record::decode(&row.blob(2)?, "the tip of derived tables")?,
                done,
                replacements_applied: super::store::position(row, 4, 6)?,
                replacements_seen: super::store::seen(row, (4, 6), (7, 8))?,
                behind: row.opt_text(5)?.map(str::to_owned),
                kept: row.opt_text(9)?.map(str::to_owned),
            })
        };
        found.rows.iter().map(progress).collect()
    }
}

/// Progress of a processor's serving generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationProgress {
    pub processor: String,
    pub generation: u32,
    /// Blocks that are not final.
    pub tip: TipBlocks,
    /// Final blocks.
    pub done: IntervalSet,
    /// Position up to which it has applied replacements of stored blocks. While it differs from
    /// [`finalized_log_index::LogIndex::replacement_position`], its tables may contain rows of blocks that no longer
    /// exist.
    pub replacements_applied: ReplacementPosition,
    /// End of the replacement log when it was last recorded. If the index no longer has this position, the tables
    /// contain blocks of another log.
    pub replacements_seen: ReplacementPosition,
    /// Why it has not applied a later replacement, once the deriver has noticed.
    pub behind: Option<String>,
    /// Why it still serves although the settings have changed: with the new ones a table would lose all rows. It takes
    /// no new blocks.
    pub kept: Option<String>,
}

impl GenerationProgress {
    /// Why its tables may contain rows of blocks that no longer exist, if the replacement log ends at `end`
    /// ([`finalized_log_index::LogIndex::replacement_position`]); none if they cannot.
    pub fn stale(&self, end: ReplacementPosition) -> Option<String> {
        stale(self.replacements_applied, self.replacements_seen, end, self.behind.as_deref())
    }

    /// Why its tables do not correspond to the settings and the stored blocks; none if they do.
    pub fn incomplete(&self, end: ReplacementPosition) -> Option<String> {
        self.stale(end).or_else(|| self.kept.clone())
    }

    /// All blocks in its tables.
    pub fn all(&self) -> IntervalSet {
        let mut all = self.done.clone();
        for (number, _) in &self.tip.0 {
            all.insert(&(*number..number.saturating_add(1)));
        }
        all
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorCoverage {
    pub done: IntervalSet,
    /// Blocks that are not final, lowest first.
    pub tip: Vec<u64>,
}

impl ProcessorCoverage {
    /// Final and tip blocks together.
    pub fn all(&self) -> IntervalSet {
        let mut all = self.done.clone();
        for number in &self.tip {
            all.insert(&(*number..number + 1));
        }
        all
    }
}
