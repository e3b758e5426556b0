//! Running chains so that they can be handed over: a stored chain is served before a node has confirmed its id, and
//! must not be derived twice once one has.
//!
//! ```text
//!   served and derived ── a node reports this chain id ──▶ stops ──▶ opened again, followed and derived
//! ```
//!
//! Guarantees: a chain that was handed over has ended, and released its leases, before it is opened again. Leaves to
//! others: opening it ([`crate::server::chains`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use logmill_io::Tasks;
use logmill_serve::usage::relay::Relay;
use tokio::sync::watch;

use super::{TaskResult, stop_requested};
use crate::server::chains::OpenChain;

/// The running chains. Clones share state.
#[derive(Clone, Debug, Default)]
pub(super) struct Handovers(Arc<Mutex<BTreeMap<u64, RunningChain>>>);

#[derive(Debug)]
struct RunningChain {
    chain: Arc<OpenChain>,
    stop: watch::Sender<bool>,
    /// Becomes true once it has stopped.
    ended: watch::Receiver<bool>,
}

impl Handovers {
    /// Runs a chain and its usage relay until the server stops or the chain is handed over.
    pub(super) fn spawn(
        &self,
        chain: &Arc<OpenChain>,
        relay: Option<Relay>,
        stopped: &watch::Receiver<bool>,
        tasks: &mut Tasks<TaskResult>,
    ) {
        let (stop, handed) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let running = RunningChain { chain: Arc::clone(chain), stop, ended };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(chain.chain.chain_id(), running);
        let (chain, stopped) = (Arc::clone(chain), stopped.clone());
        // A dropped sender would stop it.
        let this = self.clone();
        tasks.spawn(async move {
            let _running = this;
            let stop = || {
                let (stopped, handed) = (stopped.clone(), handed.clone());
                async move {
                    tokio::select! {
                        biased;
                        () = stop_requested(stopped) => {}
                        () = stop_requested(handed) => {}
                    }
                }
            };
            let relaying = async {
                match relay {
                    Some(relay) => Ok(relay.run(stop()).await?),
                    None => Ok(()),
                }
            };
            // Boxed: the state of both is too large for a thread's stack.
            let running = Box::pin(chain.run(stop));
            let outcome = futures::future::try_join(running, Box::pin(relaying)).await.map(|_| ());
            // There may be no receiver.
            let _ = ending.send(true);
            if outcome.is_ok() {
                // A task that ends while the server runs would end the server.
                stop_requested(stopped).await;
            }
            TaskResult { task: "the chain", outcome }
        });
    }

    /// Stops a chain, if it runs, and waits until it has stopped.
    pub(super) async fn take(&self, chain_id: u64) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&chain_id);
        let Some(RunningChain { chain, stop, mut ended }) = running else { return };
        tracing::info!(
            chain = chain_id,
            "a node serves a chain that is already stored; following it"
        );
        chain.hand_over();
        // Without a receiver it has ended.
        let _ = stop.send(true);
        let _ = ended.wait_for(|ended| *ended).await;
    }
}
