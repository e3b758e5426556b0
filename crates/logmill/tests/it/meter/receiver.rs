//! An unreliable webhook receiver: it is slow, rejects, hangs up, or does not answer at all.
//!
//! Guarantees: it records every request with its answer, and whether the Standard Webhooks library verifies it. Leaves
//! to others: when it stops answering, and the expectations.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use standardwebhooks::Webhook;

/// Delay of a slow answer.
const SLOW: Duration = Duration::from_millis(60);

#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) path: String,
    pub(super) id: String,
    pub(super) body: String,
    /// Whether the library verified its signature.
    pub(super) is_verified: bool,
    /// Whether it was answered with 200.
    pub(super) is_taken: bool,
}

#[derive(Default)]
struct State {
    received: Vec<ReceivedRequest>,
    /// By path.
    secrets: BTreeMap<String, String>,
    is_silent: bool,
    /// The paths of requests that are left without an answer.
    held: Vec<String>,
}

/// A receiver; its threads end with the test's process.
#[derive(Clone)]
pub(super) struct Receiver {
    at: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Receiver {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("bound");
        let receiver = Self { at, state: Arc::default() };
        let serving = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        receiver
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    /// Sets the secret of a path.
    pub(super) fn expect(&self, path: &str, secret: &str) {
        self.with(|state| state.secrets.insert(path.to_owned(), secret.to_owned()));
    }

    /// Stops answering, or starts again and closes the connections of the held requests.
    pub(super) fn set_silent(&self, is_silent: bool) {
        self.with(|state| {
            state.is_silent = is_silent;
            state.held.clear();
        });
        self.state.1.notify_all();
    }

    /// Whether a request to a path is left without an answer.
    pub(super) fn holds(&self, path: &str) -> bool {
        self.with(|state| state.held.iter().any(|held| held == path))
    }

    pub(super) fn received(&self) -> Vec<ReceivedRequest> {
        self.with(|state| state.received.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.0.lock().expect("no panic"))
    }

    fn serve(&self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some((path, headers, body)) = read(&mut stream) {
            let (taken, answer) = self.receive(&path, &headers, body);
            if taken {
                // Slow, except for the path whose messages wait for each other.
                let wait = if path == "/ordered" { Duration::ZERO } else { SLOW };
                let silent = |state: &mut State| state.is_silent;
                let state = self.state.0.lock().expect("no panic");
                drop(self.state.1.wait_timeout_while(state, wait, |state| !silent(state)));
            }
            if self.hold(&path) {
                return;
            }
            let Some(answer) = answer else { return };
            if taken {
                self.take(&path, &headers["webhook-id"]);
            }
            let length = "content-length: 0";
            if write!(stream.get_mut(), "HTTP/1.1 {answer}\r\n{length}\r\n\r\n").is_err() {
                return;
            }
        }
    }

    /// Marks a request as answered with 200. Runs before the answer is sent, so that the sender cannot be ahead of it.
    fn take(&self, path: &str, id: &str) {
        self.with(|state| {
            let mut seen = state.received.iter_mut().rev();
            let found = seen.find(|seen| seen.path == path && seen.id == id);
            found.expect("it was received").is_taken = true;
        });
    }

    /// Records a request; returns whether it is accepted, and the answer. `None` hangs up.
    fn receive(
        &self,
        path: &str,
        headers: &HashMap<String, String>,
        body: Vec<u8>,
    ) -> (bool, Option<&'static str>) {
        let id = headers["webhook-id"].clone();
        let number: u32 = id.bytes().map(u32::from).sum();
        self.with(|state| {
            let secret = state.secrets.get(path).expect("somebody we know");
            let known = headers.try_into().expect("they are headers");
            let verified = Webhook::new(secret).expect("a secret").verify(&body, &known);
            let is_new = !state.received.iter().any(|seen| seen.path == path && seen.id == id);
            state.received.push(ReceivedRequest {
                path: path.to_owned(),
                id,
                body: String::from_utf8(body).expect("text"),
                is_verified: verified.is_ok(),
                is_taken: false,
            });
            match path {
                "/flaky" if is_new && number.is_multiple_of(4) => (false, Some("500 No luck")),
                "/reset" if is_new && number.is_multiple_of(8) => (false, None),
                _ => (true, Some("200 OK")),
            }
        })
    }

    /// Blocks while the receiver does not answer; returns whether it had to.
    fn hold(&self, path: &str) -> bool {
        let mut state = self.state.0.lock().expect("no panic");
        if !state.is_silent {
            return false;
        }
        state.held.push(path.to_owned());
        drop(self.state.1.wait_while(state, |state| state.is_silent).expect("no panic"));
        true
    }
}

/// Reads path, headers and body of the next request.
fn read(stream: &mut BufReader<TcpStream>) -> Option<(String, HashMap<String, String>, Vec<u8>)> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length: usize = headers.get("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((path, headers, body))
}
