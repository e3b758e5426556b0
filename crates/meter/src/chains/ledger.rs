//! The ledger: which usage of which block was recorded, so that it can be cancelled when the block is replaced.
//!
//! Its tables are `meter_chain_block` and `meter_chain_rule` (`crate::store::schema`).
//!
//! Only blocks with usage have a row. Blocks that were removed keep theirs, with all entries cancelled, so that ids are
//! never used twice.
//!
//! Guarantees: a row is written in the transaction that records or cancels the events it lists. Leaves to others: what
//! to record and cancel ([`super::plan`]).

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};
use logmill_work::Heights;
use serde::{Deserialize, Serialize};

use super::usage::{BlockHash, RuleVersion, UsageId};
use crate::error::{Error, Result};
use crate::store::chain_state::sql_int;

const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;
/// Maximum number of ledger rows in one read.
const ROWS_PER_READ: i64 = 5_000;

/// One recording of one log under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) log: u64,
    pub(crate) rule: u32,
    /// Revision number, from 1.
    pub(crate) revision: u32,
    /// False once it was cancelled with its block.
    pub(crate) live: bool,
    /// Hash of the event's content.
    pub(crate) content: i64,
}

/// Ledger entries of one height, by block hash.
pub(crate) type BlockEntries = BTreeMap<BlockHash, Vec<Entry>>;

/// Ledger entries of some heights.
pub(crate) type ByHeight = BTreeMap<u64, BlockEntries>;

/// Encodes the entries of a block: a version byte, the entries, and a checksum over both and the block.
pub(crate) fn encode(hash: &BlockHash, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut bytes = vec![VERSION];
    bytes.extend(postcard::to_allocvec(entries).map_err(|error| unreadable(&error))?);
    let crc = crc32c::crc32c_append(crc32c::crc32c(hash), &bytes);
    bytes.extend(crc.to_be_bytes());
    Ok(bytes)
}

/// Decodes the output of [`encode`].
pub(crate) fn decode(hash: &BlockHash, bytes: &[u8]) -> Result<Vec<Entry>> {
    let (body, crc) =
        bytes.split_last_chunk::<CRC_BYTES>().ok_or_else(|| unreadable(&"it is too short"))?;
    let expected = crc32c::crc32c_append(crc32c::crc32c(hash), body);
    match body.split_first() {
        Some((&VERSION, entries)) if u32::from_be_bytes(*crc) == expected => {
            postcard::from_bytes(entries).map_err(|error| unreadable(&error))
        }
        _ => Err(unreadable(&"its checksum or version is wrong")),
    }
}

fn unreadable(why: &dyn std::fmt::Display) -> Error {
    Error::corrupt(format!("a ledger row of chain usage cannot be read: {why}"))
}

fn hash_of(bytes: &[u8]) -> Result<BlockHash> {
    BlockHash::try_from(bytes).map_err(|_| unreadable(&"a hash does not have 32 bytes"))
}

/// The entries of the blocks of a range.
pub(crate) async fn read(on: &impl Execute, chain: u64, range: &Heights) -> Result<ByHeight> {
    let mut found = ByHeight::new();
    let mut rest = Some(range.clone());
    while let Some(range) = rest {
        let (page, next) = read_page(on, chain, &range).await?;
        for (height, recorded) in page {
            found.entry(height).or_default().extend(recorded);
        }
        rest = next;
    }
    Ok(found)
}

/// One above the highest block with recorded usage; 0 if there is none.
pub(crate) async fn end(on: &impl Execute, chain: u64) -> Result<u64> {
    let text = "SELECT height FROM meter_chain_block WHERE chain = $1 ORDER BY height DESC LIMIT 1";
    let found = on.execute(text, params![sql_int(chain)]).await?;
    found.rows.first().map_or(Ok(0), |row| Ok(row.count(0)?.saturating_add(1)))
}

/// The lowest heights of a range with live entries, at most `most`.
pub(crate) async fn live_heights(
    on: &impl Execute,
    chain: u64,
    range: &Heights,
    most: usize,
) -> Result<Vec<u64>> {
    let mut live = BTreeSet::new();
    let mut rest = Some(range.clone());
    while let Some(range) = rest.filter(|_| live.len() < most) {
        let (page, next) = read_page(on, chain, &range).await?;
        live.extend(page.into_iter().filter(|(_, one)| is_live(one)).map(|(height, _)| height));
        rest = next;
    }
    Ok(live.into_iter().take(most).collect())
}

pub(crate) fn is_live(recorded: &BlockEntries) -> bool {
    recorded.values().flatten().any(|entry| entry.live)
}

/// The first rows of a range, and the rest of the range. The last height of a page may appear again in the next.
async fn read_page(
    on: &impl Execute,
    chain: u64,
    range: &Heights,
) -> Result<(ByHeight, Option<Heights>)> {
    let text = format!(
        "SELECT height, hash, entries FROM meter_chain_block
         WHERE chain = $1 AND height >= $2 AND height < $3 ORDER BY height LIMIT {ROWS_PER_READ}"
    );
    let params = params![sql_int(chain), sql_int(range.start), sql_int(range.end)];
    let rows = on.execute(&text, params).await?.rows;
    let mut page = ByHeight::new();
    for row in &rows {
        let (height, hash) = (row.count(0)?, hash_of(&row.blob(1)?)?);
        let entries = decode(&hash, &row.blob(2)?)?;
        page.entry(height).or_default().insert(hash, entries);
    }
    let is_full = rows.len() >= usize::try_from(ROWS_PER_READ).unwrap_or(usize::MAX);
    let last = page.keys().next_back().filter(|_| is_full);
    let next = last.map(|last| range.start.saturating_add(1).max(*last)..range.end);
    Ok((page, next.filter(|next| !next.is_empty())))
}

