//! Usage of one block of a chain, and the ids it is recorded under.
//!
//! ```text
//!   source   eip155:CHAIN
//!   id       CHAIN:BLOCKHASH:LOG:RULE        first recording
//!            CHAIN:BLOCKHASH:LOG:RULE:r2     second recording, after the first was cancelled
//! ```
//!
//! Guarantees: an id names one recording of one log under one rule. A block that was cancelled and comes back gets new
//! ids, because an id counts once, forever. Leaves to others: which revision is next (`super::plan`).

use std::fmt;

use crate::event::{Event, Key};

pub type BlockHash = [u8; 32];

/// A rule as it is configured now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleVersion {
    /// Part of ids.
    pub name: String,
    /// Hash of everything that determines what the rule finds.
    pub definition: i64,
}

/// One usage event of a block, recorded or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogUsage {
    /// Index of the log in its block.
    pub log: u64,
    pub rule: String,
    /// With the id of a first recording.
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageBlock {
    pub height: u64,
    pub hash: BlockHash,
    /// May be empty.
    pub usage: Vec<LogUsage>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageId {
    pub chain: u64,
    pub hash: BlockHash,
    /// Index of the log in the block.
    pub log: u64,
    pub rule: String,
    /// Revision number, from 1.
    pub revision: u32,
}

impl UsageId {
    /// The source of all usage events of a chain.
    pub fn source(chain: u64) -> String {
        format!("eip155:{chain}")
    }

    /// Parses an id. A rule may be called `a:r2`, so `is_rule` decides where the name ends and a revision begins.
    pub fn parse(id: &str, is_rule: impl Fn(&str) -> bool) -> Option<Self> {
        let mut parts = id.splitn(4, ':');
        let chain = parts.next()?.parse().ok()?;
        let hash = parse_hash(parts.next()?)?;
        let log = parts.next()?.parse().ok()?;
        let rest = parts.next()?;
        let whole = (rest, 1);
        let revised = || {
            let (rule, revision) = rest.rsplit_once(":r")?;
            Some((rule, revision.parse().ok().filter(|revision| *revision > 1)?))
        };
        let (rule, revision) = match is_rule(rest) {
            true => whole,
            false => revised().unwrap_or(whole),
        };
        Some(Self { chain, hash, log, rule: rule.to_owned(), revision })
    }

    pub(crate) fn key(&self) -> Key {
        Key::of(&Self::source(self.chain), &self.to_string())
    }

    /// Sets the event's source, id and key to this id.
    pub(crate) fn assign(&self, mut event: Event) -> Event {
        event.source = Self::source(self.chain);
        event.id = self.to_string();
        event.key = Key::of(&event.source, &event.id);
        event
    }
}

impl fmt::Display for UsageId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}:{}", self.chain, hex(&self.hash), self.log, self.rule)?;
        match self.revision {
            0 | 1 => Ok(()),
            revision => write!(out, ":r{revision}"),
        }
    }
}

/// The hash in hexadecimal.
pub(crate) fn hex(hash: &BlockHash) -> String {
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

fn parse_hash(text: &str) -> Option<BlockHash> {
    let digits = text.strip_prefix("0x")?;
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut hash = BlockHash::default();
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// Changes made by a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageDelta {
    /// Blocks whose usage changed.
    pub blocks: u64,
    pub cancelled: u64,
    pub recorded: u64,
    /// Events that were recorded differently under an earlier definition of their rule, and stay.
    pub conflicts: u64,
}

impl UsageDelta {
    pub(crate) fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.cancelled += other.cancelled;
        self.recorded += other.recorded;
        self.conflicts += other.conflicts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let rules = ["fees", "a:r2", "x:y"];
        let is_rule = |name: &str| rules.contains(&name);
        for rule in rules {
            for revision in [1, 2, 70] {
                let id =
                    UsageId { chain: 5, hash: [0xab; 32], log: 7, rule: rule.into(), revision };
                assert_eq!(UsageId::parse(&id.to_string(), is_rule), Some(id));
            }
        }
        let first = UsageId { chain: 1, hash: [0; 32], log: 0, rule: "f".into(), revision: 1 };
        assert_eq!(first.to_string(), format!("1:0x{}:0:f", "00".repeat(32)));
        for wrong in ["", "1:2:3:4", "1:0x00:0:f", "x:0x00", &format!("1:0x{}:0", "0".repeat(64))] {
            assert_eq!(UsageId::parse(wrong, is_rule), None, "{wrong}");
        }
    }
}
