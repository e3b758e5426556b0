//! JSON over HTTP: one body out, one body in.
//!
//! Guarantees: redirects are returned like other answers, proxies from the environment are not used, a body is
//! cut off at its limit while it arrives, and errors contain only host and port. Leaves to others: what a
//! status means.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;

use super::endpoint::{Endpoint, Scheme};
use super::{Limits, Wire, WireResponse, within};
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};

const IDLE_PER_HOST_MAX: usize = 16;

/// How long an idle connection is kept: shorter than servers usually keep theirs.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Time limit for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Longer `Retry-After` waits of guarded requests are cut to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Maximum allocation for a body before any of it has arrived.
const BODY_FIRST_MAX: usize = 1 << 20;

/// A client with its connections. Cheap to clone.
#[derive(Clone)]
pub struct HttpClient {
    client: reqwest::Client,
    clock: Arc<dyn Clock>,
}

impl HttpClient {
    pub fn new(clock: Arc<dyn Clock>) -> Result<Self> {
        let client = reqwest::Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .referer(false)
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .tcp_nodelay(true)
            .user_agent(concat!("logmill/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|source| failed("create a client", "http", source))?;
        Ok(Self { client, clock })
    }

    /// Posts JSON and returns the answer, whatever its status.
    pub async fn post_json(
        &self,
        to: &Endpoint,
        body: Bytes,
        limits: Limits,
    ) -> Result<WireResponse> {
        within(&*self.clock, "post by http", limits.timeout, self.post(to, body, limits)).await
    }

    async fn post(&self, to: &Endpoint, body: Bytes, limits: Limits) -> Result<WireResponse> {
        let (Some(url), Scheme::Http) = (to.url(), to.scheme()) else {
            return Err(Error::invalid(format!("{to} is not an HTTP address")));
        };
        let place = to.place();
        let request = self.client.post(url.clone());
        let request = request.header(CONTENT_TYPE, "application/json");
        let request = request.header(ACCEPT, "application/json").body(body);
        let sent = request.send().await;
        let mut response = sent.map_err(|source| failed("post to", &place, source))?;
        let status = response.status().as_u16();
        let retry_after = requested_wait(response.headers(), self.clock.now());
        let too_large = || Error::TooLarge { what: place.clone(), limit_bytes: limits.bytes_max };
        let announced = response.content_length().unwrap_or(0);
        if usize::try_from(announced).unwrap_or(usize::MAX) > limits.bytes_max {
            return Err(too_large());
        }
        let first = usize::try_from(announced).unwrap_or(0).min(BODY_FIRST_MAX);
        let mut body = BytesMut::with_capacity(first);
        let read = |source| failed("read the answer of", &place, source);
        while let Some(chunk) = response.chunk().await.map_err(read)? {
            if body.len().saturating_add(chunk.len()) > limits.bytes_max {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(WireResponse { status, retry_after, body: body.freeze() })
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpClient")
    }
}

/// A server that receives JSON by HTTP POST.
#[derive(Clone, Debug)]
pub struct HttpWire {
    client: HttpClient,
    to: Endpoint,
}

impl HttpWire {
    pub fn new(client: HttpClient, to: Endpoint) -> Self {
        Self { client, to }
    }
}

#[async_trait]
impl Wire for HttpWire {
    async fn exchange(&self, body: Bytes, limits: Limits) -> Result<WireResponse> {
        self.client.post_json(&self.to, body, limits).await
    }
}

/// The wait that a `Retry-After` header asks for, at most [`RETRY_AFTER_MAX`].
pub(super) fn retry_after(headers: &HeaderMap<HeaderValue>, now: Timestamp) -> Option<Duration> {
    Some(requested_wait(headers, now)?.min(RETRY_AFTER_MAX))
}

/// The wait that a `Retry-After` header asks for, given in seconds or as a date. A date is compared with the
/// server's `Date` header or, without one, with our clock; a past date means no wait.
fn requested_wait(headers: &HeaderMap<HeaderValue>, now: Timestamp) -> Option<Duration> {
    let asked = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match asked.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let until = httpdate::parse_http_date(asked).ok()?;
            let ours = Duration::from_millis(u64::try_from(now.millis()).unwrap_or(0));
            let now = date(headers).unwrap_or(UNIX_EPOCH + ours);
            Some(until.duration_since(now).unwrap_or_default())
        }
    }
}

fn date(headers: &HeaderMap<HeaderValue>) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?.trim()).ok()
}

fn failed(doing: &'static str, place: &str, source: reqwest::Error) -> Error {
    // Without the URL, which may contain keys.
    Error::Http { doing, place: place.to_owned(), source: source.without_url() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thursday, 1 January 2026, 00:00:00.
    const NOW: Timestamp = Timestamp(1_767_225_600_000);

    fn check(asked: &str, date: Option<&str>, wanted_s: Option<u64>) {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_str(asked).expect("a value"));
        if let Some(date) = date {
            headers.insert(DATE, HeaderValue::from_str(date).expect("a value"));
        }
        let wait = retry_after(&headers, NOW);
        let requested = requested_wait(&headers, NOW);
        assert_eq!(requested.map(|requested| requested.min(RETRY_AFTER_MAX)), wait, "{asked:?}");
        assert_eq!(wait, wanted_s.map(Duration::from_secs), "{asked:?} at {date:?}");
    }

    #[test]
    fn retry_after_may_be_seconds_or_a_date() {
        check("120", None, Some(120));
        check("1000000", None, Some(3_600));
        check("Thu, 01 Jan 2026 00:02:00 GMT", None, Some(120));
        check("Thu, 01 Jan 2026 00:02:00 GMT", Some("no date"), Some(120));
        check("Thu, 01 Jan 2026 00:02:00 GMT", Some("Thu, 01 Jan 2026 00:01:30 GMT"), Some(30));
        check("Fri, 31 Dec 9999 23:59:59 GMT", None, Some(3_600));
        check("Wed, 31 Dec 2025 23:59:59 GMT", None, Some(0));
        check("Thu, 01 Jan 1970 00:00:00 GMT", Some("Fri, 31 Dec 9999 23:59:59 GMT"), Some(0));
    }

    #[test]
    fn a_long_retry_after_of_a_node_is_reported_as_it_was_sent() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("86400"));
        assert_eq!(requested_wait(&headers, NOW), Some(Duration::from_secs(86_400)));
    }

    #[test]
    fn an_invalid_retry_after_is_ignored() {
        for wrong in ["", "-1", "1.5", "soon", "99999999999999999999999", "2026-01-01T00:02:00Z"] {
            check(wrong, None, None);
        }
        check("Thu, 32 Jan 2026 00:02:00 GMT", None, None);
        check("Thu, 01 Jan 1969 00:02:00 GMT", None, None);
        check("Thu, 01 Jan 2026 00:02:00", None, None);
    }
}
