//! The command line of `logmill collect`.
//!
//! Guarantees: every flag that is a setting stands for a configuration key. Leaves to others: collecting
//! ([`crate::commands::collect`]).

use clap::Args;

/// Flags for the settings that are most often set by hand, and the mode of this process.
#[derive(Args, Default)]
pub(crate) struct Collect {
    /// URL of a node; repeatable; same as --set chain.rpc_urls=URL,URL
    #[arg(long, value_name = "URL")]
    rpc_url: Vec<String>,
    /// Chain id; same as --set chain.id=N
    #[arg(long, value_name = "N")]
    active_chain: Option<u64>,
    /// Contract whose events to collect, or several, comma-separated; same as --set collect.contract_address=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    contract_address: Option<String>,
    /// Event in Solidity syntax; repeatable; same as --set collect.event=SIGNATURE;SIGNATURE
    #[arg(long, value_name = "SIGNATURE")]
    event: Vec<String>,
    /// First block to collect; same as --set collect.start_point=N
    #[arg(long, value_name = "N")]
    start_point: Option<u64>,
    /// Blocks per job; same as --set collect.batch_size=N
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,
    /// Number of confirmations that make a block final; same as --set chain.confirmations=N
    #[arg(long, value_name = "N")]
    confirmations: Option<u64>,
    /// Concurrent jobs of this process; same as --set collect.workers=N
    #[arg(long, value_name = "N")]
    workers: Option<u64>,
    /// Port of the API; same as --set collect.api_port=N
    #[arg(long, value_name = "N")]
    api_port: Option<u16>,
    /// Only collect, and serve no API
    #[arg(long, conflicts_with = "api_only")]
    pub(crate) worker_only: bool,
    /// Only serve the API, and collect nothing
    #[arg(long)]
    pub(crate) api_only: bool,
    /// Print the progress of collecting and exit; exit code 1 if ranges are missing whose attempts have all failed
    #[arg(long, conflicts_with_all = ["worker_only", "api_only", "redrive"])]
    pub(crate) check: bool,
    /// Retry ranges whose attempts have all failed, and exit
    #[arg(long, conflicts_with_all = ["worker_only", "api_only"])]
    pub(crate) redrive: bool,
    /// Serve new tables even if changed settings leave one of them without rows
    #[arg(long, conflicts_with_all = ["api_only", "check", "redrive"])]
    pub(crate) allow_empty: bool,
    /// Start even if the database holds less than it once did, and continue without the missing data
    #[arg(long)]
    pub(crate) accept_loss: bool,
}

impl Collect {
    /// The given flags as configuration keys and values.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let urls = (!self.rpc_url.is_empty()).then(|| self.rpc_url.join(","));
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let all = [
            ("chain.rpc_urls", urls),
            ("chain.id", number(self.active_chain)),
            ("chain.confirmations", number(self.confirmations)),
            ("collect.contract_address", self.contract_address.clone()),
            ("collect.event", (!self.event.is_empty()).then(|| self.event.join(";"))),
            ("collect.start_point", number(self.start_point)),
            ("collect.batch_size", number(self.batch_size)),
            ("collect.workers", number(self.workers)),
            ("collect.api_port", number(self.api_port.map(u64::from))),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}
