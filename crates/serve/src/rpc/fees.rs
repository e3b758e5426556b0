//! Gas prices: `eth_feeHistory`, `eth_baseFee`, `eth_blobBaseFee`.
//!
//! Whatever blocks contain is read from them. The base fee of the next block and the price of blob gas depend on the
//! chain's rules. They are computed where the rules are known: on Ethereum's own chains, and the base fee on any chain
//! whose last blocks follow EIP-1559. Otherwise a node is asked.
//!
//! Guarantees: no figure is a guess. Leaves to others: the rules ([`logmill_chain::fee_market`],
//! [`logmill_chain::blob_price`]).

use std::sync::Arc;

use logmill_chain::blob_price::{blob_gas_max, blob_gas_price};
use logmill_chain::facts::HeaderFacts;
use logmill_chain::fee_market::{PriorityFee, next_base_fee, priority_fees};
use logmill_chain::{Block, BlockRef, ChainProfile, Family};
use logmill_pipeline::View;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::error::{RpcError, RpcResult};
use super::params::{Params, Tag, text};
use super::{Rpc, ServedChain, hex};

/// Maximum blocks of a history; a larger count is reduced to it, as in geth.
const BLOCKS_MAX: u64 = 1_024;
const PERCENTILES_MAX: usize = 100;
/// Chains whose base fees follow EIP-1559 exactly.
const ETHEREUM: [u64; 4] = [1, 11_155_111, 17_000, 560_048];
/// How many of the last blocks of another chain are checked against EIP-1559 before the rule is applied to the next.
const WITNESSES: u64 = 8;

/// Number of blocks: a hex quantity, a decimal string, or a JSON number.
#[derive(Clone, Copy, Debug)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        let written = match json.get().starts_with('"') {
            true => text(&json).map_err(D::Error::custom)?,
            false => json.get().to_owned(),
        };
        let is_decimal = !written.is_empty() && written.bytes().all(|digit| digit.is_ascii_digit());
        let count = match is_decimal {
            true => written.parse().map_err(|_| "number > 64 bits".to_owned()),
            false => hex::quantity(&written),
        };
        count.map(Self).map_err(D::Error::custom)
    }
}

/// A block with the header facts that prices depend on.
struct PricedBlock {
    at: BlockRef,
    block: Arc<Block>,
    facts: HeaderFacts,
}

impl PricedBlock {
    async fn read(view: &View, number: u64) -> RpcResult<Self> {
        Self::get(view, number).await?.ok_or_else(|| {
            RpcError::not_stored(&format!("block {number} is not stored"), &view.covered())
        })
    }

    async fn get(view: &View, number: u64) -> RpcResult<Option<Self>> {
        let Some((block, _)) = view.outline(number).await? else {
            return Ok(None);
        };
        let facts = block.header.facts()?;
        Ok(Some(Self { at: block.at, block, facts }))
    }

    /// Base fee of the next block under EIP-1559; `None` if this block has no base fee.
    fn next_base_fee(&self) -> Option<u64> {
        let facts = &self.facts;
        next_base_fee(facts.base_fee_per_gas?, facts.gas_used?, facts.gas_limit?)
    }

    /// Price of blob gas: 0 if the block has no blob gas, `None` if the chain's rules are unknown.
    fn blob_price(&self, chain_id: u64) -> RpcResult<Option<u128>> {
        let Some(excess) = self.facts.excess_blob_gas else {
            return Ok(Some(0));
        };
        for receipt in &self.block.receipts {
            if let Some(price) = receipt.facts()?.blob_gas_price {
                return Ok(Some(price));
            }
        }
        if excess == 0 && has_minimum_of_one(chain_id) {
            return Ok(Some(1));
        }
        Ok(blob_gas_price(chain_id, self.at.timestamp, excess))
    }

    /// Price of blob gas of the next block, if it does not depend on the chain's blob target.
    fn next_blob_price(&self, chain_id: u64) -> Option<u128> {
        match (self.facts.excess_blob_gas, self.facts.blob_gas_used) {
            (None, _) => Some(0),
            (Some(0), Some(0)) if has_minimum_of_one(chain_id) => Some(1),
            _ => None,
        }
    }

