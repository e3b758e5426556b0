//! Reading derived tables: final rows and those of the tip as one.
//!
//! A key that has no row in the tip is read from the final table alone, in the order of its indexes; only keys that the
//! tip names are folded, and they are few. So a page costs what it shows, however large the table is.
//!
//! Guarantees: one statement sees one state: what it gives is of one branch, and no block is in it twice. Leaves to
//! others: what to ask.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use logmill_io::Value;
use logmill_io::sql::Answer;
use logmill_work::IntervalSet;

use super::line::{LineState, TipBlocks, physical, tip_of};
use super::schema::{key_names, names, stored_columns};
use super::store::Tables;
use super::table::{FIRST_AT, Fold, Kind, LAST_AT, Table};
use crate::error::{Error, Result};

/// How often a query is asked when generations are replaced under it.
const ATTEMPTS_MAX: usize = 3;

/// What to read of a table. The texts are of a program, never of a user: values go into parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Select<'a> {
    /// A condition on columns of the key alone; empty for none. It makes a read cheap.
    pub key: &'a str,
    /// A condition on any columns; empty for none.
    pub filter: &'a str,
    /// The order, as after `ORDER BY`; empty for none.
    pub order: &'a str,
    /// The most rows; none for all.
    pub limit: Option<usize>,
}

/// The text of a parenthesised query over a table of a generation, with all its columns.
pub(crate) fn select(table: &Table, physical: &str, engine: &str, what: &Select<'_>) -> String {
    let tip = tip_of(physical);
    let all = |text: &str| if text.is_empty() { "1 = 1".to_owned() } else { format!("({text})") };
    let (key, filter) = (all(what.key), all(what.filter));
    let order = match what.order {
        "" => String::new(),
        order => format!(" ORDER BY {order}"),
    };
    let limit = what.limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
    let columns = names(table, "");
    let cut =
        |inner: String, name: &str| format!("SELECT * FROM ({inner}{order}{limit}) AS {name}");
    let (final_rows, tip_rows) = if table.is_once() {
        (
            format!("SELECT {columns} FROM {physical} WHERE {key} AND {filter}"),
            format!("SELECT {columns} FROM {tip} WHERE {key} AND {filter}"),
        )
    } else {
        let same: Vec<String> =
            key_names(table).iter().map(|name| format!("t.{name} = f.{name}")).collect();
        let same = same.join(" AND ");
        let folded = folded(table, physical, engine, &key);
        (
            format!(
                "SELECT {columns} FROM {physical} AS f WHERE {key} AND {filter} \
                 AND NOT EXISTS (SELECT 1 FROM {tip} AS t WHERE {same})"
            ),
            format!("SELECT {columns} FROM ({folded}) AS g WHERE {filter}"),
        )
    };
    let (final_rows, tip_rows) = (cut(final_rows, "of_final"), cut(tip_rows, "of_tip"));
    format!("(SELECT {columns} FROM ({final_rows} UNION ALL {tip_rows}) AS joined{order}{limit})")
}

/// The keys of the tip, folded with their final rows.
fn folded(table: &Table, physical: &str, engine: &str, key: &str) -> String {
    let tip = tip_of(physical);
    let keys = key_names(table).join(", ");
    let columns = names(table, "");
    let of_final = names(table, "f.");
    let same: Vec<String> =
        key_names(table).iter().map(|name| format!("f.{name} = k.{name}")).collect();
    let same = same.join(" AND ");
    let rows = format!(
        "SELECT {columns} FROM {tip} WHERE {key} UNION ALL \
         SELECT {of_final} FROM (SELECT DISTINCT {keys} FROM {tip} WHERE {key}) AS k \
         CROSS JOIN {physical} AS f WHERE {same}"
    );
    let by_position = table.columns.iter().filter_map(|column| {
        let (at, direction) = match column.fold {
            Fold::First => (FIRST_AT, "ASC"),
            Fold::Last => (LAST_AT, "DESC"),
            _ => return None,
        };
        let name = column.name;
        let over = format!("(PARTITION BY {keys} ORDER BY {at} {direction})");
        Some(format!(", first_value({name}) OVER {over} AS {name}_chosen"))
    });
    let chosen: String = by_position.collect();
    let values = stored_columns(table).into_iter().map(|(name, _)| fold_text(table, name, engine));
    let values: Vec<String> = values.collect();
    let values = values.join(", ");
    format!(
        "SELECT {values} FROM (SELECT {columns}{chosen} FROM ({rows}) AS r) AS c GROUP BY {keys}"
    )
}

