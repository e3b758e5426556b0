//! `StateReader`: queries nodes for contract state at a block.
//!
//! Contracts are untrusted: one may fail on purpose, return megabytes, or compute as long as it can. So a call has
//! limits for gas and time, and an answer has one for size. A contract's failure is an answer, and is kept; a node's
//! failure is not, and the caller asks again.
//!
//! Most nodes discard old state. If the state of a block is gone, the newest final block is queried instead, then the
//! newest of all; an answer contains its block.
//!
//! Guarantees: a contract cannot cause an answer other than the four of [`AnswerStatus`], or one larger than
//! `super::VALUE_BYTES_MAX`. Leaves to others: storing answers, retries.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::{Address, B256, hex};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use logmill_chain::NodeSource;
use logmill_chain::evm::{ErrorClass, classify_message};
use logmill_io::Clock;

use super::{AnswerStatus, VALUE_BYTES_MAX};
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSettings {
    /// Gas limit of a call: it bounds the work of a contract, and with it the time of an answer.
    pub gas: u64,
    /// Time limit of a query, over all nodes.
    pub timeout: Duration,
    /// Number of concurrent queries.
    pub concurrent: usize,
    /// How long the newest final block is cached.
    pub final_age: Duration,
}

impl Default for StateSettings {
    fn default() -> Self {
        Self {
            gas: 30_000_000,
            timeout: Duration::from_secs(30),
            concurrent: 4,
            final_age: Duration::from_secs(10),
        }
    }
}

/// A read-only call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub to: Address,
    pub data: Bytes,
}

