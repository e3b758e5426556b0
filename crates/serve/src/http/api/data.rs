//! `Data`: the derived tables of a chain at one moment, as requests read them.
//!
//! Guarantees: [`Data::is_current`] reports whether the tip changed since the first read, so that an answer made of
//! several statements reflects one branch or is computed again; completeness is judged by coverage that was read before
//! the rows. Leaves to others: what to read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use alloy_primitives::{Address, B256};
use finalized_log_index::ReplacementPosition;
use logmill_io::sql::StatementResult;
use logmill_io::{Value, params};
use logmill_pipeline::async_workers::reconcile::{self, Comparison, Verdict};
use logmill_pipeline::derive::{GenerationProgress, Reader, Select, Table};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use logmill_pipeline::processors::meta::SMART_CONTRACTS;
use logmill_work::IntervalSet;
use serde_json::{Value as Json, json};

use super::error::{ApiError, ApiResult};
use super::record::{Field, Form, Object, Record, address_in, bytes, column, computed};

/// Returns the SQL source of a table for a statement.
pub(super) type Source<'a> = &'a dyn Fn(&'static Table, &Select<'_>) -> String;

/// Maximum number of coverage ranges in an answer.
const RANGES_MAX: usize = 16;
/// Decimals of ether and of the native tokens of other EVM chains.
pub(super) const NATIVE_DECIMALS: u8 = 18;

pub(super) static RANGE: Record = Record {
    name: "Range",
    about: "A range of blocks, both ends included.",
    base: None,
    fields: &[
        computed("from", Form::Number, "the first block"),
        computed("to", Form::Number, "the last block"),
    ],
};

pub(super) static AS_OF: Record = Record {
    name: "AsOf",
    about: "The blocks that an answer is based on: all of `covered` and, while `complete` is true, no others.",
    base: None,
    fields: &[
        computed("block", Form::Number, "the newest block; null if there is none").or_null(),
        computed("hash", Form::Bytes, "the hash of `block`; null if that block is final").or_null(),
        computed("final", Form::Number, "the newest final block; null if there is none").or_null(),
        computed(
            "covered",
            Form::List(&Form::Object(&RANGE)),
            "the newest ranges of covered blocks, in ascending order",
        ),
        computed("ranges", Form::Number, "the total number of ranges"),
        computed(
            "complete",
            Form::Flag,
            "false while the tables still hold rows of stored blocks that were replaced",
        ),
        computed("reason", Form::Text, "why `complete` is false").or_null(),
    ],
};

pub(super) const HASH: Field = computed(
    "transactionHash",
    Form::Bytes,
    "the transaction hash; null if `evm_worker` has not derived the block",
)
.or_null();
pub(super) const DECIMALS: Field = computed(
    "decimals",
    Form::Number,
    "decimals of the amounts; null if the token does not report them",
)
.or_null();
pub(super) const SYMBOL: Field =
    computed("symbol", Form::Text, "symbol of the token; null if the token does not report one")
        .or_null();
pub(super) const BLOCK: Field = column("blockNumber", Form::Number, "block_height", "block number");
pub(super) const TX_INDEX: Field =
    column("transactionIndex", Form::Number, "tx_index", "index of the transaction in the block");
pub(super) const LOG_INDEX: Field =
    column("logIndex", Form::Number, "event_index", "index of the log in the block");
pub(super) const TIME: Field =
    column("timestamp", Form::Number, "timestamp", "block timestamp, in seconds since 1970");

#[derive(Debug)]
pub(super) struct Data {
    reader: Reader,
    standings: Vec<GenerationProgress>,
    /// The newest replacement of stored blocks, read before the standings.
    last_replacement: ReplacementPosition,
    /// Why the tables may miss rows although their blocks are covered.
    pub(super) assumed: Option<String>,
}

/// Metadata that a token reports about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Metadata {
    pub(super) name: Option<String>,
    pub(super) symbol: Option<String>,
    pub(super) decimals: Option<i64>,
}

impl Data {
    /// Reads the current state of these processors.
    pub(super) async fn read(
        reader: Reader,
        processors: &[ProcessorName],
        last_replacement: ReplacementPosition,
    ) -> ApiResult<Self> {
        let standings = reader.progress(&texts(processors)).await?;
        Ok(Self { reader, standings, last_replacement, assumed: None })
    }

