//! Where sessions run: one that blocks its thread delays nothing but other sessions.

#![allow(
    clippy::disallowed_methods,
    reason = "the test listens and connects itself, on this machine alone"
)]

use std::sync::mpsc as blocking;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::routing::any;
use futures::StreamExt;
use logmill_io::SystemClock;
use tokio::sync::mpsc;

use super::*;

/// How long a session blocks its thread if nothing else goes on.
const BLOCKED_MAX: Duration = Duration::from_secs(20);

/// A session that blocks its thread, as thousands of notifications do, until `go_on` is sent.
struct Blocking {
    began: mpsc::Sender<()>,
    go_on: blocking::Receiver<()>,
}

impl Session for Blocking {
    async fn receive(&mut self, _text: Bytes) -> Option<Utf8Bytes> {
        None
    }

    async fn next(&mut self) -> SocketAction {
        self.began.send(()).await.expect("the test waits");
        let went_on = self.go_on.recv_timeout(BLOCKED_MAX).is_ok();
        SocketAction::Send(vec![
            if went_on { "the others went on" } else { "they stood still" }.into(),
        ])
    }
}

/// Ingest and requests run on the runtime that accepts sockets, here the test's only thread.
#[tokio::test]
async fn a_session_that_blocks_its_thread_delays_no_other_task() {
    let ((began, mut has_begun), (free, go_on)) = (mpsc::channel(1), blocking::sync_channel(1));
    let (_stop, stopped) = watch::channel(false);
    let session = Arc::new(std::sync::Mutex::new(Some(Blocking { began, go_on })));
    let upgrade = any(move |upgrade: WebSocketUpgrade| async move {
        let session = session.lock().expect("no panic").take().expect("one client");
        let clock = SystemClock::shared();
        upgrade.on_upgrade(move |socket| run_session(socket, session, clock, stopped))
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("ws://{}/", listener.local_addr().expect("bound"));
    let router = Router::new().route("/", upgrade);
    let mut server = logmill_io::Tasks::new();
    server.spawn(async move { axum::serve(listener, router).await });
    let (mut client, _) = tokio_tungstenite::connect_async(url).await.expect("connected");
    has_begun.recv().await.expect("the session runs");
    free.send(()).expect("the session waits");
    let said = client.next().await.expect("a message").expect("no error");
    assert_eq!(said.to_text().expect("text"), "the others went on");
}
