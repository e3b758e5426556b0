//! The participants of a simulated chain: accounts, wallets, tokens, collections, pools, integrators.
//!
//! Guarantees: every address follows from the seed and a rank; low ranks are the most active. Leaves to others:
//! what the participants do.

use alloy_primitives::{Address, address};

use super::draw::{self, Draw};
use super::shape::Shape;
use super::sign::{Account, Signers};

/// Wrapped ether, the contract with the most logs.
pub const WETH: Address = address!("0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2");
/// The contract that collects fees for integrators.
pub const FEE_COLLECTOR: Address = address!("0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9");

const TOKENS: u64 = 1;
const COLLECTIONS: u64 = 2;
const POOLS: u64 = 3;
const WALLETS: u64 = 4;
const INTEGRATORS: u64 = 5;
const ROUTERS: u64 = 6;
const OTHERS: u64 = 8;

/// Number of routers, and of contracts with unknown events.
const ROUTERS_COUNT: u32 = 4;
const OTHERS_COUNT: u32 = 64;

/// How many of 1 024 drawn tokens are wrapped ether.
const WETH_SHARE: u64 = 260;

#[derive(Clone, Debug)]
pub struct Actors {
    seed: u64,
    shape: Shape,
    signers: Signers,
}

impl Actors {
    pub(super) fn new(seed: u64, shape: Shape) -> Self {
        Self { seed, shape, signers: Signers::new(seed, shape.accounts) }
    }

    /// The token with this rank; rank 0 is wrapped ether.
    pub fn token(&self, rank: u64) -> Address {
        if rank == 0 { WETH } else { self.name(TOKENS, rank) }
    }

    /// The NFT collection with this rank: ERC-721 for even ranks, ERC-1155 for odd ones.
    pub fn collection(&self, rank: u64) -> Address {
        self.name(COLLECTIONS, rank)
    }

    /// The pool with this rank, and its two tokens in order: Uniswap V2 for even ranks, V3 for odd ones.
    pub fn pool(&self, rank: u64) -> (Address, [Address; 2]) {
        let tokens = u64::from(self.shape.tokens.max(1));
        let mut pair = [self.token(0), self.token(1 + rank % tokens)];
        pair.sort();
        (self.name(POOLS, rank), pair)
    }

    pub fn integrator(&self, rank: u64) -> Address {
        self.name(INTEGRATORS, rank)
    }

    /// The account with this rank; accounts send transactions.
    pub fn account(&self, rank: u64) -> Address {
        self.signers.account(rank).address
    }

    pub fn is_contract(&self, address: Address) -> bool {
        let shape = &self.shape;
        let ranks = |count: u32| 0..=u64::from(count);
        [FEE_COLLECTOR, WETH].contains(&address)
            || ranks(shape.tokens)
                .any(|rank| [self.token(rank), self.collection(rank)].contains(&address))
            || ranks(shape.pools).any(|rank| self.name(POOLS, rank) == address)
            || ranks(ROUTERS_COUNT).any(|rank| self.name(ROUTERS, rank) == address)
            || ranks(OTHERS_COUNT).any(|rank| self.name(OTHERS, rank) == address)
    }

    pub(super) fn signers(&self) -> &Signers {
        &self.signers
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn draw_sender(&self, draw: &mut Draw) -> Account {
        self.signers.account(draw.rank(self.shape.accounts))
    }

    /// Draws an account or a wallet that only receives, with equal chances.
    pub(super) fn draw_party(&self, draw: &mut Draw) -> Address {
        if draw.chance(512) {
            return self.draw_sender(draw).address;
        }
        self.name(WALLETS, draw.rank(self.shape.wallets))
    }

    pub(super) fn draw_token(&self, draw: &mut Draw) -> Address {
        if draw.chance(WETH_SHARE) {
            return WETH;
        }
        self.token(1 + draw.rank(self.shape.tokens))
    }

    /// Draws an ERC-1155 collection if `multi`, otherwise an ERC-721 one.
    pub(super) fn draw_collection(&self, draw: &mut Draw, multi: bool) -> Address {
        self.collection(draw.rank(self.shape.tokens) / 2 * 2 + u64::from(multi))
    }

    /// Draws a V3 pool if `v3`, otherwise a V2 one.
    pub(super) fn draw_pool(&self, draw: &mut Draw, v3: bool) -> (Address, [Address; 2]) {
        self.pool(draw.rank(self.shape.pools) / 2 * 2 + u64::from(v3))
    }

    pub(super) fn draw_integrator(&self, draw: &mut Draw) -> Address {
        self.integrator(draw.rank(self.shape.integrators))
    }

    pub(super) fn draw_router(&self, draw: &mut Draw) -> Address {
        self.name(ROUTERS, draw.rank(ROUTERS_COUNT))
    }

    /// Draws a contract with unknown events, and its number.
    pub(super) fn draw_other(&self, draw: &mut Draw) -> (Address, u64) {
        let rank = draw.rank(OTHERS_COUNT);
        (self.name(OTHERS, rank), rank)
    }

    fn name(&self, kind: u64, rank: u64) -> Address {
        draw::address(self.seed, kind, rank)
    }
}
