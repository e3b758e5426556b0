//! The verification level of a chain, where its profile decides and not a setting.
//!
//! A chain of a known family always has the level of its row ([`ChainProfile`]). For an unknown one, up to three
//! blocks are probed before the first is stored: the newest final one, one half as high, and the first. They are
//! requested from every available node, and the highest level that the blocks of any node pass is used.
//!
//! | result | level |
//! |---|---|
//! | all pass `full` | `full` |
//! | one has fields or types that Ethereum does not have | `bloom` |
//! | none of two or more passes `full` | `bloom` |
//! | no header matches the hash that the node reports | `bloom` |
//! | the same, and the logs of one do not match its bloom, which would prove nothing | `off` |
//!
//! A later block with fields or types that Ethereum does not have lowers the level to `bloom` only if every available
//! node returns this block, and no block of these nodes has passed `full` before. Blocks that fail for other reasons
//! are rejected. Each step down is reported as a warning, as a metric, and in the status.
//!
//! Guarantees: the level of a known family never changes; that of an unknown one only falls, and never below what the
//! table says. Leaves to others: fetching and checking.

use metrics::counter;

use super::compare::chain_label;
use super::fetch::{BlockQuery, fetch};
use super::json::ReadOptions;
use super::node_error::NodeError;
use super::pool::Pool;
use super::pool_request::PoolRequest;
use super::probed_level::LoweredLevel;
use crate::block::Block;
use crate::mismatch::Mismatch;
use crate::profile::ChainProfile;
use crate::source::ChecksStatus;
use crate::verify::verify;
use crate::verify_level::VerifyLevel;

impl Pool {
    /// Decides how blocks are read. Probes an unknown chain first.
    pub(super) async fn read_options(&self) -> ReadOptions {
        let profile = self.profile();
        if self.settings.auto && profile.is_some_and(|profile| profile.may_verify_less) {
            // If no block is available, nothing is known yet: the next call tries again.
            let _ = self.level.probed.get_or_try_init(|| self.probe()).await;
        }
        let compared = profile.is_some_and(|profile| !profile.has_ethereum_rules());
        let (verify, chain) = (self.verify_level(), self.known_chain_id());
        ReadOptions { verify, profile, compared, chain }
    }

    /// Configured, or reported by a node.
    fn known_chain_id(&self) -> Option<u64> {
        self.settings.chain_id.or_else(|| self.chain_id.get().copied())
    }

    pub(super) fn verify_level(&self) -> VerifyLevel {
        match (self.settings.auto, self.profile()) {
            (false, _) => self.settings.verify,
            (true, None) => VerifyLevel::Full,
            (true, Some(profile)) => {
                self.level.lowered().map_or(profile.verify, |lowered| lowered.verify)
            }
        }
    }

    fn lower(&self, lowered: LoweredLevel) {
        let chain_id = self.known_chain_id();
        let LoweredLevel { verify, why } = &lowered;
        tracing::warn!(
            chain = chain_id,
            verify = %verify,
            why,
            "blocks of this chain cannot be verified in full, lowered the level; set chain.verify to override"
        );
        let labels = [("chain", chain_label(chain_id)), ("to", verify.to_string())];
        counter!("logmill_chain_verify_lowered_total", &labels).increment(1);
        self.level.lower(lowered);
    }

    /// Probes blocks of an unknown chain. Fails if none is available.
    async fn probe(&self) -> Result<(), ()> {
        let heads = self.heads().await.map_err(drop)?;
        let newest = heads.finalized.unwrap_or(heads.latest).number;
        let mut numbers = vec![1, newest / 2, newest];
        numbers.retain(|number| (1..=newest).contains(number));
        numbers.dedup();
        let mut request = self.start_request("blocks to probe".to_owned(), None);
        let mut found: Option<LoweredLevel> = None;
        while let Ok((index, node)) = self.next(&mut request).await {
            let mut blocks = Vec::new();
            for number in &numbers {
                let chain = self.known_chain_id();
                let verify = VerifyLevel::Off;
                let options = ReadOptions { verify, profile: None, compared: true, chain };
                let query = BlockQuery::Numbers(*number..*number + 1);
                blocks.extend(fetch(&node, &query, options).await.blocks);
            }
            // Marks the node as done: one probe is enough.
            request.record(index, NodeError::Missing, true);
            if blocks.is_empty() {
                continue;
            }
            let has_transactions = blocks.iter().any(|block| !block.transactions.is_empty());
            let Some(lowered) = logmill_io::compute(move || decide(blocks)).await else {
                // No single node can lower a level that the blocks of another node pass.
                self.level.note_passed(has_transactions);
                return Ok(());
            };
            if found.as_ref().is_none_or(|found| found.verify < lowered.verify) {
                found = Some(lowered);
            }
        }
        self.lower(found.ok_or(())?);
        Ok(())
    }

    /// Records that blocks passed.
    pub(super) fn passed(&self, blocks: &[Block]) {
        let mut passed =
            blocks.iter().filter(|block| block.verified == VerifyLevel::Full).peekable();
        if passed.peek().is_some() {
            self.level.note_passed(passed.any(|block| !block.transactions.is_empty()));
        }
    }

