//! A node with tokens of every standard, wrapped ether, fees, and trades.
//!
//! Guarantees: a seed determines the chain, except for block times; balances and owners can be read from the contracts.
//! Leaves to others: the comparisons.

use alloy_primitives::{Address, U256};
use logmill_sim::anvil::{Anvil, transaction};
use serde_json::{Value, json};

use super::anvil_chain::calldata;

/// Number of accounts that hold tokens; their addresses count from 1.
pub(super) const HOLDERS: u64 = 40;
/// Number of deeds, and of kinds of goods; their ids count from 1.
pub(super) const ITEMS: u64 = 60;

/// Addresses of the built-in contracts.
pub(super) const WETH: &str = "0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2";
pub(super) const COLLECTOR: &str = "0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9";

const COIN: &str = include_str!("../../contracts/Coin.json");
const DEED: &str = include_str!("../../contracts/Deed.json");
const GOODS: &str = include_str!("../../contracts/Goods.json");
const WRAPPED: &str = include_str!("../../contracts/Wrapped.json");
const FEE_COLLECTOR: &str = include_str!("../../contracts/FeeCollector.json");
const FEE_FORWARDER: &str = include_str!("../../contracts/FeeForwarder.json");

pub(super) struct Market {
    pub(super) anvil: Anvil,
    pub(super) accounts: Vec<String>,
    pub(super) coin: String,
    pub(super) deed: String,
    pub(super) goods: String,
    pub(super) forwarder: String,
}

impl Market {
    /// A fresh chain with all contracts.
    pub(super) fn new() -> Self {
        Self::at(None)
    }

    /// The same, with the time of the first block in seconds.
    pub(super) fn at(genesis: Option<u64>) -> Self {
        let anvil = Anvil::start_at(genesis);
        let accounts = anvil.accounts();
        let builds = [COIN, DEED, GOODS, FEE_FORWARDER, WRAPPED, FEE_COLLECTOR];
        let sent = builds.map(|build| {
            let build: Value = serde_json::from_str(build).expect("a build");
            anvil.send(&accounts[0], None, build["bytecode"].as_str().expect("the code"))
        });
        anvil.mine(1);
        let [coin, deed, goods, forwarder, wrapped, collector] = sent.map(|hash| {
            let receipt = anvil.rpc().call("eth_getTransactionReceipt", json!([hash]));
            receipt["contractAddress"].as_str().expect("a contract").to_owned()
        });
        // Two of them are placed at their known addresses.
        for (made, known) in [(wrapped, WETH), (collector, COLLECTOR)] {
            let code = anvil.rpc().call("eth_getCode", json!([made, "latest"]));
            anvil.rpc().call("anvil_setCode", json!([known, code]));
        }
        Self { anvil, accounts, coin, deed, goods, forwarder }
    }

    /// Adds blocks with many transactions.
    pub(super) fn grow(&self, blocks: u64, seed: u64) {
        for number in 0..blocks {
            let seed = seed * 1_000 + number;
            let scattered = [
                (&*self.coin, "scatter(uint256,uint256,uint256)", vec![25, HOLDERS, seed]),
                (
                    &*self.deed,
                    "scatter(uint256,uint256,uint256,uint256)",
                    vec![12, ITEMS, HOLDERS, seed],
                ),
                (
                    &*self.goods,
                    "scatter(uint256,uint256,uint256,uint256)",
                    vec![8, ITEMS, HOLDERS, seed],
                ),
                (COLLECTOR, "scatter(uint256,uint256,uint256)", vec![5, HOLDERS, seed]),
                (&*self.forwarder, "scatter(uint256,uint256,uint256)", vec![3, HOLDERS, seed]),
            ];
            for (to, signature, arguments) in scattered {
                self.send(0, to, 0, &calldata(signature, &arguments));
            }
            self.wrap(number);
            self.pay_fees(number);
            self.anvil.mine(1);
        }
    }

    /// Wraps, moves and unwraps ether, by one account in one block.
    fn wrap(&self, number: u64) {
        let person = usize::try_from(number % 4).expect("small");
        self.send(person, WETH, 1_000 + number, &calldata("deposit()", &[]));
        let to = 1 + number % HOLDERS;
        self.send(person, WETH, 0, &calldata("transfer(address,uint256)", &[to, 100]));
        self.send(person, WETH, 0, &calldata("withdraw(uint256)", &[300 + number]));
        // A plain transfer wraps it too.
        self.send(person, WETH, 7, "0x");
    }

    /// Pays and withdraws fees; only payments count.
    fn pay_fees(&self, number: u64) {
        let integrator: u64 = 1 + number % HOLDERS;
        let native = calldata("collectNativeFees(uint256,uint256,address)", &[70, 20, integrator]);
        self.send(1, COLLECTOR, 100, &native);
        self.send(0, &self.coin, 0, &with_address("mint(address,uint256)", &self.accounts[1], 500));
        let collect = "collectTokenFees(address,uint256,uint256,address)";
        let mut data = with_address(collect, &self.coin, 30);
        data.push_str(&calldata("", &[10]).split_off(10));
        data.push_str(&padded(&self.accounts[1]));
        self.send(1, COLLECTOR, 0, &data);
        let token = padded(&self.coin);
        let withdraw = calldata("withdrawIntegratorFees(address)", &[]);
        self.send(1, COLLECTOR, 0, &(withdraw + &token));
    }

    fn send(&self, from: usize, to: &str, value: u64, data: &str) {
        let mut transaction = transaction(&self.accounts[from], Some(to), data);
        transaction["value"] = json!(format!("{value:#x}"));
        self.anvil.rpc().call("eth_sendTransaction", json!([transaction]));
    }

    /// Calls a contract; returns the first word of the answer.
    pub(super) fn ask(&self, to: &str, signature: &str, arguments: &[U256]) -> U256 {
        let mut data = calldata(signature, &[]);
        arguments.iter().for_each(|argument| data.push_str(&format!("{argument:064x}")));
        let call = json!([{"to": to, "data": data}, "latest"]);
        let answer = self.anvil.rpc().call("eth_call", call);
        answer.as_str().and_then(|word| word.parse().ok()).expect("a word")
    }
}

/// An address as an argument.
pub(super) fn word_of(address: Address) -> U256 {
    address.into_word().into()
}

fn padded(address: &str) -> String {
    format!("{:0>64}", address.trim_start_matches("0x"))
}

/// Calldata with an address and a number as arguments.
fn with_address(signature: &str, address: &str, number: u64) -> String {
    format!("{}{}{number:064x}", calldata(signature, &[]), padded(address))
}
