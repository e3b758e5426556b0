//! The part of HTTP/1.1 that a load generator and a simulated node need: messages framed by `Content-Length` or in
//! chunks, over persistent connections.
//!
//! A client library would use more of the cores that the server under test needs.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Minimum size of a read.
const READ_BYTES: usize = 64 << 10;

/// A connection, with a buffer of data that was read but not yet used.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Whether an answer with an error status is accepted.
    any_status: bool,
}

/// Position of a message in the buffer.
struct Frame {
    body: std::ops::Range<usize>,
    end: usize,
    chunked: bool,
}

impl Connection {
    pub async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await;
        Self::of(stream.with_context(|| format!("connecting to {address}"))?)
    }

    pub fn of(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(READ_BYTES), any_status: false })
    }

    pub async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Reads a message and returns the length of its body, which is discarded.
    pub async fn skip(&mut self) -> anyhow::Result<usize> {
        let frame = self.frame().await?.context("the connection was closed")?;
        self.buffer.drain(..frame.end);
        Ok(frame.body.len())
    }

    /// Reads a message and returns its body; none if the peer has closed the connection.
    pub async fn receive(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(frame) = self.frame().await? else {
            return Ok(None);
        };
        let raw = &self.buffer[frame.body.clone()];
        let body = if frame.chunked { joined(raw)? } else { raw.to_vec() };
        self.buffer.drain(..frame.end);
        Ok(Some(body))
    }

    /// Reads an answer with any status; returns status and body.
    pub async fn receive_any(&mut self) -> anyhow::Result<(u16, Vec<u8>)> {
        let (head, body) = self.request().await?.context("the connection was closed")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.context("an answer without a status")?, body))
    }

    /// Reads a message of any kind; returns head and body, none if the peer has closed the connection.
    pub async fn request(&mut self) -> anyhow::Result<Option<(String, Vec<u8>)>> {
        self.any_status = true;
        let frame = self.frame().await;
        self.any_status = false;
        let Some(frame) = frame? else {
            return Ok(None);
        };
        let head = String::from_utf8_lossy(&self.buffer[..frame.body.start]).into_owned();
        let raw = &self.buffer[frame.body.clone()];
        let body = if frame.chunked { joined(raw)? } else { raw.to_vec() };
        self.buffer.drain(..frame.end);
        Ok(Some((head, body)))
    }

    /// Reads until a complete message is in the buffer.
    async fn frame(&mut self) -> anyhow::Result<Option<Frame>> {
        // Where the search for the end of the head continues, and where the next chunk begins.
        let (mut searched, mut head) = (0, None);
        let mut chunk_at = 0;
        loop {
            if head.is_none() {
                let from = searched;
                searched = self.buffer.len().saturating_sub(3);
                if let Some(found) = find(&self.buffer[from..], b"\r\n\r\n") {
                    let at = from + found + 4;
                    head = Some((at, Head::read(&self.buffer[..at], self.any_status)?));
                    chunk_at = at;
                }
            }
            match &head {
                Some((at, Head { length: Some(length) })) if self.buffer.len() >= at + length => {
                    let end = at + length;
                    return Ok(Some(Frame { body: *at..end, end, chunked: false }));
                }
                Some((at, Head { length: None })) => {
                    if let Some(end) = chunks_end(&self.buffer, &mut chunk_at)? {
                        return Ok(Some(Frame { body: *at..end, end, chunked: true }));
                    }
                }
                _ => {}
            }
            if self.buffer.len() > MESSAGE_BYTES_MAX {
                bail!("a message of more than {MESSAGE_BYTES_MAX} bytes");
            }
            self.buffer.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                match self.buffer.is_empty() {
                    true => return Ok(None),
                    false => bail!("the connection was closed in the middle of a message"),
                }
            }
        }
    }
}

/// The part of a head that is needed.
struct Head {
    /// None if the body is chunked.
    length: Option<usize>,
}

impl Head {
    fn read(head: &[u8], any_status: bool) -> anyhow::Result<Self> {
        let head = std::str::from_utf8(head).context("a head that is not UTF-8")?;
        let status = head.lines().next().unwrap_or_default();
        if !any_status && status.starts_with("HTTP/") && !status.contains(" 200 ") {
            bail!("the server answered {status:?}");
        }
        for line in head.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            if name.eq_ignore_ascii_case("content-length") {
                return Ok(Self { length: Some(value.trim().parse()?) });
            }
            if name.eq_ignore_ascii_case("transfer-encoding") && value.contains("chunked") {
                return Ok(Self { length: None });
            }
        }
        Ok(Self { length: Some(0) })
    }
}

/// Returns the end of the last chunk, if it has arrived; `at` is the start of the first unseen chunk.
fn chunks_end(buffer: &[u8], at: &mut usize) -> anyhow::Result<Option<usize>> {
    loop {
        let Some((size, data)) = chunk(buffer, *at)? else {
            return Ok(None);
        };
        if buffer.len() < data + size + 2 {
            return Ok(None);
        }
        if size == 0 {
            return Ok(Some(data + 2));
        }
        *at = data + size + 2;
    }
}

/// Returns the size of the chunk at `at`, and the start of its data.
fn chunk(buffer: &[u8], at: usize) -> anyhow::Result<Option<(usize, usize)>> {
    let rest = buffer.get(at..).unwrap_or_default();
    let Some(line) = find(rest, b"\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&rest[..line])?;
    let size = usize::from_str_radix(text.trim(), 16).context("parsing the size of a chunk")?;
    Ok(Some((size, at + line + 2)))
}

fn joined(raw: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (mut out, mut at) = (Vec::with_capacity(raw.len()), 0);
    while let Some((size, data)) = chunk(raw, at)? {
        if size == 0 {
            break;
        }
        out.extend_from_slice(raw.get(data..data + size).context("an incomplete chunk")?);
        at = data + size + 2;
    }
    Ok(out)
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// A JSON-RPC request, with its head.
pub fn post(address: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A GET request.
pub fn get(address: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes()
}

/// The head of an answer whose body has `length` bytes.
pub fn ok(length: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn both() -> (Connection, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (client, server) = tokio::join!(Connection::open(&address), listener.accept());
        (client.unwrap(), Connection::of(server.unwrap().0).unwrap())
    }

    #[tokio::test]
    async fn a_body_is_read_by_length_and_in_chunks() {
        let (mut client, mut server) = both().await;
        client.send(&post("here", "[1]")).await.unwrap();
        client.send(&post("here", "[2]")).await.unwrap();
        assert_eq!(server.receive().await.unwrap().unwrap(), b"[1]");
        assert_eq!(server.receive().await.unwrap().unwrap(), b"[2]");
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        server.send(format!("{head}3\r\nabc\r\n1").as_bytes()).await.unwrap();
        server.send(b"0\r\n0123456789abcdef\r\n0\r\n\r\n").await.unwrap();
        assert_eq!(client.receive().await.unwrap().unwrap(), b"abc0123456789abcdef");
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        assert_eq!(client.skip().await.unwrap(), 2);
        drop(server);
        assert!(client.receive().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn an_answer_that_is_not_200_is_an_error() {
        let (mut client, mut server) = both().await;
        server.send(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert!(client.receive().await.is_err());
    }
}
