//! `logmill collect`: what can be asked of the collector.
//!
//! Guarantees: every flag that is a setting stands for a key of the configuration. Leaves to others: collecting.

use clap::Args;

/// Settings that most people give by hand, and what this process is to do.
#[derive(Args, Default)]
pub(crate) struct Collect {
    /// A node of the chain; may be given several times; same as --set chain.rpc_urls=URL,URL
    #[arg(long, value_name = "URL")]
    rpc_url: Vec<String>,
    /// The id of the chain; same as --set chain.id=N
    #[arg(long, value_name = "N")]
    active_chain: Option<u64>,
    /// The contract; same as --set collect.contract_address=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    contract_address: Option<String>,
    /// The event as Solidity writes it; same as --set collect.event=SIGNATURE
    #[arg(long, value_name = "SIGNATURE")]
    event: Option<String>,
    /// The first block that is wanted; same as --set collect.start_point=N
    #[arg(long, value_name = "N")]
    start_point: Option<u64>,
    /// How many blocks one job has; same as --set collect.batch_size=N
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,
    /// How many blocks on top make a block final; same as --set chain.confirmations=N
    #[arg(long, value_name = "N")]
    confirmations: Option<u64>,
    /// How many jobs this process does at a time; same as --set collect.workers=N
    #[arg(long, value_name = "N")]
    workers: Option<u64>,
    /// The port of the API; same as --set collect.api_port=N
    #[arg(long, value_name = "N")]
    api_port: Option<u16>,
    /// Collect, and serve no API
    #[arg(long, conflicts_with = "api_only")]
    pub(crate) worker_only: bool,
    /// Serve what is collected, and collect nothing
    #[arg(long)]
    pub(crate) api_only: bool,
    /// Say how far collecting is, and end; with an error if ranges are missing that nobody could collect
    #[arg(long, conflicts_with_all = ["worker_only", "api_only", "redrive"])]
    pub(crate) check: bool,
    /// Have ranges that nobody could collect tried again, and end
    #[arg(long, conflicts_with_all = ["worker_only", "api_only"])]
    pub(crate) redrive: bool,
    /// Start although the database holds less than it once did, and go on without what is missing
    #[arg(long)]
    pub(crate) accept_loss: bool,
}

impl Collect {
    /// The keys that these flags stand for, and their values.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let urls = (!self.rpc_url.is_empty()).then(|| self.rpc_url.join(","));
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let all = [
            ("chain.rpc_urls", urls),
            ("chain.id", number(self.active_chain)),
            ("chain.confirmations", number(self.confirmations)),
            ("collect.contract_address", self.contract_address.clone()),
            ("collect.event", self.event.clone()),
            ("collect.start_point", number(self.start_point)),
            ("collect.batch_size", number(self.batch_size)),
            ("collect.workers", number(self.workers)),
            ("collect.api_port", number(self.api_port.map(u64::from))),
        ];
        let given = all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        given.collect()
    }
}