    /// Lowers the level, if allowed, because of a block that no node returned in a form that can be checked. Returns
    /// true if the block should be requested again.
    pub(super) fn lower_for(&self, request: &PoolRequest) -> bool {
        let Some((number, mismatch)) = request.unverifiable() else {
            return false;
        };
        let is_false = matches!(mismatch, Mismatch::ForeignBlock { .. });
        let may = self.settings.auto
            && !is_false
            && self.profile().is_some_and(|known| known.may_verify_less);
        let is_of_header =
            matches!(mismatch, Mismatch::ForeignHeader { .. } | Mismatch::UnreadableHeader { .. });
        let passed = self.level.has_passed(is_of_header);
        if !may || passed || self.verify_level() != VerifyLevel::Full {
            return false;
        }
        let why = format!("block {number}: {mismatch}");
        self.lower(LoweredLevel { verify: VerifyLevel::Bloom, why });
        true
    }

    /// Adds the setting that helps to a failed check, where a field is missing or the chain's family is known not to
    /// pass. A block that is false on its own chain never comes with the advice to check less.
    pub(super) fn advise(&self, error: NodeError) -> NodeError {
        let Some(profile) = self.profile() else {
            return error;
        };
        let level = self.verify_level();
        let with_advice = |mismatch: Mismatch| match advice(profile, level, &mismatch) {
            Some(advice) => Mismatch::Advised { mismatch: Box::new(mismatch), advice },
            None => mismatch,
        };
        match error {
            NodeError::Lie { number, hash, mismatch } => {
                NodeError::Lie { number, hash, mismatch: with_advice(mismatch) }
            }
            NodeError::Unverifiable { number, hash, mismatch } => {
                NodeError::Unverifiable { number, hash, mismatch: with_advice(mismatch) }
            }
            other => other,
        }
    }

    pub(super) fn checks(&self) -> ChecksStatus {
        let lowered = self.level.lowered();
        ChecksStatus {
            family: self.profile().map(|profile| profile.family),
            verify: self.verify_level(),
            decided_by: match (self.settings.auto, &lowered) {
                (false, _) => "setting",
                (true, None) => "profile",
                (true, Some(_)) => "blocks",
            },
            why: lowered.map(|lowered| lowered.why),
            confirmations: self.confirmations(),
        }
    }
}

/// The setting that helps: if nodes leave out fields that the check needs, or if the family's blocks cannot pass
/// `full`, because of its own fields and types or because its headers are not hashed as on Ethereum. If fields or
/// types are foreign, the mismatch itself names the setting.
fn advice(profile: ChainProfile, level: VerifyLevel, mismatch: &Mismatch) -> Option<String> {
    let left_out = match (level, mismatch) {
        (
            VerifyLevel::Full,
            Mismatch::UnreadableHeader { .. } | Mismatch::UnreadableTransaction { .. },
        ) => Some(VerifyLevel::Bloom),
        (VerifyLevel::Bloom, Mismatch::NoBloom) => Some(VerifyLevel::Off),
        _ => None,
    };
    if let Some(less) = left_out {
        return Some(format!("if the nodes of this chain leave it out, set `verify = \"{less}\"`"));
    }
    let is_foreign = matches!(
        mismatch,
        Mismatch::ForeignHeader { .. }
            | Mismatch::ForeignBlock { .. }
            | Mismatch::ForeignTransaction { .. }
    );
    let hashes_otherwise = profile.verify == VerifyLevel::Off && is_of_hash(mismatch);
    let is_usual = level == VerifyLevel::Full
        && profile.verify < VerifyLevel::Full
        && (is_foreign || hashes_otherwise);
    is_usual.then(|| {
        format!(
            "blocks of {} do not pass \"full\": set `verify = \"auto\"` or \"{}\"",
            profile.family, profile.verify
        )
    })
}

/// The level of a chain with these blocks, if it is below `full`.
fn decide(mut blocks: Vec<Block>) -> Option<LoweredLevel> {
    let mut failed: Vec<(u64, Mismatch)> = Vec::new();
    for block in &mut blocks {
        let checked = verify(block, VerifyLevel::Full);
        failed.extend(checked.err().map(|mismatch| (block.at.number, mismatch)));
    }
    // A header with only known fields and another hash may be false, whatever the transactions are.
    let is_own = |mismatch: &Mismatch| {
        !mismatch.is_lie() && !matches!(mismatch, Mismatch::ForeignBlock { .. })
    };
    let foreign = failed.iter().find(|(_, mismatch)| is_own(mismatch));
    let all_fail = failed.len() == blocks.len();
    let none_hashes = all_fail && failed.iter().all(|(_, mismatch)| is_of_hash(mismatch));
    let speaks_for_all = none_hashes || (all_fail && blocks.len() > 1);
    let reason = foreign.or(if speaks_for_all { failed.first() } else { None });
    let mut why = reason.map(|(number, mismatch)| format!("block {number}: {mismatch}"))?;
    if none_hashes {
        for block in &mut blocks {
            if let Err(mismatch) = verify(block, VerifyLevel::Bloom) {
                why = format!("{why}; block {}: {mismatch}", block.at.number);
                return Some(LoweredLevel { verify: VerifyLevel::Off, why });
            }
        }
    }
    Some(LoweredLevel { verify: VerifyLevel::Bloom, why })
}

/// Whether a header does not match the hash that the node reported, for any reason.
fn is_of_hash(mismatch: &Mismatch) -> bool {
    matches!(
        mismatch,
        Mismatch::HeaderHash { .. }
            | Mismatch::ForeignHeader { .. }
            | Mismatch::ForeignBlock { .. }
            | Mismatch::UnreadableHeader { .. }
    )
}

#[cfg(test)]
mod tests;
