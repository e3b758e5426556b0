//! `Data`: what is derived of a chain, at one moment, as requests read it.
//!
//! Guarantees: [`Data::is_current`] tells whether the tip has changed since the first read, so that an answer of
//! several statements is of one branch or is asked for again; completeness is judged by coverage that was read before
//! the rows it speaks for. Leaves to others: what to read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use alloy_primitives::{Address, B256};
use logmill_io::sql::Answer;
use logmill_io::{Value, params};
use logmill_pipeline::derive::{Reader, Select, Standing, Table};
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use logmill_pipeline::processors::meta::SMART_CONTRACTS;
use logmill_work::IntervalSet;
use serde_json::{Value as Json, json};

use super::error::{ApiError, ApiResult};
use super::record::{Field, Form, Object, Record, address_in, bytes, column, computed};

/// Gives the source of a table for a statement.
pub(super) type Source<'a> = &'a dyn Fn(&'static Table, &Select<'_>) -> String;

/// The most ranges of coverage that an answer shows.
const RANGES_MAX: usize = 16;
/// The decimals of ether, and of what other EVM chains have in its place.
pub(super) const NATIVE_DECIMALS: u8 = 18;

/// A range of blocks, both ends included.
pub(super) static RANGE: Record = Record {
    name: "Range",
    about: "A range of blocks, both ends included.",
    base: None,
    fields: &[
        computed("from", Form::Number, "the first block"),
        computed("to", Form::Number, "the last block"),
    ],
};

/// What an answer is based on.
pub(super) static AS_OF: Record = Record {
    name: "AsOf",
    about: "What an answer is based on: every block of `covered`, and, while `complete` is true, no other.",
    base: None,
    fields: &[
        computed("block", Form::Number, "the newest block; null if there is none").or_null(),
        computed("hash", Form::Bytes, "its hash, as long as it is not final").or_null(),
        computed("final", Form::Number, "the newest final block; null if there is none").or_null(),
        computed("covered", Form::List(&Form::Object(&RANGE)), "the newest ranges, lowest first"),
        computed("ranges", Form::Number, "how many ranges there are in all"),
        computed(
            "complete",
            Form::Flag,
            "false while stored blocks were replaced and the tables still hold rows of the old ones",
        ),
        computed("reason", Form::Text, "why `complete` is false").or_null(),
    ],
};

/// Where a row is in the chain, for records that have it.
pub(super) const HASH: Field = computed(
    "transactionHash",
    Form::Bytes,
    "the hash of its transaction; null if `evm_worker` has not derived its block",
)
.or_null();
/// The decimals of the token of a record.
pub(super) const DECIMALS: Field =
    computed("decimals", Form::Number, "of the amounts; null if the token has told none").or_null();
/// The symbol of the token of a record.
pub(super) const SYMBOL: Field =
    computed("symbol", Form::Text, "the token's short name, if it has told one").or_null();
/// The number of the block of a record.
pub(super) const BLOCK: Field =
    column("blockNumber", Form::Number, "block_height", "the number of its block");
/// The position of the transaction of a record.
pub(super) const TX_INDEX: Field =
    column("transactionIndex", Form::Number, "tx_index", "its transaction's position in the block");
/// The position of the log of a record.
pub(super) const LOG_INDEX: Field =
    column("logIndex", Form::Number, "event_index", "its log's position in the block");
/// The time of a record.
pub(super) const TIME: Field =
    column("timestamp", Form::Number, "timestamp", "seconds since 1970, of its block");

/// What is derived of a chain.
#[derive(Debug)]
pub(super) struct Data {
    reader: Reader,
    standings: Vec<Standing>,
    /// The last replacement of stored blocks, as of before the standings.
    last_replacement: u64,
}

/// What a token says of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Metadata {
    pub(super) name: Option<String>,
    pub(super) symbol: Option<String>,
    pub(super) decimals: Option<i64>,
}

impl Data {
    /// What is derived now, as far as these processors go.
    pub(super) async fn read(
        reader: Reader,
        processors: &[&str],
        last_replacement: u64,
    ) -> ApiResult<Self> {
        let standings = reader.standings(processors).await?;
        Ok(Self { reader, standings, last_replacement })
    }

    /// Why tables of these processors may hold rows of blocks that no longer exist; none if they hold none.
    pub(super) fn stale(&self, processors: &[&str]) -> Option<String> {
        let named = |standing: &&Standing| processors.contains(&standing.processor.as_str());
        self.standings.iter().filter(named).find_map(|one| one.stale(self.last_replacement))
    }

    /// Whether the blocks that are not final are those of the beginning.
    pub(super) async fn is_current(&self, processors: &[&str]) -> ApiResult<bool> {
        let now = self.reader.standings(processors).await?;
        let tip = |standing: &Standing| (standing.generation, standing.tip.clone());
        Ok(now.iter().map(tip).eq(self.standings.iter().map(tip)))
    }

