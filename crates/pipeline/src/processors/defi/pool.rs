//! What a log can report about a pool.
//!
//! Guarantees: none beyond the types. Leaves to others: decoding logs, rows.

use alloy_primitives::{Address, B256, I256, U256};
use bytes::Bytes;

/// Contents of a pool's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolLog {
    pub(super) dex: &'static str,
    pub(super) pair: PairId,
    /// More than one if more than two assets moved.
    pub(super) events: Vec<Event>,
    pub(super) state: Option<State>,
    pub(super) created: Option<PoolCreation>,
}

impl PoolLog {
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

    pub(super) fn created(self, created: PoolCreation) -> Self {
        Self { created: Some(created), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairId {
    /// The pool is a contract of its own.
    Contract(Address),
    /// The pool is one of many in a contract.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    /// The account named in the log.
    pub(super) account: Address,
    pub(super) assets: [AssetMovement; 2],
    pub(super) sqrt_price_x96: Option<U256>,
    pub(super) liquidity: Option<U256>,
}

impl Event {
    pub(super) fn new(kind: EventKind, account: Address, assets: [AssetMovement; 2]) -> Self {
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

/// Movement of an asset, from the pool's point of view; none where the log does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AssetMovement {
    /// Number of the coin in the pool, if the order of assets does not determine it.
    pub(super) index: Option<i64>,
    pub(super) into: Option<U256>,
    pub(super) out: Option<U256>,
}

impl AssetMovement {
    pub(super) fn new(into: U256, out: U256) -> Self {
        Self { index: None, into: Some(into), out: Some(out) }
    }

    /// A positive amount came into the pool.
    pub(super) fn of_pool(delta: I256) -> Self {
        let (sign, size) = delta.into_sign_and_abs();
        if sign.is_negative() { Self::new(U256::ZERO, size) } else { Self::new(size, U256::ZERO) }
    }

    /// A positive amount went to the swapper, out of the pool.
    pub(super) fn of_swapper(delta: I256) -> Self {
        let Self { into, out, index } = Self::of_pool(delta);
        Self { into: out, out: into, index }
    }

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolCreation {
    pub(super) assets: [Address; 2],
    /// In hundredths of a basis point.
    pub(super) fee: Option<i64>,
    pub(super) tick_spacing: Option<i64>,
    pub(super) hooks: Option<Address>,
}
