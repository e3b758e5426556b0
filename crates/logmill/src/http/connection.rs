//! Connections: accepting them, and letting go of those that waste our time.
//!
//! Guarantees: never more connections than allowed; a client that does not send its request in time, or takes what is
//! sent more slowly than [`RATE_BYTES_MIN`] in [`RATE_WINDOW`], is dropped; after the stop signal requests under way
//! are answered, for a bounded time. Leaves to others: what is answered, and who makes room for whom
//! ([`super::admission`]).

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::UPGRADE;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use logmill_io::{Clock, Tasks};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::admission::{Admission, Place, Slot};

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
    admission: Arc<Admission>,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
) {
    let mut tasks: Tasks<()> = Tasks::new();
    // Accepted, and without a place: only for one that is there does another make room.
    let mut arrived = None;
    loop {
        let accepted = async {
            if arrived.is_none() {
                arrived = Some(listener.accept().await?);
            }
            io::Result::Ok(admission.room().await)
        };
        tokio::select! {
            biased;
            () = told(&mut stop) => break,
            Some(_) = tasks.join_next() => {}
            permit = accepted => match (permit, arrived.take()) {
                (Ok(Some(permit)), Some((stream, peer))) => {
                    let place = admission.admit(permit, peer.ip());
                    let connection = ConnectionService {
                        peer: peer.ip(),
                        admission: Arc::clone(&admission),
                        router: router.clone(),
                    };
                    let paced = Paced::new(stream, Arc::clone(&clock), place);
                    tasks.spawn(connection.serve(paced, stop.clone()));
                }
                (Err(error), _) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    clock.sleep(ACCEPT_WAIT).await;
                }
                (Ok(_), _) => break,
            },
        }
    }
    drop(listener);
    // All of them: WebSockets, which are tasks of their own, too.
    tokio::select! {
        biased;
        () = admission.empty() => {}
        () = clock.sleep(STOP_TIME_MAX) => {}
    }
}

/// Completes when the server stops.
pub(super) async fn told(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone has stopped too.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

/// What answers the requests of one connection.
struct ConnectionService {
    peer: IpAddr,
    admission: Arc<Admission>,
    router: Router,
}

impl ConnectionService {
    async fn serve(self, paced: Paced, mut stop: watch::Receiver<bool>) {
        let (slot, dropped) = (paced.place.slot(), paced.place.dropped());
        let header_timeout = self.admission.limits().header_timeout;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(
                TokioIo::new(paced),
                service_fn(|request| self.answer(slot.clone(), request)),
            )
            .with_upgrades();
        let mut connection = pin!(connection);
        let serving = async {
            tokio::select! {
                biased;
                served = connection.as_mut() => served,
                () = told(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        let served = tokio::select! {
            biased;
            served = serving => served,
            // What is dropped here closes the socket.
            () = dropped => return,
        };
        if let Err(error) = served {
            // A client that went away, or spoke no HTTP.
            tracing::debug!(%error, "a connection ended");
        }
    }

    /// Answers one request, and says how far it is.
    async fn answer(
        &self,
        slot: Slot,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        slot.receives();
        if request.headers().contains_key(UPGRADE) && !slot.may_upgrade() {
            let why = "there are too many WebSockets (server.max_websockets)";
            let refused = super::problem(StatusCode::SERVICE_UNAVAILABLE, why);
            return Ok(refused.map(|body| Body::new(ResponseBody { body, slot })));
        }
        let client = self.admission.limits().client(self.peer, request.headers());
        let path = request.uri().path().to_owned();
        let request = request.map(|body| Body::new(RequestBody::new(body, slot.clone())));
        let answer = TowerToHyperService::new(self.router.clone()).call(request).await?;
        let status = answer.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            slot.upgraded();
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            tracing::debug!(%client, path, status = status.as_u16(), "a request was refused");
        }
        Ok(answer.map(|body| Body::new(ResponseBody { body, slot })))
    }
}

/// The body of a request, whose end is noted.
struct RequestBody {
    body: Incoming,
    slot: Slot,
}

impl RequestBody {
    fn new(body: Incoming, slot: Slot) -> Self {
        if body.is_end_stream() {
            slot.works();
        }
        Self { body, slot }
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            self.slot.works();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        // Nobody wants the rest of it.
        self.slot.works();
    }
}

/// The body of an answer, whose end is noted.
struct ResponseBody {
    body: Body,
    slot: Slot,
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.slot.answered();
    }
}

/// A connection that must take what is sent at a least rate.
struct Paced {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    /// While something waits to be sent: the end of the window, and how much was taken in it.
    window: Option<(BoxFuture<'static, ()>, usize)>,
    place: Place,
}

impl Paced {
    fn new(stream: TcpStream, clock: Arc<dyn Clock>, place: Place) -> Self {
        // Answers are written whole or in large pieces: waiting for more only delays them.
        let _ = stream.set_nodelay(true);
        Self { stream, clock, window: None, place }
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
                if *bytes == given || taken >= RATE_BYTES_MIN {
                    // Nothing waits any more, or enough was taken.
                    if self.window.take().is_some() {
                        self.place.slot().stalled(false);
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
            self.place.slot().stalled(true);
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
    use crate::http::admission::ConnectionLimits;
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

    async fn place(clock: &Arc<dyn Clock>) -> Place {
        let admission = Admission::new(ConnectionLimits::default(), Arc::clone(clock));
        admission.admit(admission.room().await.expect("a place"), [127, 0, 0, 1].into())
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_for_a_whole_window_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        let end = Arc::new(tokio::sync::Notify::new());
        let clock: Arc<dyn Clock> = Arc::new(Told(Arc::clone(&end)));
        let mut paced = Paced::new(stream, Arc::clone(&clock), place(&clock).await);
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
        let clock: Arc<dyn Clock> = Arc::new(Told(Arc::new(tokio::sync::Notify::new())));
        let mut paced = Paced::new(stream, Arc::clone(&clock), place(&clock).await);
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