impl Call {
    /// Calls a function with words as its arguments.
    pub(crate) fn new(to: Address, selector: [u8; 4], words: &[B256]) -> Self {
        let mut data = selector.to_vec();
        words.iter().for_each(|word| data.extend_from_slice(word.as_slice()));
        Self { to, data: data.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateAnswer {
    /// The block whose state was read.
    pub block: u64,
    pub status: AnswerStatus,
    /// The answer, unmodified.
    pub value: Bytes,
}

#[derive(Clone, Debug)]
pub struct StateReader {
    source: Arc<dyn NodeSource>,
    clock: Arc<dyn Clock>,
    settings: StateSettings,
    /// The newest final block, and when it was read, on the monotonic clock.
    newest: Arc<Mutex<Option<(u64, Duration)>>>,
}

impl StateReader {
    pub fn new(
        source: Arc<dyn NodeSource>,
        clock: Arc<dyn Clock>,
        settings: StateSettings,
    ) -> Self {
        Self { source, clock, settings, newest: Arc::default() }
    }

    /// The newest final block, possibly a cached one; the newest of all if none is final yet. Never below `at_least`,
    /// which is known to be final: a contract created there does not exist yet at a block that was cached earlier, or
    /// that a lagging node calls final.
    pub(crate) async fn final_block(&self, at_least: u64) -> Result<u64> {
        let known = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((block, at)) = known
            && block >= at_least
            && self.clock.monotonic().saturating_sub(at) < self.settings.final_age
        {
            return Ok(block);
        }
        let heads = self.in_time("the request for heads", self.source.heads()).await?;
        let block = heads.finalized.unwrap_or(heads.latest).number;
        let known = Some((block, self.clock.monotonic()));
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(block.max(at_least))
    }

    /// A contract's answer to a call, at this block or a newer one.
    pub(crate) async fn call(&self, call: &Call, block: u64) -> Result<StateAnswer> {
        self.ask("eth_call", &self.call_params(call), block, bytes_of).await
    }

    /// The request parameters of a call, as a function of the block.
    fn call_params(&self, call: &Call) -> impl Fn(u64) -> String + Sync + use<> {
        let (to, data) = (call.to, hex::encode_prefixed(&call.data));
        let gas = self.settings.gas;
        move |at: u64| format!(r#"[{{"to":"{to:#x}","data":"{data}","gas":"{gas:#x}"}},"{at:#x}"]"#)
    }

    /// A contract's answer to a call at exactly this block; none if no node has its state any more.
    pub(crate) async fn call_at(&self, call: &Call, block: u64) -> Result<Option<StateAnswer>> {
        self.ask_at("eth_call", &self.call_params(call), block, bytes_of).await
    }

    /// Answers to calls, in order. Each contains its block.
    pub(crate) async fn call_all(&self, calls: &[Call], block: u64) -> Result<Vec<StateAnswer>> {
        let Some((first, rest)) = calls.split_first() else {
            return Ok(Vec::new());
        };
        let first = self.call(first, block).await?;
        // If the block's state is gone for one call, it is gone for all.
        let at = first.block;
        let rest: Vec<StateAnswer> = stream::iter(rest.to_vec())
            .map(|call| async move { self.call(&call, at).await })
            .buffered(self.settings.concurrent.max(1))
            .try_collect()
            .await?;
        Ok([first].into_iter().chain(rest).collect())
    }

    pub(crate) async fn code(&self, address: Address, block: u64) -> Result<StateAnswer> {
        let params = |at: u64| format!(r#"["{address:#x}","{at:#x}"]"#);
        self.ask("eth_getCode", &params, block, bytes_of).await
    }

    /// An account's balance of the native asset, as a word.
    pub async fn balance(&self, address: Address, block: u64) -> Result<StateAnswer> {
        let params = |at: u64| format!(r#"["{address:#x}","{at:#x}"]"#);
        self.ask("eth_getBalance", &params, block, word_of).await
    }

    async fn ask(
        &self,
        method: &'static str,
        params: &(impl Fn(u64) -> String + Sync),
        block: u64,
        read: fn(&str) -> Option<DecodedAnswer>,
    ) -> Result<StateAnswer> {
        if let Some(answer) = self.ask_at(method, params, block, read).await? {
            return Ok(answer);
        }
        let heads = self.in_time("the request for heads", self.source.heads()).await?;
        let newer = [heads.finalized, Some(heads.latest)].into_iter().flatten();
        for at in newer.map(|head| head.number).filter(|number| *number > block) {
            if let Some(answer) = self.ask_at(method, params, at, read).await? {
                tracing::debug!(
                    method,
                    block,
                    at,
                    "no node has the state of the block, used a newer one"
                );
                return Ok(answer);
            }
        }
        Err(no_answer(method, "no node has the state of the block, or of a newer one"))
    }

    /// Queries one block; none if its state is gone.
    async fn ask_at(
        &self,
        method: &'static str,
        params: &(impl Fn(u64) -> String + Sync),
        block: u64,
        read: fn(&str) -> Option<DecodedAnswer>,
    ) -> Result<Option<StateAnswer>> {
        let params = params(block);
        let answer = match self.in_time(method, self.source.pass(method, &params)).await {
            Ok(json) => {
                read(&json).ok_or_else(|| no_answer(method, "the answer cannot be decoded"))?
            }
            Err(Error::Chain(logmill_chain::Error::Rpc { code, message, .. })) => {
                match classify_message(code, &message) {
                    ErrorClass::Reverted => (AnswerStatus::Reverted, Bytes::from(message)),
                    ErrorClass::Pruned => return Ok(None),
                    _ => return Err(no_answer(method, &format!("{message} (code {code})"))),
                }
            }
            Err(Error::Chain(logmill_chain::Error::Pruned { .. })) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (status, value) = answer;
        Ok(Some(StateAnswer { block, status, value }))
    }

    async fn in_time<T>(
        &self,
        request: &'static str,
        work: impl Future<Output = logmill_chain::Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done?),
            () = self.clock.sleep(self.settings.timeout) => {
                Err(no_answer(request, "no node answered in time"))
            }
        }
    }
}

type DecodedAnswer = (AnswerStatus, Bytes);

/// Decodes hexadecimal bytes in JSON; none if it is anything else.
fn bytes_of(json: &str) -> Option<DecodedAnswer> {
    // Two digits per byte, a prefix and quotes: anything longer need not be decoded.
    if json.len() > 2 * VALUE_BYTES_MAX + 4 {
        return Some((AnswerStatus::TooLarge, Bytes::new()));
    }
    let text: Cow<'_, str> = serde_json::from_str::<JsonText<'_>>(json).ok()?.0;
    let digits = text.strip_prefix("0x")?;
    match hex::decode(digits).ok()? {
        bytes if bytes.is_empty() => Some((AnswerStatus::Empty, Bytes::new())),
        bytes => Some((AnswerStatus::Ok, bytes.into())),
    }
}

/// Decodes a hexadecimal number in JSON to a word; none if it is anything else.
fn word_of(json: &str) -> Option<DecodedAnswer> {
    let text: Cow<'_, str> = serde_json::from_str::<JsonText<'_>>(json).ok()?.0;
    let digits = text.strip_prefix("0x").filter(|digits| (1..=64).contains(&digits.len()))?;
    let word = hex::decode(format!("{digits:0>64}")).ok()?;
    Some((AnswerStatus::Ok, word.into()))
}

#[derive(serde::Deserialize)]
struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

fn no_answer(request: &str, why: &str) -> Error {
    Error::Unanswered { what: format!("an answer to {request}"), why: why.to_owned() }
}

#[cfg(test)]
mod tests;