    /// Share of the block's blob gas limit that was used; `None` if the limit is unknown.
    fn blob_ratio(&self, chain_id: u64) -> Option<Value> {
        match self.facts.blob_gas_used {
            None | Some(0) => Some(ratio(0, 1)),
            Some(used) => Some(ratio(used, blob_gas_max(chain_id, self.at.timestamp)?)),
        }
    }
}

/// Whether blob gas costs 1 wei without excess. It costs more on some chains, such as Gnosis.
fn has_minimum_of_one(chain_id: u64) -> bool {
    matches!(ChainProfile::of(chain_id).family, Family::Ethereum | Family::Development)
}

/// The answer to `eth_feeHistory`, as far as it is known.
struct History {
    oldest: u64,
    rewards: Option<Vec<Vec<String>>>,
    base_fees: Vec<String>,
    ratios: Vec<Value>,
    /// Prices and usage ratios of blob gas; `None` if one of them is unknown.
    blobs: Option<(Vec<String>, Vec<Value>)>,
}

impl History {
    fn json(self) -> Value {
        let mut fields = Map::new();
        fields.insert("oldestBlock".to_owned(), json!(quantity(self.oldest)));
        if let Some(rewards) = self.rewards {
            fields.insert("reward".to_owned(), json!(rewards));
        }
        fields.insert("baseFeePerGas".to_owned(), json!(self.base_fees));
        fields.insert("gasUsedRatio".to_owned(), json!(self.ratios));
        if let Some((prices, ratios)) = self.blobs {
            fields.insert("baseFeePerBlobGas".to_owned(), json!(prices));
            fields.insert("blobGasUsedRatio".to_owned(), json!(ratios));
        }
        Value::Object(fields)
    }
}

impl Rpc {
    /// `eth_feeHistory`.
    pub(super) async fn fee_history(
        &self,
        served: &ServedChain,
        params: &Params<'_>,
        raw: Option<&RawValue>,
    ) -> RpcResult<Answer> {
        let Count(mut count) = params.read_at(0)?;
        let newest: Tag = params.read_at(1)?;
        let percentiles: Vec<f64> = params.get(2)?.unwrap_or_default();
        check_percentiles(&percentiles)?;
        count = count.min(BLOCKS_MAX);
        let newest = match newest {
            // There is no pending block here: answer for the blocks below it.
            Tag::Pending => {
                count = count.saturating_sub(1);
                Tag::Latest
            }
            newest => newest,
        };
        let view = served.chain.view().await?;
        let head = Tag::Latest.resolve(&view)?;
        let newest = newest.resolve(&view)?;
        if newest > head {
            let why = format!("request beyond head block: requested {newest}, head {head}");
            return Err(RpcError::unknown(why));
        }
        count = count.min(newest + 1);
        if count == 0 {
            return Answer::json(&json!({"oldestBlock": "0x0", "gasUsedRatio": null}));
        }
        let range = newest + 1 - count..=newest;
        let chain_id = served.chain.chain_id();
        let history = history(&view, chain_id, range, percentiles).await?;
        let is_whole = history.as_ref().is_some_and(|history| history.blobs.is_some());
        if is_whole && let Some(history) = history {
            return Answer::json(&history.json());
        }
        // A node knows the rules of its chain. Without one, return the history without blob gas, if that is known.
        match (self.forward(served, "eth_feeHistory", raw).await, history) {
            (Ok(answer), _) => Ok(answer),
            (Err(_), Some(history)) => Answer::json(&history.json()),
            (Err(error), None) => Err(not_known("the base fee of the next block", &error)),
        }
    }

    /// `eth_baseFee`: the base fee of the next block.
    pub(super) async fn base_fee(&self, served: &ServedChain) -> RpcResult<Answer> {
        let view = served.chain.view().await?;
        let head = PricedBlock::read(&view, Tag::Latest.resolve(&view)?).await?;
        if head.facts.base_fee_per_gas.is_none() {
            return Ok(Answer::null());
        }
        if let Some(fee) = expected_base_fee(&view, served.chain.chain_id(), &head).await? {
            return Ok(Answer::quantity(fee));
        }
        let answer = self.forward(served, "eth_baseFee", None).await;
        answer.map_err(|error| not_known("the base fee of the next block", &error))
    }

