//! Texts pushed by a server over a WebSocket.
//!
//! Guarantees: a message is at most as large as allowed; a frame that cannot be read is an error of its
//! connection. Leaves to others: reconnecting.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::endpoint::{Endpoint, Scheme};
use super::{Feed, Limits, TextStream, within};
use crate::clock::Clock;
use crate::error::{Error, Result};

pub struct WebSocketFeed {
    to: Endpoint,
    clock: Arc<dyn Clock>,
}

impl WebSocketFeed {
    /// Does not connect yet.
    pub fn new(to: Endpoint, clock: Arc<dyn Clock>) -> Self {
        Self { to, clock }
    }

    async fn connect(&self, hello: String, limits: Limits) -> Result<Box<dyn TextStream>> {
        let (Some(url), Scheme::WebSocket) = (self.to.url(), self.to.scheme()) else {
            return Err(Error::invalid(format!("{} is not a WebSocket", self.to)));
        };
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(limits.bytes_max);
        config.max_frame_size = Some(limits.bytes_max);
        let place = self.to.place();
        let connected = connect_async_with_config(url.as_str(), Some(config), true).await;
        let (mut stream, _) = connected.map_err(|source| failed("connect to", &place, source))?;
        let said = stream.send(Message::text(hello)).await;
        said.map_err(|source| failed("write to", &place, source))?;
        Ok(Box::new(Connection { place, stream }))
    }
}

#[async_trait]
impl Feed for WebSocketFeed {
    async fn open(&self, hello: String, limits: Limits) -> Result<Box<dyn TextStream>> {
        let connect = self.connect(hello, limits);
        within(&*self.clock, "open a WebSocket", limits.timeout, connect).await
    }
}

impl fmt::Debug for WebSocketFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebSocketFeed({})", self.to)
    }
}

struct Connection {
    place: String,
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

#[async_trait]
impl TextStream for Connection {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        // The stream answers pings itself while it is read.
        while let Some(message) = self.stream.next().await {
            match message.map_err(|source| failed("read from", &self.place, source))? {
                Message::Text(text) => return Ok(Some(Bytes::from(text))),
                Message::Binary(bytes) => return Ok(Some(bytes)),
                Message::Close(_) => return Ok(None),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
        Ok(None)
    }
}

fn failed(doing: &'static str, place: &str, source: tungstenite::Error) -> Error {
    // The error of a refused handshake contains the whole response, which may repeat the URL.
    let source: Box<dyn std::error::Error + Send + Sync> = match source {
        tungstenite::Error::Http(answer) => format!("http status {}", answer.status()).into(),
        tungstenite::Error::Url(_) => "cannot connect to this URL".into(),
        other => Box::new(other),
    };
    Error::Socket { doing, place: place.to_owned(), source }
}
