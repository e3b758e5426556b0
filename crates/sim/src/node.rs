//! A simulated node behind a real socket, for real clients.
//!
//! Guarantees: it listens only on loopback, on a free port, and stops when it is dropped. Leaves to others: the
//! answers ([`SimNode`]).

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use logmill_chain::sim::rpc::{Reply, SimNode};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Changes the answer to a request before it is sent.
pub type Hook = Arc<dyn Fn(&str, Reply) -> Reply + Send + Sync>;

/// A simulated node that listens on a socket.
#[derive(Debug)]
pub struct SimNodeServer {
    node: SimNode,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl SimNodeServer {
    /// Starts listening on a free port.
    ///
    /// # Panics
    ///
    /// If loopback has no free port.
    pub async fn start(node: SimNode) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("loopback has a free port");
        Self::on(listener, node)
    }

    /// Serves on a socket that is already listening.
    ///
    /// # Panics
    ///
    /// If the socket has no address.
    pub fn on(listener: TcpListener, node: SimNode) -> Self {
        Self::hooked(listener, node, Arc::new(|_, reply| reply))
    }

    /// Like [`SimNodeServer::on`], with answers changed by a hook.
    ///
    /// # Panics
    ///
    /// If the socket has no address.
    pub fn hooked(listener: TcpListener, node: SimNode, hook: Hook) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        let router = Router::new().route("/", post(answer)).with_state((node.clone(), hook));
        let serving = tokio::spawn(async move {
            // It ends when the task is aborted.
            let _ = axum::serve(listener, router).await;
        });
        Self { node, address, serving }
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
}

impl Drop for SimNodeServer {
    fn drop(&mut self) {
        self.serving.abort();
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