    /// Why tables of these processors do not match the settings and stored blocks yet, or may miss rows; `None` if they
    /// are complete.
    pub(super) fn incomplete(&self, processors: &[ProcessorName]) -> Option<String> {
        let named = texts(processors);
        let is_named =
            |standing: &&GenerationProgress| named.contains(&standing.processor.as_str());
        let mut standings = self.standings.iter().filter(is_named);
        let stale = standings.find_map(|one| one.incomplete(self.last_replacement));
        stale.or_else(|| self.assumed.clone())
    }

    /// Whether the blocks that are not final are the same as at the first read.
    pub(super) async fn is_current(&self, processors: &[ProcessorName]) -> ApiResult<bool> {
        let now = self.reader.progress(&texts(processors)).await?;
        let tip = |standing: &GenerationProgress| (standing.generation, standing.tip.clone());
        Ok(now.iter().map(tip).eq(self.standings.iter().map(tip)))
    }

    pub(super) async fn query(
        &self,
        text: impl Fn(Source<'_>) -> String + Send + Sync,
        params: Vec<Value>,
    ) -> ApiResult<StatementResult> {
        #[cfg(feature = "record-statements")]
        let text = |source: Source<'_>| super::plans::record_statement(text(source), &params);
        Ok(self.reader.query(text, params.clone()).await?)
    }

    /// The number of an address; `None` if no derived table contains it.
    pub(super) async fn id(&self, address: Address) -> ApiResult<Option<i64>> {
        Ok(self.reader.tables().address_id(address).await?)
    }

    /// The blocks that a processor covers; an error if it has never run.
    pub(super) fn covered(&self, processor: ProcessorName) -> ApiResult<IntervalSet> {
        let standing =
            self.standings.iter().find(|standing| standing.processor == processor.as_str());
        Ok(standing.ok_or_else(|| ApiError::not_derived(processor.as_str()))?.all())
    }

    /// The `asOf` of an answer that needs all of these processors.
    pub(super) fn as_of(&self, processors: &[ProcessorName]) -> ApiResult<Json> {
        let mut common: Option<(IntervalSet, IntervalSet)> = None;
        let (mut tip, mut named) = (None, 0);
        for standing in &self.standings {
            if !texts(processors).contains(&standing.processor.as_str()) {
                continue;
            }
            named += 1;
            let (all, done) = (standing.all(), standing.done.clone());
            common = Some(match common {
                None => (all, done),
                Some((a, d)) => (intersection(&a, &all), intersection(&d, &done)),
            });
            tip = standing.tip.last();
        }
        if named < processors.len() {
            let has = |name: &&str| self.standings.iter().all(|one| one.processor != **name);
            let missing = texts(processors).into_iter().find(has).unwrap_or_default();
            return Err(ApiError::not_derived(missing));
        }
        let (all, done) = common.unwrap_or_default();
        let covered: Vec<Range<u64>> = all.ranges().collect();
        let newest = covered.last().map(|range| range.end - 1);
        let hash = tip.filter(|(number, _)| Some(*number) == newest);
        let newest_final = done.ranges().next_back().map(|range| range.end - 1);
        Ok(as_of(newest, hash.map(|(_, hash)| hash), newest_final, &covered))
    }

    /// Whether the blocks covered by a processor include a contract's whole life, given its creation block if known.
    pub(super) fn is_complete(
        &self,
        processor: ProcessorName,
        created: Option<u64>,
    ) -> ApiResult<bool> {
        let covered = self.covered(processor)?;
        let end = covered.ranges().next_back().map_or(0, |range| range.end);
        let is_whole = self.incomplete(&[processor]).is_none();
        Ok(is_whole && end > 0 && covered.covers(&(created.unwrap_or(0).min(end - 1)..end)))
    }

    /// The contracts whose whole life is included in the blocks covered by a processor.
    pub(super) async fn complete(
        &self,
        processor: ProcessorName,
        contracts: BTreeSet<Address>,
    ) -> ApiResult<BTreeSet<Address>> {
        if self.is_complete(processor, None)? {
            return Ok(contracts);
        }
        if self.incomplete(&[processor]).is_some() {
            return Ok(BTreeSet::new());
        }
        let created = self.created(&contracts).await?;
        let mut complete = BTreeSet::new();
        for (contract, created) in created {
            if self.is_complete(processor, Some(created))? {
                complete.insert(contract);
            }
        }
        Ok(complete)
    }

    /// Creation blocks of contracts, where known.
    pub(super) async fn created(
        &self,
        contracts: &BTreeSet<Address>,
    ) -> ApiResult<BTreeMap<Address, u64>> {
        if contracts.is_empty() || !self.reader.serves(&SMART_CONTRACTS).await? {
            return Ok(BTreeMap::new());
        }
        let params = padded(contracts.iter().map(|address| address.as_slice().into()).collect());
        let places = places(1, params.len());
        let key = format!("address any_of(SELECT id FROM address WHERE address IN ({places}))");
        let select = Select { key: &key, ..Select::default() };
        let text = |source: Source<'_>| {
            let rows = source(&SMART_CONTRACTS, &select);
            format!(
                "SELECT (SELECT address FROM address WHERE id = s.address), s.created_height
                 FROM {rows} AS s"
            )
        };
        let answer = self.query(text, params).await?;
        let row = |row: &logmill_io::Row| Ok((read_address(&row.blob(0)?)?, row.count(1)?));
        answer.rows.iter().map(row).collect()
    }

