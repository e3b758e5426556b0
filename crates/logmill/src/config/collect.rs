//! The section `[collect]`: one event of a contract, collected without an archive.
//!
//! Guarantees: what [`Collect::job`] gives can be started; what is missing or wrong is named by the variable that
//! people know it by. Leaves to others: collecting ([`crate::collect`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use alloy_primitives::Address;
use logmill_pipeline::ingest::collect::CollectSettings;
use logmill_pipeline::processors::fees::Fees;
use serde::{Deserialize, Deserializer};

use super::{Fault, LEASE_MS_MIN, Settings, TIME_MS_MAX, count, within};
use crate::error::{Error, Result};

/// The most blocks of one job.
const BATCH_MAX: u64 = 100_000;
/// The most workers of one process.
const WORKERS_MAX: u64 = 1_000;

/// What is collected, and how.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Collect {
    #[serde(deserialize_with = "text_or_number")]
    contract_address: String,
    pub(crate) event: String,
    #[serde(deserialize_with = "text_or_number")]
    start_point: String,
    batch_size: u64,
    job_lease_ttl_ms: u64,
    historical_poll_interval_ms: u64,
    realtime_poll_interval_ms: u64,
    workers: usize,
    dev_multiple_workers: bool,
    app_env: AppEnv,
    api_port: u16,
}

/// Where the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AppEnv {
    Development,
    Production,
}

/// A number may be written with quotes or without.
fn text_or_number<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(i64),
        Text(String),
    }
    Ok(match Written::deserialize(from)? {
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    })
}

/// A job for a collector.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) chain_id: u64,
    pub(crate) settings: CollectSettings,
}

impl Collect {
    /// What is to be collected: the first thing that is missing or wrong is an error.
    pub(crate) fn job(&self, all: &Settings) -> Result<Job> {
        if all.chain.nodes().unwrap_or_default().is_empty() {
            return Err(wrong("RPC_URL", "it is missing: the node that is asked"));
        }
        let chain_id = all.chain.id();
        let chain_id = chain_id
            .ok_or_else(|| wrong("ACTIVE_CHAIN", "it is missing: the id of the node's chain"))?;
        let settings = CollectSettings {
            contracts: self.contracts()?,
            start: self.start()?,
            batch: self.batch_size,
            workers: self.workers(),
            lease: Duration::from_millis(self.job_lease_ttl_ms),
            historical_poll: Duration::from_millis(self.historical_poll_interval_ms),
            realtime_poll: Duration::from_millis(self.realtime_poll_interval_ms),
        };
        Ok(Job { chain_id, settings })
    }

    /// The contracts, of which there is at least one.
    pub(crate) fn contracts(&self) -> Result<Vec<Address>> {
        let given = self.contract_address.split(',').map(str::trim).filter(|one| !one.is_empty());
        let contracts = given.map(|one| {
            let why = || wrong("CONTRACT_ADDRESS", &format!("{one:?} is no address"));
            one.parse::<Address>().map_err(|_| why())
        });
        let contracts = contracts.collect::<Result<Vec<Address>>>()?;
        match contracts.is_empty() {
            true => Err(wrong("CONTRACT_ADDRESS", "it is missing: whose events are collected")),
            false => Ok(contracts),
        }
    }

    /// Whose fees count on a chain: those of the contracts that are set, if any are, else of those that are known.
    pub(crate) fn fees(&self, all: &Settings, chain_id: u64) -> Fees {
        let is_meant = all.chain.id().is_none_or(|id| id == chain_id);
        match self.contracts() {
            Ok(contracts) if is_meant && self.event.is_empty() => {
                Fees::of_contracts(chain_id, &contracts)
            }
            _ => Fees::of_chain(chain_id),
        }
    }

    fn start(&self) -> Result<u64> {
        match self.start_point.trim() {
            "" => Err(wrong("START_POINT", "it is missing: the first block that is wanted")),
            text => text.parse().map_err(|_| {
                wrong("START_POINT", &format!("it must be a number of a block, not {text:?}"))
            }),
        }
    }

    /// Jobs at a time: in development, two can be had by a variable.
    fn workers(&self) -> usize {
        let two = self.dev_multiple_workers && self.app_env == AppEnv::Development;
        if two { self.workers.max(2) } else { self.workers }
    }

    /// Where the API is served: where everything else is, at a port of its own.
    pub(crate) fn listen(&self, all: &Settings) -> SocketAddr {
        let server = all.server.listen().map(|address| address.ip());
        SocketAddr::new(server.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), self.api_port)
    }

    /// The longest wait between two looks at the head.
    pub(crate) fn longest_poll(&self) -> Duration {
        let ms = self.historical_poll_interval_ms.max(self.realtime_poll_interval_ms);
        Duration::from_millis(ms)
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let polls = [
            ("collect.historical_poll_interval_ms", self.historical_poll_interval_ms),
            ("collect.realtime_poll_interval_ms", self.realtime_poll_interval_ms),
        ];
        let faults = [
            within("collect.batch_size", self.batch_size, 1, BATCH_MAX),
            within("collect.job_lease_ttl_ms", self.job_lease_ttl_ms, LEASE_MS_MIN, TIME_MS_MAX),
            within("collect.workers", count(self.workers), 1, WORKERS_MAX),
        ];
        let polls = polls.into_iter().filter_map(|(key, ms)| within(key, ms, 1, TIME_MS_MAX));
        faults.into_iter().flatten().chain(polls).next()
    }
}

fn wrong(variable: &'static str, why: &str) -> Error {
    Error::Collect { variable, why: why.to_owned() }
}