fn fold_text(table: &Table, name: &str, engine: &str) -> String {
    let column = table.columns.iter().find(|column| column.name == name);
    let any = |name: &str| match engine {
        "postgresql" => format!("(array_agg({name}))[1]"),
        _ => format!("min({name})"),
    };
    match column.map(|column| (column.fold, column.kind)) {
        Some((Fold::Key | Fold::Once, _)) => name.to_owned(),
        Some((Fold::Sum, Kind::Amount)) => format!("amount_sum({name}) AS {name}"),
        Some((Fold::Sum, _)) => format!("CAST(sum({name}) AS BIGINT) AS {name}"),
        Some((Fold::Min, _)) => format!("min({name}) AS {name}"),
        Some((Fold::Max, _)) => format!("max({name}) AS {name}"),
        Some((Fold::First | Fold::Last, _)) => {
            format!("{} AS {name}", any(&format!("{name}_chosen")))
        }
        None if name == FIRST_AT => format!("min({name}) AS {name}"),
        None => format!("max({name}) AS {name}"),
    }
}

/// The statement that makes the view of a table by which people see it: all chains that are served, addresses as bytes.
pub(crate) fn view(table: &Table, serving: &[(u64, u32)], engine: &str) -> String {
    let column = |column: &super::table::Column| {
        let name = column.name;
        match column.kind {
            Kind::Address => format!("(SELECT address FROM address WHERE id = s.{name}) AS {name}"),
            _ => format!("s.{name} AS {name}"),
        }
    };
    let columns: Vec<String> = table.columns.iter().map(column).collect();
    let columns = columns.join(", ");
    let part = |(chain_id, generation): &(u64, u32)| {
        let source = select(
            table,
            &physical(*chain_id, *generation, table.name),
            engine,
            &Select::default(),
        );
        format!("SELECT CAST({chain_id} AS BIGINT) AS chain_id, {columns} FROM {source} AS s")
    };
    let parts: Vec<String> = serving.iter().map(part).collect();
    format!("CREATE VIEW {} AS {}", table.name, parts.join(" UNION ALL "))
}

/// Which generation of every processor serves, and what it covers.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// The generation that serves each table's readers.
    generations: BTreeMap<String, u32>,
}

/// Reads the derived tables of one chain. Clones share what they know.
#[derive(Clone, Debug)]
pub struct Reader {
    tables: Tables,
    chain_id: u64,
    serving: Arc<RwLock<Arc<Serving>>>,
}

impl Reader {
    /// Reads what is derived of a chain.
    pub fn new(tables: Tables, chain_id: u64) -> Self {
        Self { tables, chain_id, serving: Arc::default() }
    }

    /// Which chain.
    pub fn chain_id(&self) -> u64 {
        self.chain_id
    }

    /// The tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Runs a query over tables: `text` gets a function that gives the parenthesised source of a table.
    pub async fn query<F>(&self, text: F, params: Vec<Value>) -> Result<Answer>
    where
        F: Fn(&dyn Fn(&'static Table, &Select<'_>) -> String) -> String + Send + Sync,
    {
        let engine = self.tables.sql().engine_name();
        let of_names = |name: &dyn Fn(&'static Table) -> String| {
            text(&|table, what| select(table, &name(table), engine, what))
        };
        self.query_final(of_names, params).await
    }

