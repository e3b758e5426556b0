//! The requests, and checks of the answers.

use anyhow::{Context, ensure};
use finalized_log_index::Address;
use logmill_io::Amount;
use serde_json::Value;

use super::draw::{DrawnTransfer, Facts};

/// Default and maximum number of items on a page.
const PAGE: u64 = 20;
const PAGE_MAX: u64 = 100;

/// An endpoint of the read API, with a variant of its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    pub name: &'static str,
    /// Path relative to that of the chain.
    path: fn(&DrawnTransfer) -> String,
    check: fn(&DrawnTransfer, &Facts, &Value) -> anyhow::Result<()>,
}

pub static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        name: "account",
        path: |drawn| format!("accounts/{:#x}", drawn.account),
        check: account,
    },
    Endpoint {
        name: "account_transactions",
        path: |drawn| format!("accounts/{:#x}/transactions", drawn.account),
        check: account_transactions,
    },
    Endpoint {
        name: "account_transfers",
        path: |drawn| format!("accounts/{:#x}/transfers", drawn.account),
        check: account_transfers,
    },
    Endpoint {
        name: "account_holdings",
        path: |drawn| format!("accounts/{:#x}/holdings", drawn.account),
        check: account_holdings,
    },
    Endpoint {
        name: "account_balances",
        path: |drawn| format!("accounts/{:#x}/balances?token={:#x}", drawn.account, drawn.token),
        check: account_balances,
    },
    Endpoint { name: "token", path: |drawn| format!("tokens/{:#x}", drawn.token), check: token },
    Endpoint {
        name: "token_holders",
        path: |drawn| format!("tokens/{:#x}/holders", drawn.token),
        check: token_holders,
    },
    Endpoint {
        name: "token_transfers",
        path: |drawn| format!("tokens/{:#x}/transfers", drawn.token),
        check: |drawn, facts, answer| token_transfers(drawn, facts, answer, PAGE),
    },
    Endpoint {
        name: "token_transfers_limit_100",
        path: |drawn| format!("tokens/{:#x}/transfers?limit={PAGE_MAX}", drawn.token),
        check: |drawn, facts, answer| token_transfers(drawn, facts, answer, PAGE_MAX),
    },
    Endpoint {
        name: "transaction",
        path: |drawn| format!("transactions/{:#x}", drawn.hash),
        check: transaction,
    },
    Endpoint {
        name: "block_transactions",
        path: |drawn| format!("blocks/{}/transactions", drawn.block),
        check: block_transactions,
    },
    Endpoint { name: "fees", path: |drawn| format!("fees?toBlock={}", drawn.block), check: fees },
];

impl Endpoint {
    /// Full path of the request about a transfer.
    pub fn path(&self, chain_id: u64, drawn: &DrawnTransfer) -> String {
        format!("/api/v1/{chain_id}/{}", (self.path)(drawn))
    }

    /// Fails if an answer does not agree with the tables.
    pub fn check(
        &self,
        drawn: &DrawnTransfer,
        facts: &Facts,
        answer: &Value,
    ) -> anyhow::Result<()> {
        let name = self.name;
        (self.check)(drawn, facts, answer).with_context(|| format!("{name} answers {answer}"))
    }
}

fn account(drawn: &DrawnTransfer, facts: &Facts, answer: &Value) -> anyhow::Result<()> {
    same("address", address(&answer["address"])?, drawn.account)?;
    let transactions = answer["stats"]["transactionCount"].as_u64();
    same("transactions", transactions, Some(facts.transactions))
}

fn account_transactions(_: &DrawnTransfer, facts: &Facts, answer: &Value) -> anyhow::Result<()> {
    newest_first(answer)?;
    same("items", items(answer)?.len() as u64, facts.transactions.min(PAGE))?;
    let whole = |item: &Value| item["transaction"]["hash"].is_string();
    ensure!(items(answer)?.iter().all(whole), "a transaction is missing");
    Ok(())
}

fn account_transfers(drawn: &DrawnTransfer, _: &Facts, answer: &Value) -> anyhow::Result<()> {
    newest_first(answer)?;
    ensure!(!items(answer)?.is_empty(), "an account of a transfer has none");
    for item in items(answer)? {
        let (from, to) = (address(&item["from"])?, address(&item["to"])?);
        ensure!([from, to].contains(&drawn.account), "a transfer of others: {item}");
    }
    Ok(())
}

