//! Logmill as a separate process, with default settings: every processor is on, unless the same work as Ponder's is
//! requested.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use finalized_log_index::Address;
use logmill_io::sql::{PostgresSettings, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::derive::{Reader, Select, Table, Tables};
use logmill_pipeline::processors::ft_holdings::FT_HOLDINGS;
use serde_json::Value;
use tokio::time::sleep;

use super::chain::TokenChain;
use super::settings::Settings;
use super::{IndexerStopwatch, LOOK_EVERY, Run};
use crate::derive::engine::served_rows;
use crate::postgres::Server as Postgres;
use crate::rpc::server::Server;

/// Id of anvil's chain.
const CHAIN_ID: u64 = 31_337;
/// Name of the database on PostgreSQL.
const DATABASE: &str = "logmill";
/// Processors that produce neither transfers nor balances.
const OTHERS: [&str; 12] = [
    "evm_worker",
    "meta_worker",
    "accounts_worker",
    "nft_ownership_worker",
    "token_metadata_worker",
    "tx_contracts_worker",
    "tx_metrics_worker",
    "staking_worker",
    "defi_worker",
    "daily_balance_worker",
    "fees_worker",
    "nft_item_metadata_worker",
];
/// Time limit.
const DONE_MAX: Duration = Duration::from_secs(600);

/// Indexes everything once, into an empty folder and an empty database, and checks the result.
pub async fn run(
    settings: &Settings,
    chain: &TokenChain,
    node: &Server,
    database: Option<&Postgres>,
    folder: &Path,
) -> anyhow::Result<Run> {
    let mut arguments = vec!["--rpc-url".to_owned(), format!("http://{}", node.address)];
    if let Some(database) = database {
        database.create(DATABASE).await?;
        arguments.extend(["--set".to_owned(), format!("database.url={}", database.url(DATABASE))]);
    }
    if settings.same_work {
        for processor in OTHERS {
            arguments.extend(["--set".to_owned(), format!("derive.processors.{processor}=false")]);
        }
    }
    let watch = IndexerStopwatch::start(node, database)?;
    let mut server =
        Server::logmill(&settings.logmill(), &folder.join("data"), folder, &arguments).await?;
    let started = watch.elapsed();
    loop {
        server.expect_running()?;
        let status = server.get("/status").await?;
        if is_derived(&status, chain.last) {
            break;
        }
        if watch.elapsed() > DONE_MAX {
            bail!("Logmill is not done: {status}");
        }
        sleep(LOOK_EVERY).await;
    }
    let tables = open(database, folder).await?;
    while lacks_indexes(&tables).await? {
        ensure!(watch.elapsed() < DONE_MAX, "Logmill does not make its indexes");
        sleep(LOOK_EVERY).await;
    }
    let mut run = watch.done(&server, started)?;
    server.stop()?;
    run.rows = check(chain, tables).await?;
    if let Some(database) = database {
        database.drop(DATABASE).await?;
    }
    Ok(run)
}

/// All checkpoints of the derivers in the response of `/status`.
pub fn checkpoints(status: &Value) -> &[Value] {
    let checkpoints = &status["chains"][0]["ingest"]["derive"]["derivers"]["checkpoints"];
    checkpoints.as_array().map_or(&[][..], Vec::as_slice)
}

/// Whether every processor has all blocks up to and including `last`, and serves them.
pub fn is_derived(status: &Value, last: u64) -> bool {
    let checkpoints = checkpoints(status).iter();
    let mut processors = checkpoints.filter(|one| !one["generation"].is_null()).peekable();
    processors.peek().is_some()
        && processors.all(|one| {
            let range = &one["ranges"][0];
            one["state"] == "serving" && range[0] == 0 && range[1].as_u64() > Some(last)
        })
}

async fn lacks_indexes(tables: &Tables) -> anyhow::Result<bool> {
    let text = "SELECT count(*) FROM derive_line WHERE indexed = 0";
    Ok(tables.sql().query(text, Vec::new()).await?.row()?.count(0)? > 0)
}

async fn open(database: Option<&Postgres>, folder: &Path) -> anyhow::Result<Tables> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let sql = match database {
        Some(database) => {
            let settings = PostgresSettings::new(database.url(DATABASE));
            Sql::postgres(&settings, clock, entropy).await?
        }
        None => {
            let file = SqliteSettings::file(folder.join("data/tables.db"));
            Sql::sqlite(&SqliteSettings { read_only: true, ..file }, clock, entropy).await?
        }
    };
    Ok(Tables::open_read_only(sql).await?)
}

async fn check(chain: &TokenChain, tables: Tables) -> anyhow::Result<Vec<(String, u64)>> {
    let reader = Reader::new(tables, CHAIN_ID);
    let rows = served_rows(&reader).await?;
    let transfers = rows.iter().find(|(name, _)| name == "ft_transfers");
    let transfers = transfers.context("no table of transfers")?.1;
    let coin: Address = chain.coin.parse()?;
    let id = reader.tables().address_id(coin).await?.context("the token is not known")?;
    let text = |source: &dyn Fn(&'static Table, &Select<'_>) -> String| {
        let key = format!("contract_address = {id}");
        let holdings = source(&FT_HOLDINGS, &Select { key: &key, ..Select::default() });
        format!(
            "SELECT a.address, s.balance FROM {holdings} AS s JOIN address AS a ON a.id = s.address"
        )
    };
    let found = reader.query(text, Vec::new()).await?;
    let balances = found.rows.iter().map(|row| {
        let address = Address::try_from(&row.blob(0)?[..])?;
        anyhow::Ok((format!("{address:#x}"), row.amount(1)?.to_string()))
    });
    chain.check("logmill", transfers, balances.collect::<Result<_, _>>()?)?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_processors_must_have_all_blocks() {
        let check = |checkpoints: Value| {
            let derive = json!({"derivers": {"checkpoints": checkpoints}});
            is_derived(&json!({"chains": [{"ingest": {"derive": derive}}]}), 9)
        };
        let one = |state: &str, start: u64, end: u64| {
            let ranges = [[start, end]];
            json!({"generation": 1, "state": state, "ranges": ranges})
        };
        let cursor = json!({"generation": null, "state": "serving", "ranges": []});
        assert!(!check(json!([])));
        assert!(!check(json!([cursor])));
        assert!(check(json!([one("serving", 0, 10), cursor])));
        assert!(!check(json!([one("serving", 0, 9)])));
        assert!(!check(json!([one("serving", 1, 10)])));
        assert!(!check(json!([one("building", 0, 10)])));
        assert!(!check(json!([one("serving", 0, 10), one("serving", 0, 5)])));
    }
}
