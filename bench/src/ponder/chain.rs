//! A token on anvil, whose transfers move real balances, and the final balances.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::settings::Settings;
use crate::rpc::chain::number;
use crate::rpc::server::Client;

/// The token of the tests: `scatter` mints, burns and moves it among numbered accounts.
const COIN: &str = include_str!("../../../crates/logmill/tests/contracts/Coin.json");
/// `scatter(uint256,uint256,uint256)`: number of transfers, number of accounts, seed.
const SCATTER: &str = "922bd27a";
/// `balanceOf(address)`.
const BALANCE_OF: &str = "70a08231";
/// Gas limit of a transaction, below the 2^24 of newer rules.
const GAS: &str = "0xf00000";
/// Blocks without transfers at the end: Ponder treats a block as final once 30 are on top of it.
const EMPTY_BLOCKS: u64 = 40;
/// Calls per batch.
const BATCH: usize = 500;

/// A filled chain.
#[derive(Clone, Debug)]
pub struct TokenChain {
    /// Address of the token.
    pub coin: String,
    pub transfers: u64,
    /// Last block with transfers.
    pub last: u64,
    pub head: u64,
    /// Balances according to the contract, without empty ones.
    pub balances: Balances,
}

/// Balances by lowercase address.
pub type Balances = BTreeMap<String, u128>;

pub async fn fill(client: &mut Client, settings: &Settings) -> anyhow::Result<TokenChain> {
    let accounts = client.call("eth_accounts", json!([])).await?;
    let accounts = accounts.as_array().context("no accounts")?;
    let senders = usize::try_from(settings.transactions)?;
    ensure!((1..=accounts.len()).contains(&senders), "1 to {} transactions", accounts.len());
    // Otherwise anvil would mine at some time after a transaction arrives.
    client.call("evm_setAutomine", json!([false])).await?;
    let coin = deploy(client, &accounts[0]).await?;
    for block in 0..settings.blocks {
        // One account per transaction: nonces of the same account would race.
        let calls = accounts[..senders].iter().zip(block * settings.transactions..);
        let calls = calls.map(|(from, seed)| {
            let Settings { transfers, holders, .. } = settings;
            let data = format!("0x{SCATTER}{transfers:064x}{holders:064x}{seed:064x}");
            let call = json!([{"from": from, "to": coin, "gas": GAS, "data": data}]);
            ("eth_sendTransaction", call)
        });
        client.batch(calls.collect()).await?;
        client.call("evm_mine", json!([])).await?;
    }
    let last = number(&client.call("eth_blockNumber", json!([])).await?)?;
    client.call("anvil_mine", json!([format!("{EMPTY_BLOCKS:#x}")])).await?;
    let head = number(&client.call("eth_blockNumber", json!([])).await?)?;
    ensure!(head == last + EMPTY_BLOCKS, "the head is {head}, with transfers up to {last}");
    let balances = balances(client, &coin, settings.holders).await?;
    ensure!(!balances.is_empty(), "no account holds the token");
    let transfers = settings.blocks * settings.transactions * settings.transfers;
    Ok(TokenChain { coin, transfers, last, head, balances })
}

async fn deploy(client: &mut Client, from: &Value) -> anyhow::Result<String> {
    let build: Value = serde_json::from_str(COIN)?;
    let transaction = json!([{"from": from, "data": build["bytecode"], "gas": GAS}]);
    let hash = client.call("eth_sendTransaction", transaction).await?;
    client.call("evm_mine", json!([])).await?;
    let receipt = client.call("eth_getTransactionReceipt", json!([hash])).await?;
    let address = receipt["contractAddress"].as_str().context("no contract was created")?;
    Ok(address.to_lowercase())
}

/// The balances according to the contract.
async fn balances(client: &mut Client, coin: &str, holders: u64) -> anyhow::Result<Balances> {
    let mut balances = Balances::new();
    let numbers: Vec<u64> = (1..=holders).collect();
    for some in numbers.chunks(BATCH) {
        let calls = some.iter().map(|holder| {
            let data = format!("0x{BALANCE_OF}{holder:064x}");
            ("eth_call", json!([{"to": coin, "data": data}, "latest"]))
        });
        let answers = client.batch(calls.collect()).await?;
        for (holder, answer) in some.iter().zip(answers) {
            let word = answer.as_str().and_then(|word| word.strip_prefix("0x"));
            let word = word.context("no balance")?;
            let balance = u128::from_str_radix(word, 16).context("a balance beyond 128 bits")?;
            if balance > 0 {
                balances.insert(format!("0x{holder:040x}"), balance);
            }
        }
    }
    Ok(balances)
}

impl TokenChain {
    /// Fails if an indexer has a different number of transfers, or a different balance of any account than the
    /// contract. Accounts with a zero balance may be missing.
    pub fn check(
        &self,
        engine: &str,
        transfers: u64,
        found: Vec<(String, String)>,
    ) -> anyhow::Result<()> {
        let made = self.transfers;
        ensure!(transfers == made, "{engine} has {transfers} transfers of {made}");
        let mut balances = Balances::new();
        for (address, balance) in found {
            let value = balance.parse::<u128>();
            let value = value.with_context(|| format!("{engine}: {address} has {balance}"))?;
            if value > 0 {
                balances.insert(address.to_lowercase(), value);
            }
        }
        let of = |balances: &Balances, address: &String| balances.get(address).copied();
        let mut all = self.balances.keys().chain(balances.keys());
        if let Some(wrong) = all.find(|one| of(&self.balances, one) != of(&balances, one)) {
            let (theirs, right) = (of(&balances, wrong), of(&self.balances, wrong));
            anyhow::bail!("{engine}: {wrong} has {theirs:?}, but {right:?} in the contract");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_balance_or_number_of_transfers_is_refused() {
        let filled = TokenChain {
            coin: String::new(),
            transfers: 2,
            last: 1,
            head: 1,
            balances: [("0xa".to_owned(), 5)].into(),
        };
        let check = |transfers, found: &[(&str, &str)]| {
            let owned = found.iter().map(|(of, has)| ((*of).to_owned(), (*has).to_owned()));
            filled.check("x", transfers, owned.collect()).is_ok()
        };
        assert!(check(2, &[("0xA", "5")]));
        assert!(check(2, &[("0xa", "5"), ("0xb", "0")]));
        assert!(!check(3, &[("0xa", "5")]));
        assert!(!check(2, &[("0xa", "4")]));
        assert!(!check(2, &[("0xa", "5"), ("0xb", "1")]));
        assert!(!check(2, &[]));
        assert!(!check(2, &[("0xa", "5"), ("0xb", "-1")]));
    }
}
