//! A receiver that records messages and answers 200, except on two paths: `/fail` always fails, and `/flaky` fails the
//! first time a message arrives.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use logmill_io::Tasks;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Path and id of every request.
type ReceivedRequests = Arc<(Mutex<Vec<(String, String)>>, watch::Sender<usize>)>;

pub(super) struct Receiver {
    at: SocketAddr,
    seen: ReceivedRequests,
    _tasks: Tasks<()>,
}

impl Receiver {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("bound");
        let seen: ReceivedRequests = Arc::new((Mutex::default(), watch::channel(0).0));
        let router = Router::new().fallback(receive).with_state(Arc::clone(&seen));
        let mut tasks = Tasks::new();
        tasks.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { at, seen, _tasks: tasks }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    pub(super) fn clear(&self) {
        self.seen.0.lock().expect("no panic").clear();
    }

    /// The ids of the messages that a path received, in order.
    pub(super) fn ids(&self, path: &str) -> Vec<String> {
        let seen = self.seen.0.lock().expect("no panic");
        seen.iter().filter(|(to, _)| to == path).map(|(_, id)| id.clone()).collect()
    }

    /// Waits until each path has received this many requests.
    pub(super) async fn wait_for(&self, wanted: &[(&str, usize)]) {
        let mut changes = self.seen.1.subscribe();
        while wanted.iter().any(|(path, count)| self.ids(path).len() < *count) {
            changes.changed().await.expect("it lives as long as we do");
        }
    }
}

async fn receive(State(seen): State<ReceivedRequests>, uri: Uri, headers: HeaderMap) -> StatusCode {
    let id = headers["webhook-id"].to_str().expect("plain text").to_owned();
    let request = (uri.path().to_owned(), id);
    let known = {
        let mut requests = seen.0.lock().expect("no panic");
        let known = requests.contains(&request);
        requests.push(request);
        known
    };
    seen.1.send_modify(|count| *count += 1);
    match uri.path() {
        "/fail" => StatusCode::INTERNAL_SERVER_ERROR,
        "/flaky" if !known => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    }
}