    /// Runs a query.
    pub(super) async fn query(
        &self,
        text: impl Fn(Source<'_>) -> String + Send + Sync,
        params: Vec<Value>,
    ) -> ApiResult<Answer> {
        #[cfg(test)]
        let text = |source: Source<'_>| super::plans::noted(text(source), &params);
        Ok(self.reader.query(text, params.clone()).await?)
    }

    /// The number of an address; none if nothing that is derived names it.
    pub(super) async fn id(&self, address: Address) -> ApiResult<Option<i64>> {
        Ok(self.reader.tables().address_id(address).await?)
    }

    /// The blocks that a processor has, or an error that it has never run.
    pub(super) fn covered(&self, processor: &str) -> ApiResult<IntervalSet> {
        let standing = self.standings.iter().find(|standing| standing.processor == processor);
        Ok(standing.ok_or_else(|| ApiError::not_derived(processor))?.all())
    }

    /// What an answer that needs all of these processors is based on.
    pub(super) fn as_of(&self, processors: &[&str]) -> ApiResult<Json> {
        let mut common: Option<(IntervalSet, IntervalSet)> = None;
        let (mut tip, mut named) = (None, 0);
        for standing in &self.standings {
            if !processors.contains(&standing.processor.as_str()) {
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
            let has = |name: &&&str| self.standings.iter().all(|one| one.processor != **name);
            let missing = processors.iter().find(has).copied().unwrap_or_default();
            return Err(ApiError::not_derived(missing));
        }
        let (all, done) = common.unwrap_or_default();
        let covered: Vec<Range<u64>> = all.ranges().collect();
        let newest = covered.last().map(|range| range.end - 1);
        let hash = tip.filter(|(number, _)| Some(*number) == newest);
        let newest_final = done.ranges().next_back().map(|range| range.end - 1);
        Ok(as_of(newest, hash.map(|(_, hash)| hash), newest_final, &covered))
    }

    /// Whether the covered blocks of a processor have all of a contract's life, with what is known of its creation.
    pub(super) fn is_complete(&self, processor: &str, created: Option<u64>) -> ApiResult<bool> {
        let covered = self.covered(processor)?;
        let end = covered.ranges().next_back().map_or(0, |range| range.end);
        let is_stale = self.stale(&[processor]).is_some();
        Ok(!is_stale && end > 0 && covered.covers(&(created.unwrap_or(0).min(end - 1)..end)))
    }

    /// Of which contracts the covered blocks of a processor have all of their lives.
    pub(super) async fn complete(
        &self,
        processor: &str,
        contracts: BTreeSet<Address>,
    ) -> ApiResult<BTreeSet<Address>> {
        if self.is_complete(processor, None)? {
            return Ok(contracts);
        }
        if self.stale(&[processor]).is_some() {
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

    /// When contracts were created, as far as that is known.
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

    /// What tokens and collections say of themselves, as far as they were asked.
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

    /// The chain as a parameter of tables that hold several.
    pub(super) fn chain_param(&self) -> ApiResult<Value> {
        let chain = i64::try_from(self.reader.chain_id());
        chain.map(Value::Int).map_err(|_| ApiError::no_chain())
    }

    /// Reads a table that is not there unless some worker has made it.
    pub(super) async fn optional(
        &self,
        text: &str,
        params: Vec<Value>,
    ) -> ApiResult<Option<Answer>> {
        match self.reader.tables().sql().query(text, params).await {
            Err(error) if error.is_missing_table() => Ok(None),
            answer => Ok(Some(answer?)),
        }
    }

    /// Adds decimals and symbol of the token that `field` of each object names.
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

    /// Adds the hash of the transaction of each object.
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

    /// The places of the transactions of objects, as parameters from `$1` on and as the rows of `VALUES`; none if there
    /// are none, or transactions are not derived here.
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
        // As with [`padded`].
        places.resize(places.len().next_power_of_two(), last);
        let params = places.iter().flat_map(|(a, b)| params![*a, *b]).collect();
        // PostgreSQL takes untyped parameters of VALUES for text.
        let row = |number: usize| {
            let (block, index) = (2 * number + 1, 2 * number + 2);
            format!("(CAST(${block} AS BIGINT), CAST(${index} AS BIGINT))")
        };
        let rows: Vec<String> = (0..places.len()).map(row).collect();
        Ok(Some((params, rows.join(", "))))
    }
}

/// The place of the transaction of an object.
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

/// What an answer is based on, as JSON.
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

/// The newest ranges, as JSON.
pub(super) fn ranges(covered: &[Range<u64>]) -> Json {
    let shown = &covered[covered.len().saturating_sub(RANGES_MAX)..];
    shown.iter().map(|range| json!({"from": range.start, "to": range.end - 1})).collect()
}

fn intersection(one: &IntervalSet, other: &IntervalSet) -> IntervalSet {
    one.ranges().flat_map(|range| other.overlap(&range)).collect()
}

fn read_address(bytes: &[u8]) -> ApiResult<Address> {
    Address::try_from(bytes).map_err(|_| ApiError::internal("a stored address"))
}

/// Few lengths, so that there are few statements: the last value fills the rest.
pub(super) fn padded(mut values: Vec<Value>) -> Vec<Value> {
    if let Some(last) = values.last().cloned() {
        values.resize(values.len().next_power_of_two(), last);
    }
    values
}

/// Places of parameters: `$2, $3`.
pub(super) fn places(first: usize, count: usize) -> String {
    let places: Vec<String> = (first..first + count).map(|number| format!("${number}")).collect();
    places.join(", ")
}
