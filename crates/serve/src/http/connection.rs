//! Connections: accepts them, and drops those that waste the server's time.
//!
//! Guarantees: never more connections than allowed; a client that does not send its request in time is dropped; after
//! the stop signal, requests in progress are still answered, for a bounded time. HTTP/2 is used with clients that start
//! with it (prior knowledge), with limits on streams and resets. Leaves to others: the answers, which connections make
//! room ([`super::admission`]), and clients that do not read ([`super::paced_stream`]).

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use logmill_io::{Clock, Tasks};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::admission::{Admission, Slot};
use super::paced_stream::{InputState, PacedStream};
use super::unread::{UnreadAnswer, UnreadAnswers};

const HEAD_BYTES_MAX: usize = 64 << 10;
/// Time that a stop allows for requests in progress.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// Wait after a failed accept, for example with too many open files.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// Maximum number of concurrent HTTP/2 streams of a connection.
const STREAMS_MAX: u32 = 64;
/// Maximum number of streams that the client reset before they were accepted; more end the connection.
const RESETS_PENDING_MAX: usize = 20;
/// Maximum number of streams reset because of client errors; more end the connection.
const RESETS_MAX: usize = 64;
/// Ping interval of an idle HTTP/2 connection, and the time in which the client must respond.
const HTTP2_PING: Duration = Duration::from_secs(30);
const HTTP2_PONG: Duration = Duration::from_secs(20);

/// Accepts and serves connections until stopped.
pub(super) async fn accept(
    listener: TcpListener,
    router: Router,
    admission: Arc<Admission>,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
) {
    let mut tasks: Tasks<()> = Tasks::new();
    // An accepted connection without a place. Another is closed only once this one exists.
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
            () = stop_requested(&mut stop) => break,
            Some(_) = tasks.join_next() => {}
            permit = accepted => match (permit, arrived.take()) {
                (Ok(Some(permit)), Some((stream, peer))) => {
                    let permit = admission.admit(permit, peer.ip());
                    let connection = ConnectionService {
                        peer: peer.ip(),
                        admission: Arc::clone(&admission),
                        router: router.clone(),
                    };
                    let paced = PacedStream::new(stream, Arc::clone(&clock), permit);
                    tasks.spawn(Arc::new(connection).serve(paced, stop.clone()));
                }
                (Err(error), _) => {
                    tracing::debug!(%error, "cannot accept a connection, retrying");
                    clock.sleep(ACCEPT_WAIT).await;
                }
                (Ok(_), _) => break,
            },
        }
    }
    drop(listener);
    // Waits for all connections, including WebSockets, which are separate tasks.
    tokio::select! {
        biased;
        () = admission.empty() => {}
        () = clock.sleep(STOP_TIME_MAX) => {}
    }
}

pub(super) async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    // A dropped sender also means stop.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

struct ConnectionService {
    peer: IpAddr,
    admission: Arc<Admission>,
    router: Router,
}

impl ConnectionService {
    async fn serve(self: Arc<Self>, paced: PacedStream, stop: watch::Receiver<bool>) {
        let dropped = paced.permit.dropped();
        tokio::select! {
            biased;
            served = self.speak(paced, stop) => if let Err(error) = served {
                // The client disconnected or did not speak HTTP.
                tracing::debug!(%error, "connection ended with an error");
            },
            // Dropping the future closes the socket.
            () = dropped => {}
        }
    }

    /// Serves the HTTP version that the client uses, until either side ends the connection.
    async fn speak(
        self: Arc<Self>,
        mut paced: PacedStream,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), hyper::Error> {
        let is_http2 = tokio::select! {
            biased;
            is_http2 = paced.begins_with_http2() => is_http2,
            () = stop_requested(&mut stop) => return Ok(()),
        };
        match is_http2 {
            Ok(true) => self.speak_http2(paced, stop).await,
            Ok(false) => self.speak_http1(paced, stop).await,
            // The client disconnected.
            Err(_) => Ok(()),
        }
    }