fn account_holdings(drawn: &DrawnTransfer, facts: &Facts, answer: &Value) -> anyhow::Result<()> {
    let is_it = |item: &&Value| address(&item["token"]).is_ok_and(|of| of == drawn.token);
    match items(answer)?.iter().find(is_it) {
        Some(item) => same("delta", amount(&item["delta"])?, facts.balance),
        // Then it is on another page.
        None => {
            ensure!(answer["next"].is_string(), "a holding is missing");
            Ok(())
        }
    }
}

fn account_balances(_: &DrawnTransfer, facts: &Facts, answer: &Value) -> anyhow::Result<()> {
    let newest = items(answer)?.first().context("no day")?;
    same("sum", amount(&newest["sum"])?, facts.balance)
}

fn token(drawn: &DrawnTransfer, facts: &Facts, answer: &Value) -> anyhow::Result<()> {
    same("address", address(&answer["address"])?, drawn.token)?;
    same("transfers", answer["transferCount"].as_u64(), Some(facts.transfers))
}

fn token_holders(_: &DrawnTransfer, facts: &Facts, answer: &Value) -> anyhow::Result<()> {
    let held = items(answer)?.iter().map(|item| amount(&item["delta"]));
    let held = held.collect::<Result<Vec<Amount>, _>>()?;
    ensure!(held.is_sorted_by(|a, b| a >= b), "not the largest balance first");
    let most = Some(facts.most).filter(|most| *most > Amount::ZERO);
    same("the largest balance", held.first().copied(), most)
}

fn token_transfers(
    drawn: &DrawnTransfer,
    facts: &Facts,
    answer: &Value,
    page: u64,
) -> anyhow::Result<()> {
    newest_first(answer)?;
    same("items", items(answer)?.len() as u64, facts.transfers.min(page))?;
    for item in items(answer)? {
        same("token", address(&item["token"])?, drawn.token)?;
    }
    Ok(())
}

fn transaction(drawn: &DrawnTransfer, _: &Facts, answer: &Value) -> anyhow::Result<()> {
    same("hash", answer["hash"].as_str(), Some(&*format!("{:#x}", drawn.hash)))?;
    same("block", answer["blockNumber"].as_u64(), Some(drawn.block))?;
    ensure!(answer["derived"] == true, "not derived");
    let transfers = answer["tokenTransfers"].as_array().context("no transfers")?;
    ensure!(!transfers.is_empty(), "the transfer is missing");
    Ok(())
}

fn block_transactions(drawn: &DrawnTransfer, _: &Facts, answer: &Value) -> anyhow::Result<()> {
    let items = items(answer)?;
    ensure!(!items.is_empty(), "a block of a transfer has no transaction");
    let is_of_it = |item: &Value| item["blockNumber"].as_u64() == Some(drawn.block);
    ensure!(items.iter().all(is_of_it), "a transaction of another block");
    Ok(())
}

fn fees(drawn: &DrawnTransfer, _: &Facts, answer: &Value) -> anyhow::Result<()> {
    newest_first(answer)?;
    let is_below = |item: &Value| item["blockNumber"].as_u64() <= Some(drawn.block);
    ensure!(items(answer)?.iter().all(is_below), "a fee of a later block");
    Ok(())
}

fn items(answer: &Value) -> anyhow::Result<&Vec<Value>> {
    answer["items"].as_array().context("no items")
}

fn newest_first(answer: &Value) -> anyhow::Result<()> {
    let blocks = items(answer)?.iter().map(|item| item["blockNumber"].as_u64());
    let blocks: Option<Vec<u64>> = blocks.collect();
    let blocks = blocks.context("an item without a block")?;
    ensure!(blocks.is_sorted_by(|a, b| a >= b), "not the newest first");
    Ok(())
}

fn address(value: &Value) -> anyhow::Result<Address> {
    Ok(value.as_str().context("no address")?.parse()?)
}

fn amount(value: &Value) -> anyhow::Result<Amount> {
    Ok(value.as_str().context("no amount")?.parse()?)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, right: T) -> anyhow::Result<()> {
    ensure!(found == right, "{what} is {found:?}, expected {right:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pages_must_have_the_newest_first() {
        let page = |blocks: &[u64]| {
            let items = blocks.iter().map(|block| json!({"blockNumber": block}));
            newest_first(&json!({"items": items.collect::<Vec<_>>()})).is_ok()
        };
        assert!(page(&[]) && page(&[3, 3, 1]));
        assert!(!page(&[1, 2]));
        assert!(newest_first(&json!({"items": [{}]})).is_err());
        assert!(newest_first(&json!({})).is_err());
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]));
    }
}