    /// Metadata of tokens and collections, where it was fetched.
    pub(super) async fn metadata(
        &self,
        contracts: &BTreeSet<Address>,
    ) -> ApiResult<BTreeMap<Address, Metadata>> {
        if contracts.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut params = padded(contracts.iter().map(|one| one.as_slice().into()).collect());
        let places = places(2, params.len());
        params.insert(0, self.chain_param()?);
        let text = format!(
            "SELECT contract_address, name, symbol, decimals FROM token_metadata
             WHERE chain_id = $1 AND contract_address IN ({places})"
        );
        let Some(answer) = self.optional(&text, params).await? else {
            return Ok(BTreeMap::new());
        };
        let row = |row: &logmill_io::Row| {
            let metadata = Metadata {
                name: row.opt_text(1)?.map(str::to_owned),
                symbol: row.opt_text(2)?.map(str::to_owned),
                decimals: row.opt_int(3)?,
            };
            Ok((read_address(&row.blob(0)?)?, metadata))
        };
        answer.rows.iter().map(row).collect()
    }

    /// The chain id as a parameter, for tables that hold several chains.
    pub(super) fn chain_param(&self) -> ApiResult<Value> {
        let chain = i64::try_from(self.reader.chain_id());
        chain.map(Value::Int).map_err(|_| ApiError::no_chain())
    }

    /// Reads a table that exists only after some worker has created it.
    pub(super) async fn optional(
        &self,
        text: &str,
        params: Vec<Value>,
    ) -> ApiResult<Option<StatementResult>> {
        match self.reader.tables().sql().query(text, params).await {
            Err(error) if error.is_missing_table() => Ok(None),
            answer => Ok(Some(answer?)),
        }
    }

    /// Comparisons of tables with contracts, after a position; `None` if no comparison was ever made.
    pub(super) async fn comparisons(
        &self,
        verdict: Option<Verdict>,
        behind: Option<&reconcile::ComparisonPosition>,
        limit: usize,
    ) -> ApiResult<Option<Vec<Comparison>>> {
        let (sql, chain) = (self.reader.tables().sql(), self.reader.chain_id());
        Ok(reconcile::list(sql, chain, verdict, behind, limit).await?)
    }

    /// Adds decimals and symbol of the token in `field` of each object.
    pub(super) async fn add_decimals(&self, objects: &mut [Object], field: &str) -> ApiResult<()> {
        let tokens = objects.iter().filter_map(|object| address_in(object, field)).collect();
        let metadata = self.metadata(&tokens).await?;
        for object in objects {
            let token = address_in(object, field);
            add_decimals(object, token, token.and_then(|token| metadata.get(&token)));
        }
        Ok(())
    }

    /// Adds decimals and symbol of one token to all objects.
    pub(super) async fn add_decimals_of(
        &self,
        objects: &mut [Object],
        token: Address,
    ) -> ApiResult<()> {
        let metadata = self.metadata(&BTreeSet::from([token])).await?;
        let known = metadata.get(&token);
        objects.iter_mut().for_each(|object| add_decimals(object, Some(token), known));
        Ok(())
    }

