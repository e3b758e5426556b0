//! A simulated node behind a real socket, so that real clients can be pointed at it.
//!
//! Guarantees: it listens on loopback alone, on a port of its own, and stops when it is dropped. Leaves to others:
//! what is answered ([`SimNode`]).

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use logmill_chain::sim::rpc::{Reply, SimNode};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A simulated node that listens.
#[derive(Debug)]
pub struct SimNodeServer {
    node: SimNode,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl SimNodeServer {
    /// Starts to listen.
    ///
    /// # Panics
    ///
    /// When loopback has no free port.
    pub async fn start(node: SimNode) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("loopback has a free port");
        Self::on(listener, node)
    }

    /// Starts to answer on a socket that listens already.
    ///
    /// # Panics
    ///
    /// When the socket has no address.
    pub fn on(listener: TcpListener, node: SimNode) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        let router = Router::new().route("/", post(answer)).with_state(node.clone());
        let serving = tokio::spawn(async move {
            // It ends with the task.
            let _ = axum::serve(listener, router).await;
        });
        Self { node, address, serving }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The address of its socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The node behind it.
    pub fn node(&self) -> &SimNode {
        &self.node
    }
}

impl Drop for SimNodeServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(node): State<SimNode>, request: String) -> Response<Body> {
    let delay = node.faults().delay;
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    // Building blocks takes the processor for long.
    let reply = logmill_io::compute(move || node.answer(&request)).await;
    let (status, body) = match reply {
        Reply::Json(json) => (StatusCode::OK, json),
        Reply::Status(status) => {
            (StatusCode::from_u16(status).expect("a status of HTTP"), String::new())
        }
    };
    let response = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    response.body(Body::from(body)).expect("a response")
}
