//! What a log can say of a pool.
//!
//! Guarantees: none beyond the types. Leaves to others: reading logs, rows.

use alloy_primitives::{Address, B256, I256, U256};
use bytes::Bytes;

/// What a log says of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) dex: &'static str,
    pub(super) pair: PairId,
    /// What happened; more than one where two assets are not enough.
    pub(super) events: Vec<Event>,
    pub(super) state: Option<State>,
    pub(super) created: Option<Created>,
}

impl Said {
    pub(super) fn new(dex: &'static str, pair: PairId) -> Self {
        Self { dex, pair, events: Vec::new(), state: None, created: None }
    }

    pub(super) fn event(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    pub(super) fn state(self, state: State) -> Self {
        Self { state: Some(state), ..self }
    }

    pub(super) fn created(self, created: Created) -> Self {
        Self { created: Some(created), ..self }
    }
}

/// The name of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairId {
    /// The pool is a contract.
    Contract(Address),
    /// The pool is one of many of a contract.
    Id(B256),
}

impl PairId {
    pub(super) fn bytes(&self) -> Bytes {
        match self {
            Self::Contract(address) => Bytes::copy_from_slice(address.as_slice()),
            Self::Id(id) => Bytes::copy_from_slice(id.as_slice()),
        }
    }
}

/// Something that happened in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    /// Whom the log names.
    pub(super) account: Address,
    pub(super) assets: [Moved; 2],
    pub(super) sqrt_price_x96: Option<U256>,
    pub(super) liquidity: Option<U256>,
}

impl Event {
    pub(super) fn new(kind: EventKind, account: Address, assets: [Moved; 2]) -> Self {
        Self { kind, account, assets, sqrt_price_x96: None, liquidity: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Swap,
    AddLiquidity,
    RemoveLiquidity,
}

impl EventKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Swap => "Swap",
            Self::AddLiquidity => "AddLiquidity",
            Self::RemoveLiquidity => "RemoveLiquidity",
        }
    }
}

/// What moved of an asset, seen from the pool; nothing where the log does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// Which coin of the pool it is, where the order of assets does not say so.
    pub(super) index: Option<i64>,
    pub(super) into: Option<U256>,
    pub(super) out: Option<U256>,
}

impl Moved {
    pub(super) fn new(into: U256, out: U256) -> Self {
        Self { index: None, into: Some(into), out: Some(out) }
    }

    /// What is positive came into the pool.
    pub(super) fn of_pool(delta: I256) -> Self {
        let (sign, size) = delta.into_sign_and_abs();
        if sign.is_negative() { Self::new(U256::ZERO, size) } else { Self::new(size, U256::ZERO) }
    }

    /// What is positive came to the swapper, out of the pool.
    pub(super) fn of_swapper(delta: I256) -> Self {
        let Self { into, out, index } = Self::of_pool(delta);
        Self { into: out, out: into, index }
    }

    /// Liquidity that comes or goes.
    pub(super) fn liquidity(kind: EventKind, amount: U256) -> Self {
        match kind {
            EventKind::RemoveLiquidity => Self::new(U256::ZERO, amount),
            EventKind::AddLiquidity | EventKind::Swap => Self::new(amount, U256::ZERO),
        }
    }

    pub(super) fn coin(self, index: i64) -> Self {
        Self { index: Some(index), ..self }
    }
}

/// How a pool is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Reserves([U256; 2]),
    Price(Price),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Price {
    pub(super) sqrt_price_x96: U256,
    pub(super) tick: i64,
    pub(super) liquidity: U256,
}

/// A new pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Created {
    pub(super) assets: [Address; 2],
    /// In hundredths of a basis point.
    pub(super) fee: Option<i64>,
    pub(super) tick_spacing: Option<i64>,
    pub(super) hooks: Option<Address>,
}
