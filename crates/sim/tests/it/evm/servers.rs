//! Small servers on loopback that end with the test: HTTP with scripted answers, a Unix socket, and a
//! WebSocket.

use std::path::Path;
use std::sync::Arc;

use logmill_io::Tasks;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener};

/// Returns the bytes of the response to the head and body of a request.
pub(super) type Responder = Arc<dyn Fn(&str, &[u8]) -> Vec<u8> + Send + Sync>;

/// An HTTP response.
pub(super) fn http(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}").into_bytes()
}

/// Serves HTTP until `server` is dropped; returns host and port.
pub(super) async fn serve_http(responder: Responder, server: &mut Tasks<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    server.spawn(async move {
        let mut connections = Tasks::new();
        while let Ok((socket, _)) = listener.accept().await {
            let responder = Arc::clone(&responder);
            connections.spawn(async move {
                // A client that disconnects is not a failure of the server.
                let _ = talk_http(socket, &responder).await;
            });
        }
    });
    address.to_string()
}

async fn talk_http(socket: TcpStream, responder: &Responder) -> std::io::Result<()> {
    let mut stream = BufReader::new(socket);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let lower = head.to_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().expect("a length"))];
        stream.read_exact(&mut body).await?;
        stream.write_all(&responder(&head, &body)).await?;
    }
}

/// Serves lines of JSON on a Unix socket. Each connection ends after `answers` answers.
pub(super) fn serve_ipc(path: &Path, responder: Responder, answers: usize, server: &mut Tasks<()>) {
    let listener = UnixListener::bind(path).expect("a socket");
    server.spawn(async move {
        let mut connections = Tasks::new();
        while let Ok((socket, _)) = listener.accept().await {
            let responder = Arc::clone(&responder);
            connections.spawn(async move {
                let mut stream = BufReader::new(socket);
                for _ in 0..answers {
                    let mut line = Vec::new();
                    if stream.read_until(b'\n', &mut line).await.unwrap_or(0) == 0 {
                        return;
                    }
                    let mut answer = responder("", &line);
                    answer.push(b'\n');
                    // In two parts, as sockets do.
                    let (first, second) = answer.split_at(answer.len() / 2);
                    let _ = stream.write_all(first).await;
                    let _ = stream.flush().await;
                    let _ = stream.write_all(second).await;
                }
            });
        }
    });
}
