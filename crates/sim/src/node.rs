//! A simulated node behind a real socket, for real clients, and the chains that it serves.
//!
//! Guarantees: it listens only on loopback, has threads of its own, so that a test may block, and stops when it is
//! dropped. Leaves to others: the answers ([`SimNode`]).

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use logmill_chain::sim::rpc::{Reply, SimNode};
use logmill_chain::sim::{Shape, SimChain, SimSettings};
use tokio::runtime::{Builder, Runtime};

/// Changes the answer to a request before it is sent.
pub type Hook = Arc<dyn Fn(&str, Reply) -> Reply + Send + Sync>;

/// A chain of small blocks, the newest `finality_lag` of which are not final.
pub fn sparse(seed: u64, finality_lag: u64) -> SimSettings {
    let (shape, finality_lag) = (Shape::sparse(), Some(finality_lag));
    SimSettings { seed, shape, finality_lag, ..SimSettings::default() }
}

/// A chain with this many blocks above the first.
pub fn grown(settings: SimSettings, blocks: u64) -> SimChain {
    let chain = SimChain::with(settings);
    chain.grow(blocks);
    chain
}

/// A simulated node that listens on a socket.
#[derive(Debug)]
pub struct SimNodeServer {
    node: SimNode,
    address: SocketAddr,
    /// `None` once it is stopped.
    runtime: Option<Runtime>,
}

impl SimNodeServer {
    /// A node of a chain, on a free port.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn start(chain: &SimChain) -> Self {
        Self::hooked(chain, Arc::new(|_, reply| reply))
    }

    /// Like [`SimNodeServer::start`], with answers changed by a hook.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub fn hooked(chain: &SimChain, hook: Hook) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        Self::serve(listener, chain, hook)
    }

    /// Serves on a socket that is already listening.
    ///
    /// # Panics
    ///
    /// If the socket has no address.
    pub fn on(listener: TcpListener, chain: &SimChain) -> Self {
        Self::serve(listener, chain, Arc::new(|_, reply| reply))
    }

    fn serve(listener: TcpListener, chain: &SimChain, hook: Hook) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        listener.set_nonblocking(true).expect("sockets can be made so");
        let node = SimNode::new(chain.clone());
        let router = Router::new().route("/", post(answer)).with_state((node.clone(), hook));
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            // It ends with the runtime.
            let _ = axum::serve(listener, router).await;
        });
        Self { node, address, runtime: Some(runtime) }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The node that answers.
    pub fn node(&self) -> &SimNode {
        &self.node
    }

    pub fn chain(&self) -> &SimChain {
        self.node.chain()
    }

    /// Stops listening, and closes all connections.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Does not wait, so that a node can be dropped inside another runtime.
            runtime.shutdown_background();
        }
    }
}

impl Drop for SimNodeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn answer(State((node, hook)): State<(SimNode, Hook)>, request: String) -> Response<Body> {
    let delay = node.faults().delay;
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    // Building blocks uses the CPU for long.
    let reply = logmill_io::compute(move || hook(&request, node.answer(&request))).await;
    let (status, body) = match reply {
        Reply::Json(json) => (StatusCode::OK, json),
        Reply::Status(status) => {
            (StatusCode::from_u16(status).expect("a status of HTTP"), String::new())
        }
    };
    let response = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    response.body(Body::from(body)).expect("a response")
}
