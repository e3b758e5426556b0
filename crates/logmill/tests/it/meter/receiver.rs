//! A receiver of webhooks that is not to be relied on: it is slow, refuses, hangs up, or says nothing at all.
//!
//! Guarantees: it keeps every request with what it answered, and knows whether the library of Standard Webhooks takes
//! it for a good one. Leaves to others: when it falls silent, and what is expected.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use standardwebhooks::Webhook;

/// How long a slow answer takes.
const SLOW: Duration = Duration::from_millis(60);

/// A request that came in.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) path: String,
    pub(super) id: String,
    pub(super) body: String,
    /// Whether the library takes it for a good one.
    pub(super) is_verified: bool,
    /// Whether it was answered with 200.
    pub(super) is_taken: bool,
}

#[derive(Default)]
struct State {
    received: Vec<Received>,
    /// By path.
    secrets: BTreeMap<String, String>,
    is_silent: bool,
    /// The paths of requests that wait for an answer that will not come.
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

    /// Says which secret signs what comes to a path.
    pub(super) fn expect(&self, path: &str, secret: &str) {
        self.with(|state| state.secrets.insert(path.to_owned(), secret.to_owned()));
    }

    /// From now on nothing is answered; or no longer, and who waited is hung up on.
    pub(super) fn set_silent(&self, is_silent: bool) {
        self.with(|state| {
            state.is_silent = is_silent;
            state.held.clear();
        });
        self.state.1.notify_all();
    }

    /// Whether a request to a path is under way and not answered.
    pub(super) fn holds(&self, path: &str) -> bool {
        self.with(|state| state.held.iter().any(|held| held == path))
    }

    pub(super) fn received(&self) -> Vec<Received> {
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
                // It is slow, but for the path on which one waits for the other.
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

    /// Before the answer, so that whoever has read it finds this too.
    fn take(&self, path: &str, id: &str) {
        self.with(|state| {
            let mut seen = state.received.iter_mut().rev();
            let found = seen.find(|seen| seen.path == path && seen.id == id);
            found.expect("it was received").is_taken = true;
        });
    }

    /// Takes note of a request; gives whether it is to be taken, and the answer. None is to hang up.
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
            state.received.push(Received {
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

    /// Waits for as long as nothing is answered; gives whether it was so.
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

/// Path, headers and body of the next request of a connection.
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
