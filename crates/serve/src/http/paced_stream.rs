//! One socket: reads, writes, and the minimum pace of its client.
//!
//! Guarantees: a client that reads more slowly than [`RATE_BYTES_MIN`] per [`RATE_WINDOW`] is dropped; a client that is
//! refused while it still sends can read the response, because its data is read and discarded for a while. Leaves to
//! others: the protocol ([`super::connection`]).

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use logmill_io::Clock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::admission::ConnectionPermit;
use super::head_scan::HeadScan;

/// Minimum number of bytes that the client must read in each window while there is data to send.
const RATE_BYTES_MIN: usize = 16 << 10;
const RATE_WINDOW: Duration = Duration::from_secs(20);
/// First bytes of a client that speaks HTTP/2 with prior knowledge.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time and number of bytes for which data is read and discarded after a refusal.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 4 << 20;

/// State shared by the parts of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct InputState {
    head: Arc<Mutex<HeadScan>>,
    /// Whether a request was answered before it arrived completely.
    pub(super) has_unread: Arc<AtomicBool>,
}

impl InputState {
    pub(super) fn head(&self) -> MutexGuard<'_, HeadScan> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose client must read at a minimum rate.
pub(super) struct PacedStream {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    /// While data waits to be sent: the end of the window, and the bytes written in it.
    window: Option<(BoxFuture<'static, ()>, usize)>,
    /// Bytes read to detect the version, not yet passed on.
    peeked: Bytes,
    /// After the last write: the end of the linger time, and the bytes discarded so far.
    linger: Option<(BoxFuture<'static, ()>, usize)>,
    pub(super) input: InputState,
    pub(super) permit: ConnectionPermit,
}

impl PacedStream {
    pub(super) fn new(stream: TcpStream, clock: Arc<dyn Clock>, permit: ConnectionPermit) -> Self {
        // Responses are written whole or in large pieces, so waiting for more data only delays them.
        let _ = stream.set_nodelay(true);
        let input = InputState::default();
        Self { stream, clock, window: None, peeked: Bytes::new(), linger: None, input, permit }
    }

    /// Whether the client starts with the HTTP/2 preface. The bytes read are passed on.
    pub(super) async fn begins_with_http2(&mut self) -> io::Result<bool> {
        let mut peeked = Vec::with_capacity(PREFACE.len());
        let mut part = [0; PREFACE.len()];
        while peeked.len() < PREFACE.len() && PREFACE.starts_with(&peeked) {
            match self.stream.read(&mut part[peeked.len()..]).await? {
                0 => break,
                bytes => {
                    let at = peeked.len();
                    peeked.extend_from_slice(&part[at..at + bytes]);
                }
            }
        }
        let is_http2 = peeked == PREFACE;
        // The preface ends like a head, so nothing after it is scanned.
        self.input.head().take(&peeked);
        self.peeked = peeked.into();
        Ok(is_http2)
    }

    /// Reads and discards incoming data while the client may still be reading why it was refused: closing a socket with
    /// unread data resets the connection, and the client would lose the response.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let has_unread = self.input.has_unread.load(Ordering::SeqCst);
        let mut part = [0; 8 << 10];
        loop {
            let mut buffer = ReadBuf::new(&mut part);
            let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            let bytes = buffer.filled().len();
            let clock = &self.clock;
            let linger = || (clock.sleep(LINGER), 0);
            match read {
                Poll::Ready(Ok(())) if bytes > 0 => {
                    let (_, dropped) = self.linger.get_or_insert_with(linger);
                    *dropped += bytes;
                    if *dropped > LINGER_BYTES_MAX {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if !has_unread && self.linger.is_none() => return Poll::Ready(()),
                Poll::Pending => {
                    let (end, _) = self.linger.get_or_insert_with(linger);
                    return end.as_mut().poll(context);
                }
            }
        }
    }

    /// Updates the window after a write of the given size.
    fn pace(
        &mut self,
        context: &mut Context<'_>,
        given: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => {
                let taken = self.window.as_ref().map_or(0, |(_, taken)| *taken) + bytes;
                if *bytes == given || taken >= RATE_BYTES_MIN {
                    // Everything was written, or enough of it.
                    if self.window.take().is_some() {
                        self.permit.slot().stalled(false);
                    }
                } else if let Some((_, before)) = &mut self.window {
                    *before = taken;
                }
                return written;
            }
            Poll::Ready(Err(_)) => return written,
            Poll::Pending => {}
        }
        if self.window.is_none() {
            self.permit.slot().stalled(true);
        }
        let clock = &self.clock;
        let (end, _) = self.window.get_or_insert_with(|| (clock.sleep(RATE_WINDOW), 0));
        ready!(end.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")))
    }
}

impl AsyncRead for PacedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.peeked.is_empty() {
            let bytes = self.peeked.len().min(buffer.remaining());
            buffer.put_slice(&self.peeked[..bytes]);
            self.peeked.advance(bytes);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.input.head().take(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PacedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pace(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let given = parts.iter().map(|part| part.len()).sum();
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.pace(context, given, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        self.poll_linger(context).map(Ok)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test listens and connects itself")]
mod tests {
    use super::*;
    use crate::http::admission::{Admission, ConnectionLimits};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    /// A clock whose sleeps end on request.
    #[derive(Debug)]
    struct ManualClock(Arc<tokio::sync::Notify>);

    impl Clock for ManualClock {
        fn now(&self) -> logmill_io::Timestamp {
            logmill_io::Timestamp(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            let told = Arc::clone(&self.0);
            Box::pin(async move { told.notified().await })
        }
    }

    async fn permit(clock: &Arc<dyn Clock>) -> ConnectionPermit {
        let admission = Admission::new(ConnectionLimits::default(), Arc::clone(clock));
        admission.admit(admission.room().await.expect("a place"), [127, 0, 0, 1].into())
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_for_a_whole_window_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let end = Arc::new(tokio::sync::Notify::new());
        let clock: Arc<dyn Clock> = Arc::new(ManualClock(Arc::clone(&end)));
        let mut paced = PacedStream::new(stream, Arc::clone(&clock), permit(&clock).await);
        let piece = vec![0; 1 << 20];
        // The window begins when the socket buffers are full.
        end.notify_one();
        let mut outcome = Ok(());
        for _ in 0..1_000 {
            outcome = paced.write_all(&piece).await;
            if outcome.is_err() {
                break;
            }
        }
        let error = outcome.expect_err("it does not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn a_client_that_reads_slowly_but_steadily_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let clock: Arc<dyn Clock> = Arc::new(ManualClock(Arc::new(tokio::sync::Notify::new())));
        let mut paced = PacedStream::new(stream, Arc::clone(&clock), permit(&clock).await);
        let writing = async {
            paced.write_all(&vec![0; 32 << 20]).await.expect("all is taken");
            paced.shutdown().await.expect("closed");
        };
        let reading = async {
            let mut client = client;
            let taken = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
            assert_eq!(taken.expect("read"), 32 << 20);
        };
        tokio::join!(writing, reading);
    }
}
