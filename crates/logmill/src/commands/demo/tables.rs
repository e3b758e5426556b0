//! Tables: everything derived from the chain's blocks, twice, and compared with a scan.
//!
//! Guarantees: the sums are compared with the blocks. Leaves to others: the chain ([`super::chain`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Address, U256};
use logmill_chain::sim::{FEE_COLLECTOR, SimChain};
use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::derive::{DeriveSettings, Deriver, Reader, Select, Table, Tables};
use logmill_pipeline::processors::fees::{FEE_EVENTS, FEES_COLLECTED};
use logmill_pipeline::processors::ft_holdings::FT_HOLDINGS;
use logmill_pipeline::processors::token::FT_TRANSFERS;
use logmill_pipeline::{Chain, processors};

use super::check;
use crate::error::{Error, Result};
use crate::output;

pub(super) async fn show(folder: &Path, chain: &Chain, sim: &SimChain) -> Result<String> {
    let clock = SystemClock::shared();
    let sqlite = SqliteSettings::file(folder.join("tables.db"));
    let sql = Sql::sqlite(&sqlite, Arc::clone(&clock), OsEntropy::shared()).await?;
    let tables = Tables::open(sql).await?;
    let mut settings = processors::Settings::of_chain(chain.chain_id());
    settings.fees.collectors = vec![FEE_COLLECTOR];
    let started = clock.monotonic();
    let derive = async || {
        let (all, settings) = (processors::all(&settings), DeriveSettings::default());
        let (chain, clock) = (chain.clone(), Arc::clone(&clock));
        let deriver = Deriver::new(chain, tables.clone(), all, settings, "demo", clock);
        deriver.catch_up().await
    };
    derive().await?;
    let took = clock.monotonic().saturating_sub(started);
    let reader = Reader::new(tables.clone(), chain.chain_id());
    let first = fees(&reader).await?;
    // Nothing counts twice.
    derive().await?;
    let (expected, again) = (scanned(sim), fees(&reader).await?);
    check(first == expected && again == expected, || {
        format!("found fees of {} integrators, expected {}", first.len(), expected.len())
    })?;
    let (transfers, holdings) =
        (count(&reader, &FT_TRANSFERS).await?, count(&reader, &FT_HOLDINGS).await?);
    Ok(format!(
        "tables: {} processors derived {transfers} token transfers and {holdings} holdings in {}; fees of {} \
         integrators equal those of a scan, also after deriving again",
        processors::all(&settings).len(),
        output::duration(took),
        expected.len(),
    ))
}

async fn count(reader: &Reader, table: &'static Table) -> Result<u64> {
    let text = |source: &dyn Fn(&'static Table, &Select<'_>) -> String| {
        format!("SELECT count(*) FROM {} AS t", source(table, &Select::default()))
    };
    Ok(reader.query(text, Vec::new()).await?.row()?.count(0)?)
}

/// Earnings of every integrator, as text.
async fn fees(reader: &Reader) -> Result<BTreeMap<Address, String>> {
    let text = |source: &dyn Fn(&'static Table, &Select<'_>) -> String| {
        format!(
            "SELECT (SELECT address FROM address WHERE id = f.integrator), \
             amount_text(amount_sum(f.integrator_fee)) FROM {} AS f GROUP BY f.integrator",
            source(&FEE_EVENTS, &Select::default())
        )
    };
    let mut fees = BTreeMap::new();
    for row in reader.query(text, Vec::new()).await?.rows {
        let address = Address::try_from(&row.blob(0)?[..]);
        let address = address.map_err(|_| Error::Internal {
            what: "a stored address is not 20 bytes long".to_owned(),
        })?;
        fees.insert(address, row.text(1)?.to_owned());
    }
    Ok(fees)
}

/// The same computed from the chain's own blocks.
fn scanned(sim: &SimChain) -> BTreeMap<Address, String> {
    let mut sums: BTreeMap<Address, U256> = BTreeMap::new();
    for block in (0..=sim.latest().number).filter_map(|number| sim.block(number)) {
        for placed in block.logs() {
            let (log, data) = (placed.log, &placed.log.data);
            if let [FEES_COLLECTED, _, integrator] = log.topics[..]
                && log.address == FEE_COLLECTOR
            {
                let fee = U256::from_be_slice(&data[..data.len().min(32)]);
                *sums.entry(Address::from_word(integrator)).or_default() += fee;
            }
        }
    }
    sums.into_iter().map(|(integrator, sum)| (integrator, sum.to_string())).collect()
}