    /// `eth_blobBaseFee`: the price of blob gas in the newest block.
    pub(super) async fn blob_base_fee(&self, served: &ServedChain) -> RpcResult<Answer> {
        let view = served.chain.view().await?;
        let head = PricedBlock::read(&view, Tag::Latest.resolve(&view)?).await?;
        if head.facts.excess_blob_gas.is_none() {
            return Ok(Answer::null());
        }
        if let Some(price) = head.blob_price(served.chain.chain_id())? {
            return Answer::json(&quantity(price));
        }
        let answer = self.forward(served, "eth_blobBaseFee", None).await;
        answer.map_err(|error| not_known("the price of blob gas", &error))
    }
}

/// The fee history of a range; `None` if the base fee of the block after it, or a requested reward, is unknown.
async fn history(
    view: &View,
    chain_id: u64,
    range: std::ops::RangeInclusive<u64>,
    percentiles: Vec<f64>,
) -> RpcResult<Option<History>> {
    let (oldest, newest) = (*range.start(), *range.end());
    let percentiles = Arc::new(percentiles);
    let mut history = History {
        oldest,
        rewards: (!percentiles.is_empty()).then(Vec::new),
        base_fees: Vec::new(),
        ratios: Vec::new(),
        blobs: Some(Default::default()),
    };
    let mut last = None;
    for number in range {
        let block = PricedBlock::read(view, number).await?;
        history.base_fees.push(quantity(block.facts.base_fee_per_gas.unwrap_or(0)));
        history
            .ratios
            .push(ratio(block.facts.gas_used.unwrap_or(0), block.facts.gas_limit.unwrap_or(0)));
        let blob = (block.blob_price(chain_id)?, block.blob_ratio(chain_id));
        match (&mut history.blobs, blob) {
            (Some((prices, ratios)), (Some(price), Some(ratio))) => {
                prices.push(quantity(price));
                ratios.push(ratio);
            }
            (blobs, _) => *blobs = None,
        }
        if let Some(all) = &mut history.rewards {
            let Some(rewards) = block_rewards(&block, Arc::clone(&percentiles)).await? else {
                return Ok(None);
            };
            all.push(rewards);
        }
        last = Some(block);
    }
    let Some(last) = last else { return Ok(None) };
    let next = match newest.checked_add(1) {
        Some(next) => PricedBlock::get(view, next).await?,
        None => None,
    };
    let (base_fee, blob_price) = match next {
        Some(next) => (next.facts.base_fee_per_gas.or(Some(0)), next.blob_price(chain_id)?),
        None => (expected_base_fee(view, chain_id, &last).await?, last.next_blob_price(chain_id)),
    };
    let Some(base_fee) = base_fee else { return Ok(None) };
    history.base_fees.push(quantity(base_fee));
    match (&mut history.blobs, blob_price) {
        (Some((prices, _)), Some(price)) => prices.push(quantity(price)),
        (blobs, _) => *blobs = None,
    }
    Ok(Some(history))
}

/// Base fee of the block after `last`; `None` if the chain may have its own rules.
async fn expected_base_fee(
    view: &View,
    chain_id: u64,
    last: &PricedBlock,
) -> RpcResult<Option<u64>> {
    if last.facts.base_fee_per_gas.is_none() {
        return Ok(Some(0));
    }
    if ETHEREUM.contains(&chain_id) {
        return Ok(last.next_base_fee());
    }
    // A constant fee, such as one that is always 0, proves nothing about the rules.
    let mut has_changed = false;
    let mut above = last.facts.base_fee_per_gas;
    let number = last.at.number;
    for number in (number.saturating_sub(WITNESSES)..number).rev() {
        let Some(block) = PricedBlock::get(view, number).await? else { break };
        let Some(fee) = block.facts.base_fee_per_gas else { break };
        if block.next_base_fee() != above {
            return Ok(None);
        }
        has_changed |= above != Some(fee);
        above = Some(fee);
    }
    Ok(last.next_base_fee().filter(|_| has_changed))
}

