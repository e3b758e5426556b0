//! The section `[collect]`: contract events that are collected without an archive.
//!
//! Guarantees: a job that [`Collect::job`] returns can be started; an error about a missing or wrong setting names its
//! environment variable. Leaves to others: collecting ([`crate::commands::collect`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use alloy_primitives::Address;
use logmill_pipeline::ingest::collect::CollectSettings;
use logmill_pipeline::processors::fees::{COLLECTOR, Fees};
use serde::{Deserialize, Deserializer};

use super::{InvalidKey, LEASE_MS_MIN, Settings, TIME_MS_MAX, count, within};
use crate::error::{Error, Result};

/// Maximum blocks per job.
const BATCH_MAX: u64 = 100_000;
/// Maximum number of events: each has its own workers.
const EVENTS_MAX: u64 = 16;
const WORKERS_MAX: u64 = 1_000;

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

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AppEnv {
    Development,
    Production,
}

/// Accepts a number with or without quotes.
fn text_or_number<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrNumber {
        Number(i64),
        Text(String),
    }
    Ok(match TextOrNumber::deserialize(from)? {
        TextOrNumber::Number(number) => number.to_string(),
        TextOrNumber::Text(text) => text,
    })
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) chain_id: u64,
    pub(crate) settings: CollectSettings,
}

impl Collect {
    /// Returns the collector's job; fails on the first missing or wrong setting.
    pub(crate) fn job(&self, all: &Settings) -> Result<Job> {
        if all.chain.nodes().unwrap_or_default().is_empty() {
            return Err(wrong("RPC_URL", "is not set: give the URL of a node"));
        }
        let chain_id = all.chain.id();
        let chain_id = chain_id
            .ok_or_else(|| wrong("ACTIVE_CHAIN", "is not set: give the id of the node's chain"))?;
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

    /// The contracts, at least one.
    pub(crate) fn contracts(&self) -> Result<Vec<Address>> {
        let given = self.contract_address.split(',').map(str::trim).filter(|one| !one.is_empty());
        let contracts = given.map(|one| {
            let why =
                || wrong("CONTRACT_ADDRESS", &format!("names {one:?}, which is not an address"));
            one.parse::<Address>().map_err(|_| why())
        });
        let contracts = contracts.collect::<Result<Vec<Address>>>()?;
        match contracts.is_empty() {
            true => Err(wrong(
                "CONTRACT_ADDRESS",
                "is not set: give the contract whose events to collect",
            )),
            false => Ok(contracts),
        }
    }

    /// The contracts whose fees count on a chain: the configured ones, if they are for this chain and for the fee
    /// events; else the known ones.
    pub(crate) fn fees(&self, all: &Settings, chain_id: u64) -> Fees {
        match self.fee_contracts(all, chain_id) {
            Some(contracts) => Fees::of_contracts(chain_id, &contracts),
            None => Fees::of_chain(chain_id),
        }
    }

    /// Why fees of a chain may be missing: no contract is configured for it, and none is known there.
    pub(crate) fn assumed_fees(&self, all: &Settings, chain_id: u64) -> Option<String> {
        if Fees::is_known(chain_id) || self.fee_contracts(all, chain_id).is_some() {
            return None;
        }
        Some(format!(
            "no fee collector is known on chain {chain_id}: only events of {COLLECTOR} are fees, \
             and there are none; set collect.contract_address to the fee collector of the chain"
        ))
    }

    /// The configured contracts whose fees count on a chain.
    fn fee_contracts(&self, all: &Settings, chain_id: u64) -> Option<Vec<Address>> {
        let is_meant = all.chain.id().is_none_or(|id| id == chain_id) && self.events() == [""];
        self.contracts().ok().filter(|_| is_meant)
    }

    /// The distinct event signatures; if none is set, one empty string, which stands for the fee events.
    pub(crate) fn events(&self) -> Vec<&str> {
        let mut events: Vec<&str> = Vec::new();
        for event in self.event.split(';').map(str::trim).filter(|event| !event.is_empty()) {
            if !events.contains(&event) {
                events.push(event);
            }
        }
        if events.is_empty() { vec![""] } else { events }
    }

    fn start(&self) -> Result<u64> {
        match self.start_point.trim() {
            "" => Err(wrong("START_POINT", "is not set: give the height of the first block")),
            text => text.parse().map_err(|_| {
                wrong(
                    "START_POINT",
                    &format!("must be a number, the height of the first block, not {text:?}"),
                )
            }),
        }
    }

    /// Concurrent jobs; in development, `dev_multiple_workers` raises them to two.
    fn workers(&self) -> usize {
        let two = self.dev_multiple_workers && self.app_env == AppEnv::Development;
        if two { self.workers.max(2) } else { self.workers }
    }

    /// Address of the collector's API: the address of `server.listen`, with its own port.
    pub(crate) fn listen(&self, all: &Settings) -> SocketAddr {
        let server = all.server.listen().map(|address| address.ip());
        SocketAddr::new(server.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), self.api_port)
    }

    /// The longest wait between two polls of the head.
    pub(crate) fn longest_poll(&self) -> Duration {
        let ms = self.historical_poll_interval_ms.max(self.realtime_poll_interval_ms);
        Duration::from_millis(ms)
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let polls = [
            ("collect.historical_poll_interval_ms", self.historical_poll_interval_ms),
            ("collect.realtime_poll_interval_ms", self.realtime_poll_interval_ms),
        ];
        let faults = [
            within("collect.batch_size", self.batch_size, 1, BATCH_MAX),
            within("collect.job_lease_ttl_ms", self.job_lease_ttl_ms, LEASE_MS_MIN, TIME_MS_MAX),
            within("collect.workers", count(self.workers), 1, WORKERS_MAX),
            within("collect.event", count(self.events().len()), 1, EVENTS_MAX),
        ];
        let polls = polls.into_iter().filter_map(|(key, ms)| within(key, ms, 1, TIME_MS_MAX));
        faults.into_iter().flatten().chain(polls).next()
    }
}

fn wrong(variable: &'static str, why: &str) -> Error {
    Error::Collect { variable, why: why.to_owned() }
}
