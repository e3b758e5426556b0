//! `StateReader`: asks a node for the state of contracts at a block.
//!
//! A contract is a stranger: it may fail on purpose, answer megabytes, or compute for as long as it is let. So a call
//! has a limit of gas and of time, and an answer one of size. That a contract fails is its answer, and is kept; that
//! a node gives none is no answer, and is asked for again.
//!
//! Most nodes forget old state. Where the state of a block is gone, the newest final block is asked about instead, then
//! the newest of all; an answer says of which block it is.
//!
//! Guarantees: no contract can make an answer that is not one of the four of [`Status`], or one that is larger than
//! [`super::VALUE_BYTES_MAX`]. Leaves to others: keeping answers, trying again.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy_primitives::{Address, B256, hex};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use logmill_chain::ChainSource;
use logmill_chain::evm::{Meaning, meaning_of};
use logmill_io::Clock;

use super::{Status, VALUE_BYTES_MAX};
use crate::error::{Error, Result};

/// How a node is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSettings {
    /// The most gas of a call: what bounds the work of a contract, and with it the time of an answer.
    pub gas: u64,
    /// The longest that one question may take, over all nodes.
    pub timeout: Duration,
    /// How many questions are asked at once.
    pub concurrent: usize,
    /// For how long the newest final block is taken for that.
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

/// A call that changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which contract.
    pub to: Address,
    /// What it is told.
    pub data: Bytes,
}

impl Call {
    /// A call of a function with words as its arguments.
    pub fn new(to: Address, selector: [u8; 4], words: &[B256]) -> Self {
        let mut data = selector.to_vec();
        words.iter().for_each(|word| data.extend_from_slice(word.as_slice()));
        Self { to, data: data.into() }
    }
}

/// What was answered, and at which block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateAnswer {
    /// The block that was asked about.
    pub block: u64,
    /// What sort of answer.
    pub status: Status,
    /// The answer as it came.
    pub value: Bytes,
}

/// Asks for state.
#[derive(Clone, Debug)]
pub struct StateReader {
    source: Arc<dyn ChainSource>,
    clock: Arc<dyn Clock>,
    settings: StateSettings,
    /// The newest final block, and when it was that, on the monotonic clock.
    newest: Arc<Mutex<Option<(u64, Duration)>>>,
}

impl StateReader {
    /// Asks this chain.
    pub fn new(
        source: Arc<dyn ChainSource>,
        clock: Arc<dyn Clock>,
        settings: StateSettings,
    ) -> Self {
        Self { source, clock, settings, newest: Arc::default() }
    }

    /// The newest block whose state can not be replaced any more, or one of a moment ago; the newest of all if none
    /// is final yet. Never one below `at_least`, which is known to be final: what came to be there is not yet in what
    /// a moment ago, or a node that lags, calls final.
    pub async fn final_block(&self, at_least: u64) -> Result<u64> {
        let known = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((block, at)) = known
            && block >= at_least
            && self.clock.monotonic().saturating_sub(at) < self.settings.final_age
        {
            return Ok(block);
        }
        let heads = self.in_time("where the chain is", self.source.heads()).await?;
        let block = heads.finalized.unwrap_or(heads.latest).number;
        let known = Some((block, self.clock.monotonic()));
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(block.max(at_least))
    }