    /// Adds the transaction hash to each object.
    pub(super) async fn add_hashes(&self, objects: &mut [Object]) -> ApiResult<()> {
        let mut hashes = BTreeMap::new();
        if let Some((params, values)) = self.places_of(objects).await? {
            let key = format!("(block_height, tx_index) IN (VALUES {values})");
            let select = Select { key: &key, ..Select::default() };
            let text = |source: Source<'_>| {
                let rows = source(&EVM_TRANSACTIONS, &select);
                format!("SELECT s.block_height, s.tx_index, s.hash FROM {rows} AS s")
            };
            for row in self.query(text, params).await?.rows {
                hashes.insert((row.int(0)?, row.int(1)?), bytes(&row.blob(2)?));
            }
        }
        for object in objects {
            let hash = place(object).and_then(|place| hashes.get(&place).cloned());
            object.insert("transactionHash".to_owned(), hash.unwrap_or_default());
        }
        Ok(())
    }

    /// Block and transaction index of the objects, as parameters from `$1` on and as the rows of `VALUES`; `None` if
    /// there are none, or if transactions are not derived.
    pub(super) async fn places_of(
        &self,
        objects: &[Object],
    ) -> ApiResult<Option<(Vec<Value>, String)>> {
        let places: BTreeSet<_> = objects.iter().filter_map(place).collect();
        let mut places: Vec<(i64, i64)> = places.into_iter().collect();
        let Some(last) = places.last().copied() else {
            return Ok(None);
        };
        if !self.reader.serves(&EVM_TRANSACTIONS).await? {
            return Ok(None);
        }
        // For the same reason as in [`padded`].
        places.resize(places.len().next_power_of_two(), last);
        let params = places.iter().flat_map(|(a, b)| params![*a, *b]).collect();
        // PostgreSQL types untyped parameters in VALUES as text.
        let row = |number: usize| {
            let (block, index) = (2 * number + 1, 2 * number + 2);
            format!("(CAST(${block} AS BIGINT), CAST(${index} AS BIGINT))")
        };
        let rows: Vec<String> = (0..places.len()).map(row).collect();
        Ok(Some((params, rows.join(", "))))
    }
}

/// Block and transaction index of an object.
fn place(object: &Object) -> Option<(i64, i64)> {
    let number = |name: &str| object.get(name)?.as_i64();
    Some((number("blockNumber")?, number("transactionIndex")?))
}

fn add_decimals(object: &mut Object, token: Option<Address>, known: Option<&Metadata>) {
    let decimals = match token {
        Some(Address::ZERO) => Some(NATIVE_DECIMALS.into()),
        _ => known.and_then(|known| known.decimals),
    };
    object.insert("decimals".to_owned(), json!(decimals));
    object.insert("symbol".to_owned(), json!(known.and_then(|known| known.symbol.as_ref())));
}

pub(super) fn as_of(
    newest: Option<u64>,
    hash: Option<B256>,
    newest_final: Option<u64>,
    covered: &[Range<u64>],
) -> Json {
    json!({
        "block": newest,
        "hash": hash,
        "final": newest_final,
        "covered": ranges(covered),
        "ranges": covered.len(),
        "complete": true,
        "reason": null,
    })
}

pub(super) fn ranges(covered: &[Range<u64>]) -> Json {
    let shown = &covered[covered.len().saturating_sub(RANGES_MAX)..];
    shown.iter().map(|range| json!({"from": range.start, "to": range.end - 1})).collect()
}

fn intersection(one: &IntervalSet, other: &IntervalSet) -> IntervalSet {
    one.ranges().flat_map(|range| other.overlap(&range)).collect()
}

fn read_address(bytes: &[u8]) -> ApiResult<Address> {
    Address::try_from(bytes)
        .map_err(|_| ApiError::internal("a stored address does not have 20 bytes"))
}

fn texts(processors: &[ProcessorName]) -> Vec<&'static str> {
    processors.iter().map(|processor| processor.as_str()).collect()
}

/// Pads to a power of two by repeating the last value, so that there are few distinct statements.
pub(super) fn padded(mut values: Vec<Value>) -> Vec<Value> {
    if let Some(last) = values.last().cloned() {
        values.resize(values.len().next_power_of_two(), last);
    }
    values
}

/// Parameter placeholders: `$2, $3`.
pub(super) fn places(first: usize, count: usize) -> String {
    let places: Vec<String> = (first..first + count).map(|number| format!("${number}")).collect();
    places.join(", ")
}