fn check_percentiles(percentiles: &[f64]) -> RpcResult<()> {
    let wrong = |why: String| Err(RpcError::unknown(format!("invalid reward percentile: {why}")));
    if percentiles.len() > PERCENTILES_MAX {
        return wrong(format!("over the query limit {PERCENTILES_MAX}"));
    }
    for (at, percentile) in percentiles.iter().enumerate() {
        if !(0.0..=100.0).contains(percentile) {
            return wrong(format!("{percentile}"));
        }
        if let Some(before) = at.checked_sub(1).and_then(|before| percentiles.get(before))
            && before >= percentile
        {
            return wrong(format!("#{}:{before} >= #{at}:{percentile}", at - 1));
        }
    }
    Ok(())
}

/// Tips per gas at the given percentiles of a block's gas.
async fn block_rewards(
    block: &PricedBlock,
    percentiles: Arc<Vec<f64>>,
) -> RpcResult<Option<Vec<String>>> {
    let (inner, facts) = (Arc::clone(&block.block), block.facts.clone());
    let tips = logmill_io::compute(move || priority_fees(&inner, facts.base_fee_per_gas)).await?;
    let gas_used = block.facts.gas_used.unwrap_or(0);
    Ok(tips.map(|tips| rewards(&tips, gas_used, &percentiles)))
}

fn rewards(tips: &[PriorityFee], gas_used: u64, percentiles: &[f64]) -> Vec<String> {
    let mut tips = tips.iter();
    let mut at = tips.next();
    let mut gas = at.map_or(0, |tip| tip.gas_used);
    let each = percentiles.iter().map(|percentile| {
        let threshold = part_of(gas_used, *percentile);
        while gas < threshold
            && let Some(next) = tips.next()
        {
            gas += next.gas_used;
            at = Some(next);
        }
        quantity(at.map_or(0, |tip| tip.per_gas))
    });
    each.collect()
}

#[expect(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "percentiles are numbers with a fraction, and no amount"
)]
fn part_of(gas: u64, percentile: f64) -> u64 {
    (gas as f64 * percentile / 100.0) as u64
}

#[expect(
    clippy::float_arithmetic,
    reason = "the API has a number with a fraction here, and it is no amount"
)]
fn ratio(part: u64, whole: u64) -> Value {
    match whole {
        0 => json!(0),
        _ if part == 0 => json!(0),
        _ if part == whole => json!(1),
        _ => json!(part as f64 / whole as f64),
    }
}

fn quantity(number: impl Into<u128>) -> String {
    format!("{:#x}", number.into())
}

/// Neither the stored blocks nor a node provided the value.
fn not_known(what: &str, error: &RpcError) -> RpcError {
    let why = format!(
        "{what} is unknown: it depends on the rules of the chain, and no node could be asked ({})",
        error.message
    );
    RpcError::unavailable(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_gas_and_not_of_transactions() {
        let tip = |per_gas, gas_used| PriorityFee { per_gas, gas_used };
        let tips = [tip(1, 60), tip(5, 30), tip(9, 10)];
        let all = rewards(&tips, 100, &[0.0, 60.0, 60.9, 61.0, 90.0, 91.0, 100.0]);
        assert_eq!(all, ["0x1", "0x1", "0x1", "0x5", "0x5", "0x9", "0x9"]);
        assert_eq!(rewards(&[], 0, &[50.0]), ["0x0"]);
    }

    #[test]
    fn invalid_percentiles_are_refused() {
        for percentiles in [
            vec![-0.1],
            vec![100.1],
            vec![f64::NAN],
            vec![50.0, 50.0],
            vec![60.0, 50.0],
            vec![1.0; PERCENTILES_MAX + 1],
        ] {
            let error = check_percentiles(&percentiles).expect_err("refused");
            assert!(error.message.starts_with("invalid reward percentile: "), "{}", error.message);
        }
        assert!(check_percentiles(&[0.0, 0.5, 100.0]).is_ok());
    }

    #[test]
    fn counts_are_accepted_in_three_forms() {
        let read = |text: &str| serde_json::from_str::<Count>(text).map(|count| count.0).ok();
        for (text, expected) in [
            ("\"0x10\"", Some(16)),
            ("\"10\"", Some(10)),
            ("10", Some(10)),
            ("\"0x010\"", None),
            ("\"\"", None),
            ("-1", None),
            ("1.5", None),
            ("99999999999999999999", None),
            ("null", None),
            ("[1]", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