    /// Runs a query over final rows alone: `text` gets a function that gives a table's name in the database.
    ///
    /// A generation that was replaced meanwhile is gone with its tables: then it is asked again.
    pub(crate) async fn query_final<F>(&self, text: F, params: Vec<Value>) -> Result<Answer>
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
        Err(last.unwrap_or_else(|| Error::corrupt("no table to read")))
    }

    /// Runs a query over the tables of one generation, whether it still serves or not: `text` gets a function that
    /// gives the names of a table's final rows and of its tip's.
    pub async fn query_generation<F>(
        &self,
        generation: u32,
        text: F,
        params: Vec<Value>,
    ) -> Result<Answer>
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

    /// The text of a query over the generations that serve; an error if one of its tables has none.
    fn statement<F>(&self, serving: &Serving, text: &F) -> Result<String>
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

    async fn serving(&self, anew: bool) -> Result<Arc<Serving>> {
        let known = Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner));
        if !anew && !known.generations.is_empty() {
            return Ok(known);
        }
        let stored = self.tables.stored(self.chain_id).await?;
        let serving = stored.iter().filter(|line| line.state == LineState::Serving);
        let generations = serving
            .flat_map(|line| line.table_names().into_iter().map(|name| (name, line.generation)));
        let serving = Arc::new(Serving { generations: generations.collect() });
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&serving);
        Ok(serving)
    }

    /// Whether a table is derived here.
    pub async fn serves(&self, table: &Table) -> Result<bool> {
        let has = |serving: &Serving| serving.generations.contains_key(table.name);
        Ok(has(&*self.serving(false).await?) || has(&*self.serving(true).await?))
    }

    /// What the serving generation of a processor covers: final blocks, and the blocks of its tip.
    pub async fn covered(&self, processor: &str) -> Result<Covered> {
        let standings = self.standings(&[processor]).await?;
        let covered = |standing: Standing| {
            let tip = standing.tip.0.iter().map(|(number, _)| *number).collect();
            Covered { done: standing.done, tip }
        };
        Ok(standings.into_iter().next().map(covered).unwrap_or_default())
    }

    /// How far the serving generations of these processors are, or of all if none is named, at one moment.
    pub async fn standings(&self, processors: &[&str]) -> Result<Vec<Standing>> {
        let mut params: Vec<Value> = vec![super::store::chain_param(self.chain_id)?.into()];
        params.extend(processors.iter().map(|name| Value::from(*name)));
        let places: Vec<String> = (2..=params.len()).map(|number| format!("${number}")).collect();
        let named = match processors {
            [] => String::new(),
            _ => format!("AND l.processor IN ({})", places.join(", ")),
        };
        let text = format!(
            "SELECT l.processor, l.generation, l.tip, c.done, l.replacements, l.behind
             FROM derive_line AS l
             LEFT JOIN coverage AS c ON c.chain_id = l.chain_id AND c.consumer = l.processor
                AND c.version = l.generation
             WHERE l.chain_id = $1 AND l.state = 1 {named} ORDER BY l.processor"
        );
        let found = self.tables.sql().query(&text, params).await?;
        let standing = |row: &logmill_io::sql::Row| {
            let done = match row.is_null(3) {
                true => IntervalSet::new(),
                false => IntervalSet::decode(&row.blob(3)?)?,
            };
            Ok(Standing {
                processor: row.text(0)?.to_owned(),
                generation: u32::try_from(row.count(1)?).unwrap_or(u32::MAX),
                tip: crate::record::decode(&row.blob(2)?, "the tip of derived tables")?,
                done,
                replacements_applied: row.count(4)?,
                behind: row.opt_text(5)?.map(str::to_owned),
            })
        };
        found.rows.iter().map(standing).collect()
    }
}

/// How far the generation of a processor is that serves its readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which processor.
    pub processor: String,
    /// Which generation of its tables.
    pub generation: u32,
    /// The blocks that are not final yet.
    pub tip: TipBlocks,
    /// The final blocks.
    pub done: IntervalSet,
    /// The last replacement of stored blocks that it has applied. While it is lower than
    /// [`finalized_log_index::LogIndex::last_replacement`], rows of blocks that no longer exist may be in its tables.
    pub replacements_applied: u64,
    /// Why it has not applied a later one, once the deriver has noticed.
    pub behind: Option<String>,
}

/// Why tables that have applied the replacements up to `applied` may hold rows of blocks that no longer exist, where
/// `last` is the last replacement; none if they hold none. `noted` is what the deriver said about it.
pub(crate) fn stale(applied: u64, last: u64, noted: Option<&str>) -> Option<String> {
    let unnoted =
        || format!("stored blocks were replaced (replacement {last}), and the tables follow");
    (applied < last).then(|| noted.map_or_else(unnoted, str::to_owned))
}

impl Standing {
    /// Why rows of blocks that no longer exist may be in its tables, where `last` is the number of the last replacement
    /// of stored blocks ([`finalized_log_index::LogIndex::last_replacement`]); none if none are.
    pub fn stale(&self, last: u64) -> Option<String> {
        stale(self.replacements_applied, last, self.behind.as_deref())
    }

    /// All blocks that are in its tables.
    pub fn all(&self) -> IntervalSet {
        let mut all = self.done.clone();
        for (number, _) in &self.tip.0 {
            all.insert(&(*number..number.saturating_add(1)));
        }
        all
    }
}

/// What a generation covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Final blocks.
    pub done: IntervalSet,
    /// Blocks that are not final yet, lowest first.
    pub tip: Vec<u64>,
}

impl Covered {
    /// All of it.
    pub fn all(&self) -> IntervalSet {
        let mut all = self.done.clone();
        for number in &self.tip {
            all.insert(&(*number..number + 1));
        }
        all
    }
}
