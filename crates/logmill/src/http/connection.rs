//! Connections: accepting them, and letting go of those that waste our time.
//!
//! Guarantees: never more connections than allowed; a client that sends no whole head in time, or takes what is sent
//! more slowly than [`RATE_BYTES_MIN`] in [`RATE_WINDOW`], is dropped; after the stop signal requests under way are
//! answered, for a bounded time. Leaves to others: what is answered.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use futures::future::BoxFuture;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use logmill_io::{Clock, Tasks};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How long a client may take to send the head of a request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(15);
/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a stop waits for requests under way.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// How long to wait after a connection could not be accepted, as when there are too many open files.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// While there is something to send, at least this much is taken in each window.
const RATE_BYTES_MIN: usize = 16 << 10;
const RATE_WINDOW: Duration = Duration::from_secs(20);

/// Accepts and serves until it is told to stop.
pub(super) async fn accept(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
) {
    let max = u32::try_from(connections_max).unwrap_or(u32::MAX);
    let places = Arc::new(Semaphore::new(connections_max));
    let mut tasks: Tasks<()> = Tasks::new();
    loop {
        let accepted = async {
            let permit = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, permit)
        };
        tokio::select! {
            biased;
            () = told(&mut stop) => break,
            Some(_) = tasks.join_next() => {}
            (stream, permit) = accepted => match (stream, permit) {
                (Ok((stream, _)), Ok(permit)) => {
                    let paced = Paced::new(stream, Arc::clone(&clock), permit);
                    tasks.spawn(serve(paced, router.clone(), stop.clone()));
                }
                (Err(error), _) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    clock.sleep(ACCEPT_WAIT).await;
                }
                (_, Err(_)) => break,
            },
        }
    }
    drop(listener);
    // All places free: WebSockets, which are tasks of their own, have ended too.
    tokio::select! {
        biased;
        _ = places.acquire_many(max) => {}
        () = clock.sleep(STOP_TIME_MAX) => {}
    }
}

/// Completes when the server stops.
pub(super) async fn told(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone has stopped too.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

async fn serve(paced: Paced, router: Router, mut stop: watch::Receiver<bool>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(paced), TowerToHyperService::new(router))
        .with_upgrades();
    let mut connection = pin!(connection);
    let served = tokio::select! {
        biased;
        served = connection.as_mut() => served,
        () = told(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        // A client that went away, or spoke no HTTP.
        tracing::debug!(%error, "a connection ended");
    }
}

/// A connection that must take what is sent at a least rate.
struct Paced {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    /// While something waits to be sent: the end of the window, and how much was taken in it.
    window: Option<(BoxFuture<'static, ()>, usize)>,
    _permit: OwnedSemaphorePermit,
}

impl Paced {
    fn new(stream: TcpStream, clock: Arc<dyn Clock>, permit: OwnedSemaphorePermit) -> Self {
        // Answers are written whole or in large pieces: waiting for more only delays them.
        let _ = stream.set_nodelay(true);
        Self { stream, clock, window: None, _permit: permit }
    }

    /// Looks at the pace, given what the stream did with a write of so many bytes.
    fn pace(
        &mut self,
        context: &mut Context<'_>,
        given: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => {
                let taken = self.window.as_ref().map_or(0, |(_, taken)| *taken) + bytes;
                match &mut self.window {
                    // Nothing waits any more, or enough was taken.
                    _ if *bytes == given || taken >= RATE_BYTES_MIN => self.window = None,
                    Some((_, before)) => *before = taken,
                    None => {}
                }
                return written;
            }
            Poll::Ready(Err(_)) => return written,
            Poll::Pending => {}
        }
        let clock = &self.clock;
        let (end, _) = self.window.get_or_insert_with(|| (clock.sleep(RATE_WINDOW), 0));
        ready!(end.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")))
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Paced {
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
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test listens and connects itself")]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// A clock whose waits end when they are told to.
    #[derive(Debug)]
    struct Told(Arc<tokio::sync::Notify>);

    impl Clock for Told {
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

    #[tokio::test]
    async fn a_client_that_takes_nothing_for_a_whole_window_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let end = Arc::new(tokio::sync::Notify::new());
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("a place");
        let mut paced = Paced::new(stream, Arc::new(Told(Arc::clone(&end))), permit);
        let piece = vec![0; 1 << 20];
        // The window begins when the buffers are full.
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
    async fn a_client_that_takes_its_time_but_takes_is_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("a place");
        let clock = Told(Arc::new(tokio::sync::Notify::new()));
        let mut paced = Paced::new(stream, Arc::new(clock), permit);
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
