//! A local web server that serves documents, and misbehaves on some paths.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use logmill_io::wire::guarded::{AllowedTarget, GuardedClient, GuardedSettings, Net};
use logmill_io::{SystemClock, Tasks};
use logmill_pipeline::async_workers::nft_items::Clients;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Web {
    pub(crate) at: SocketAddr,
    requests: Arc<AtomicUsize>,
    _tasks: Tasks<()>,
}

impl Web {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("bound");
        let requests = Arc::new(AtomicUsize::new(0));
        let mut tasks = Tasks::new();
        let seen = Arc::clone(&requests);
        tasks.spawn(async move {
            let mut connections = Tasks::new();
            while let Ok((stream, _)) = listener.accept().await {
                seen.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream, at));
            }
        });
        Self { at, requests, _tasks: tasks }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Clients that may reach this server, but no other private address.
    pub(crate) fn clients(&self) -> Clients {
        let allowed = vec![AllowedTarget::Net(Net::parse("127.0.0.1").expect("a network"))];
        let settings = GuardedSettings { ports: Vec::new(), allowed, ..GuardedSettings::default() };
        let client =
            || GuardedClient::new(SystemClock::shared(), settings.clone()).expect("a client");
        Clients { web: client(), gateways: client() }
    }
}

async fn serve(mut stream: TcpStream, at: SocketAddr) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => head.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let plain = |status: &str, headers: &str, body: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
    };
    let answer = match path {
        "/ape" => plain("200 OK", "", r#"{"name":"Ape","image":"http://169.254.169.254/x.png"}"#),
        "/to-private" => {
            let to = format!("location: http://127.0.0.2:{}/ape\r\n", at.port());
            plain("302 Found", &to, "")
        }
        "/html" => plain("200 OK", "content-type: text/html\r\n", "<html>later</html>"),
        "/busy" => plain("429 Too Many Requests", "retry-after: 3000\r\n", ""),
        "/large" => "HTTP/1.1 200 OK\r\ncontent-length: 5000000\r\n\r\n".to_owned(),
        "/slow" => {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{").await);
            return std::future::pending().await;
        }
        path if path.starts_with("/ipfs/") || path.starts_with("/multi/") => {
            let name = format!(r#"{{"name":"{path}"}}"#);
            plain("200 OK", "", &name)
        }
        _ => plain("404 Not Found", "", ""),
    };
    drop(stream.write_all(answer.as_bytes()).await);
}