    /// What a contract answers to a call.
    pub async fn call(&self, call: &Call, block: u64) -> Result<StateAnswer> {
        let (to, data) = (call.to, hex::encode_prefixed(&call.data));
        let gas = self.settings.gas;
        let params =
            |at: u64| format!(r#"[{{"to":"{to:#x}","data":"{data}","gas":"{gas:#x}"}},"{at:#x}"]"#);
        self.ask("eth_call", &params, block, bytes_of).await
    }

    /// What contracts answer to calls, in order. Each says of which block it is.
    pub async fn call_all(&self, calls: &[Call], block: u64) -> Result<Vec<StateAnswer>> {
        let Some((first, rest)) = calls.split_first() else {
            return Ok(Vec::new());
        };
        let first = self.call(first, block).await?;
        // Where the state of the block is gone for one, it is for all.
        let at = first.block;
        let rest: Vec<StateAnswer> = stream::iter(rest.to_vec())
            .map(|call| async move { self.call(&call, at).await })
            .buffered(self.settings.concurrent.max(1))
            .try_collect()
            .await?;
        Ok([first].into_iter().chain(rest).collect())
    }

    /// The code of a contract.
    pub async fn code(&self, address: Address, block: u64) -> Result<StateAnswer> {
        let params = |at: u64| format!(r#"["{address:#x}","{at:#x}"]"#);
        self.ask("eth_getCode", &params, block, bytes_of).await
    }

    /// What an account has of the chain's own asset, as a word.
    pub async fn balance(&self, address: Address, block: u64) -> Result<StateAnswer> {
        let params = |at: u64| format!(r#"["{address:#x}","{at:#x}"]"#);
        self.ask("eth_getBalance", &params, block, word_of).await
    }

    async fn ask(
        &self,
        method: &'static str,
        params: &(impl Fn(u64) -> String + Sync),
        block: u64,
        read: fn(&str) -> Option<Said>,
    ) -> Result<StateAnswer> {
        if let Some(answer) = self.ask_at(method, params, block, read).await? {
            return Ok(answer);
        }
        let heads = self.in_time("where the chain is", self.source.heads()).await?;
        let newer = [heads.finalized, Some(heads.latest)].into_iter().flatten();
        for at in newer.map(|head| head.number).filter(|number| *number > block) {
            if let Some(answer) = self.ask_at(method, params, at, read).await? {
                tracing::debug!(method, block, at, "the state of the block is gone");
                return Ok(answer);
            }
        }
        Err(unanswered(method, "no node has the state of the block, or of a newer one"))
    }

    /// Asks about one block; none if its state is gone.
    async fn ask_at(
        &self,
        method: &'static str,
        params: &(impl Fn(u64) -> String + Sync),
        block: u64,
        read: fn(&str) -> Option<Said>,
    ) -> Result<Option<StateAnswer>> {
        let params = params(block);
        let said = match self.in_time(method, self.source.pass(method, &params)).await {
            Ok(json) => read(&json).ok_or_else(|| unanswered(method, "an answer of no sense"))?,
            Err(Error::Chain(logmill_chain::Error::Rpc { code, message })) => {
                match meaning_of(code, &message) {
                    Meaning::Reverted => (Status::Reverted, Bytes::from(message)),
                    Meaning::Pruned => return Ok(None),
                    _ => return Err(unanswered(method, &format!("{message} (code {code})"))),
                }
            }
            Err(Error::Chain(logmill_chain::Error::Pruned { .. })) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (status, value) = said;
        Ok(Some(StateAnswer { block, status, value }))
    }

    async fn in_time<T>(
        &self,
        what: &'static str,
        work: impl Future<Output = logmill_chain::Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done?),
            () = self.clock.sleep(self.settings.timeout) => {
                Err(unanswered(what, "no answer in time"))
            }
        }
    }
}

/// What sort of answer, and the answer.
type Said = (Status, Bytes);

/// Bytes in hexadecimal, as JSON; none if it is something else.
fn bytes_of(json: &str) -> Option<Said> {
    // Two digits a byte, a prefix, and quotes: what is longer need not be read.
    if json.len() > 2 * VALUE_BYTES_MAX + 4 {
        return Some((Status::TooLarge, Bytes::new()));
    }
    let text: Cow<'_, str> = serde_json::from_str::<Text<'_>>(json).ok()?.0;
    let digits = text.strip_prefix("0x")?;
    match hex::decode(digits).ok()? {
        bytes if bytes.is_empty() => Some((Status::Empty, Bytes::new())),
        bytes => Some((Status::Ok, bytes.into())),
    }
}

/// A number in hexadecimal, as JSON, as a word; none if it is something else.
fn word_of(json: &str) -> Option<Said> {
    let text: Cow<'_, str> = serde_json::from_str::<Text<'_>>(json).ok()?.0;
    let digits = text.strip_prefix("0x").filter(|digits| (1..=64).contains(&digits.len()))?;
    let word = hex::decode(format!("{digits:0>64}")).ok()?;
    Some((Status::Ok, word.into()))
}

#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn unanswered(what: &str, why: &str) -> Error {
    Error::Unanswered { what: what.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests;