/// The parameters of [`PUT_ROW`] for one block.
pub(crate) fn row(
    chain: u64,
    height: u64,
    hash: &BlockHash,
    entries: &[Entry],
) -> Result<Vec<logmill_io::Value>> {
    Ok(params![sql_int(chain), sql_int(height), hash.as_slice(), encode(hash, entries)?])
}

pub(crate) const PUT_ROW: &str = "
    INSERT INTO meter_chain_block (chain, height, hash, entries) VALUES ($1, $2, $3, $4)
    ON CONFLICT (chain, height, hash) DO UPDATE SET entries = excluded.entries";

/// All rules that a chain ever had, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) known: BTreeMap<u32, RuleVersion>,
    /// Numbers of the rules that are configured now.
    pub(crate) current: Vec<u32>,
}

/// Stands for the unknown definition of a rule that recorded events before the ledger existed.
const UNKNOWN_DEFINITION: i64 = 0;

impl Rules {
    /// The number of a configured rule.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        let mut current = self.current.iter().copied();
        current.find(|number| self.known.get(number).is_some_and(|rule| rule.name == name))
    }

    /// The number of a rule's unknown definition.
    pub(crate) fn unknown(&self, name: &str) -> Option<u32> {
        let is_unknown =
            |rule: &RuleVersion| rule.name == name && rule.definition == UNKNOWN_DEFINITION;
        self.known.iter().find(|(_, rule)| is_unknown(rule)).map(|(number, _)| *number)
    }

    pub(crate) fn name(&self, number: u32) -> &str {
        self.known.get(&number).map_or("", |rule| rule.name.as_str())
    }

    /// Whether the rule is configured now with this definition.
    pub(crate) fn is_current(&self, number: u32) -> bool {
        self.current.contains(&number)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.number(name).is_some()
    }

    pub(crate) fn id(&self, chain: u64, hash: &BlockHash, entry: &Entry) -> UsageId {
        let rule = self.name(entry.rule).to_owned();
        UsageId { chain, hash: *hash, log: entry.log, rule, revision: entry.revision }
    }

    /// The rules of a chain; new ones get a number.
    pub(crate) async fn resolve(
        sql: &logmill_io::Sql,
        chain: u64,
        now: &[RuleVersion],
    ) -> Result<Self> {
        let known = read_rules(&sql.reading(), chain).await?;
        let rules = Self::with(known, now);
        if rules.current.len() == now.len() {
            return Ok(rules);
        }
        let known = sql.write(|tx| async move { add_rules(&tx, chain, now).await }).await?;
        Ok(Self::with(known, now))
    }

    /// All rules that a chain ever had; none counts as configured.
    pub(crate) async fn read(on: &impl Execute, chain: u64) -> Result<Self> {
        Ok(Self { known: read_rules(on, chain).await?, current: Vec::new() })
    }

    fn with(known: BTreeMap<u32, RuleVersion>, now: &[RuleVersion]) -> Self {
        let number = |wanted: &RuleVersion| {
            known.iter().find(|(_, rule)| *rule == wanted).map(|(number, _)| *number)
        };
        let current = now.iter().filter_map(number).collect();
        Self { known, current }
    }
}

async fn read_rules(on: &impl Execute, chain: u64) -> Result<BTreeMap<u32, RuleVersion>> {
    let text = "SELECT number, name, definition FROM meter_chain_rule WHERE chain = $1";
    let found = on.execute(text, params![sql_int(chain)]).await?;
    let rules = found.rows.iter().map(|row| {
        let number = u32::try_from(row.count(0)?).map_err(|error| unreadable(&error))?;
        Ok((number, RuleVersion { name: row.text(1)?.to_owned(), definition: row.int(2)? }))
    });
    rules.collect()
}

/// Assigns numbers to rules. Each name also gets a number for definitions that are no longer known.
async fn add_rules(tx: &Tx, chain: u64, now: &[RuleVersion]) -> Result<BTreeMap<u32, RuleVersion>> {
    // Two processes must not assign the same number.
    crate::store::head::Head::lock(tx).await?;
    let mut known = read_rules(tx, chain).await?;
    let unknown = |rule: &RuleVersion| RuleVersion {
        name: rule.name.clone(),
        definition: UNKNOWN_DEFINITION,
    };
    for rule in now.iter().flat_map(|rule| [unknown(rule), rule.clone()]) {
        if known.values().any(|one| *one == rule) {
            continue;
        }
        let number = known.keys().next_back().map_or(1, |last| last + 1);
        let text = "INSERT INTO meter_chain_rule (chain, number, name, definition)
                    VALUES ($1, $2, $3, $4)";
        tx.execute(text, params![sql_int(chain), number, rule.name.as_str(), rule.definition])
            .await?;
        known.insert(number, rule);
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        (any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>(), any::<i64>()).prop_map(
            |(log, rule, revision, live, content)| Entry { log, rule, revision, live, content },
        )
    }

    proptest! {
        #[test]
        fn entries_are_read_as_they_were_written(
            hash: [u8; 32],
            entries in prop::collection::vec(entry(), 0..20),
        ) {
            let bytes = encode(&hash, &entries).expect("bytes");
            prop_assert_eq!(decode(&hash, &bytes).expect("entries"), entries);
        }

        #[test]
        fn a_flipped_bit_of_a_ledger_row_is_found(
            hash: [u8; 32],
            entries in prop::collection::vec(entry(), 0..20),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode(&hash, &entries).expect("bytes");
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&hash, &bytes).is_err());
        }
    }
}