    async fn speak_http1(
        self: Arc<Self>,
        paced: PacedStream,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), hyper::Error> {
        let (slot, input) = (paced.permit.slot(), paced.input.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.admission.limits().header_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(
                TokioIo::new(paced),
                service_fn(|request| {
                    let exchange = Exchange::new(slot.clone(), input.clone(), None);
                    self.answer(exchange, request)
                }),
            )
            .with_upgrades();
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            served = connection.as_mut() => served,
            () = stop_requested(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }

    async fn speak_http2(
        self: Arc<Self>,
        paced: PacedStream,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), hyper::Error> {
        metrics::counter!("logmill_http2_connections_total").increment(1);
        let slot = paced.permit.slot();
        let limit = self.admission.limits().body_timeout;
        let unread = UnreadAnswers::new(self.admission.clock(), limit);
        let answers = unread.clone();
        let service = service_fn(move |request| {
            let (service, answers) = (Arc::clone(&self), Some(answers.clone()));
            let exchange = Exchange::new(slot.clone(), InputState::default(), answers);
            async move { service.answer(exchange, request).await }
        });
        let connection = http2::Builder::new(StreamTasks::default())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
            .max_local_error_reset_streams(RESETS_MAX)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
            .keep_alive_interval(HTTP2_PING)
            .keep_alive_timeout(HTTP2_PONG)
            .serve_connection(TokioIo::new(paced), service);
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            served = connection.as_mut() => served,
            () = unread.overdue() => {
                let reason = "unread_answer";
                metrics::counter!("logmill_http_connections_dropped_total", "reason" => reason)
                    .increment(1);
                Ok(())
            }
            () = stop_requested(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }

    /// Answers one request and reports its progress.
    async fn answer(
        &self,
        exchange: Exchange,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let (slot, input) = (exchange.slot.clone(), exchange.input.clone());
        if input.head().is_ambiguous() {
            let why = "a request must not have both Content-Length and Transfer-Encoding";
            return Ok(exchange.refusal(super::problem(StatusCode::BAD_REQUEST, why)));
        }
        let hosts = request.headers().get_all(HOST).iter().count();
        if request.version() == Version::HTTP_11 && hosts != 1 {
            let why = "a request must have one Host header";
            return Ok(exchange.refusal(super::problem(StatusCode::BAD_REQUEST, why)));
        }
        if request.headers().contains_key(UPGRADE) && !slot.may_upgrade() {
            let why = "too many WebSockets are open (server.max_websockets)";
            let refused = super::problem(StatusCode::SERVICE_UNAVAILABLE, why);
            return Ok(exchange.response(refused));
        }
        name_host(&mut request);
        let client = self.admission.limits().client(self.peer, request.headers());
        let path = request.uri().path().to_owned();
        let request = request.map(|body| Body::new(RequestBody::new(body, slot.clone(), input)));
        let answer = TowerToHyperService::new(self.router.clone()).call(request).await?;
        let status = answer.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            slot.upgraded();
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            tracing::debug!(%client, path, status = status.as_u16(), "request refused");
        }
        Ok(exchange.response(answer))
    }
}

/// Copies the authority of an HTTP/2 request to the `Host` header of HTTP/1, so that it is checked in one place.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    if let Some(authority) = authority
        && !request.headers().contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(&authority)
    {
        request.headers_mut().insert(HOST, host);
    }
}

/// One request, until its response is sent or abandoned.
struct Exchange {
    slot: Slot,
    input: InputState,
    /// For HTTP/2: the responses that the client does not read.
    unread: Option<UnreadAnswers>,
}

impl Exchange {
    fn new(slot: Slot, input: InputState, unread: Option<UnreadAnswers>) -> Self {
        slot.receives();
        // A new request proves that the rest of the previous one was read.
        input.has_unread.store(false, Ordering::SeqCst);
        Self { slot, input, unread }
    }

    fn response(self, response: Response<Body>) -> Response<Body> {
        let unread = self.unread.as_ref().map(UnreadAnswers::add);
        response.map(|body| Body::new(ResponseBody { body, unread, _exchange: self }))
    }

    /// A response after which the connection cannot be parsed any further.
    fn refusal(self, mut response: Response<Body>) -> Response<Body> {
        self.input.has_unread.store(true, Ordering::SeqCst);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        self.response(response)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.slot.answered();
        self.input.head().restart();
    }
}

/// The stream tasks of one connection, which end with it.
#[derive(Clone, Default)]
struct StreamTasks(Arc<Mutex<Tasks<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamTasks {
    fn execute(&self, stream: F) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes finished tasks, so that there are never more tasks than streams.
        while let Some(Some(_)) = tasks.join_next().now_or_never() {}
        tasks.spawn(stream);
    }
}

/// Request body that reports its end.
struct RequestBody {
    body: Incoming,
    slot: Slot,
    input: InputState,
    /// Whether the end was reported: no more of it will come or is needed.
    is_reported: bool,
}

impl RequestBody {
    fn new(body: Incoming, slot: Slot, input: InputState) -> Self {
        let mut request = Self { body, slot, input, is_reported: false };
        if request.body.is_end_stream() {
            request.report_end();
        }
        request
    }

    fn report_end(&mut self) {
        if !std::mem::replace(&mut self.is_reported, true) {
            self.slot.works();
        }
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
            self.report_end();
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
        // The rest of the body is not needed.
        if !self.is_reported {
            self.input.has_unread.store(true, Ordering::SeqCst);
        }
        self.report_end();
    }
}

/// Response body that reports its end.
struct ResponseBody {
    body: Body,
    unread: Option<UnreadAnswer>,
    _exchange: Exchange,
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Some(unread) = &self.unread {
            unread.waits(polled.is_ready());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
