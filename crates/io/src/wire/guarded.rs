//! An HTTP client for URLs from untrusted sources: token metadata, customers' webhooks.
//!
//! Such a URL may point anywhere: at this machine, at its network, at the metadata service where a cloud keeps
//! credentials. So this client resolves a host itself, checks all its addresses, and connects only to these. A
//! redirect is checked like any other URL.
//!
//! Guarantees: only `http` and `https`, only the configured ports, no credentials in a URL, no address that is
//! not public ([`is_public`]) unless it is allowed by name or network; no proxy, no cookies, no decompression.
//! A body is cut off at its limit while it arrives, and one deadline applies to all hops together. Errors
//! contain only host and port. Leaves to others: what a status or a body means, and retries.

use std::error::Error as _;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    LOCATION,
};
use reqwest::redirect::Policy;
use reqwest::{Method, Request, Response, Url};

use super::endpoint::refuse_control_characters;
use super::http::retry_after;
use super::{Limits, within};
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};

mod net;
mod resolve;
#[cfg(test)]
mod tests;

pub use net::{Net, is_public};
use resolve::{AddressRefusal, Gate, SystemResolver};
pub use resolve::{AllowedTarget, NameResolver};

/// Time limit for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Maximum allocation for a body before any of it has arrived.
const BODY_FIRST_MAX: usize = 64 << 10;
const URL_LENGTH_MAX: usize = 8 << 10;
/// Longer content types are ignored.
const CONTENT_TYPE_LENGTH_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedSettings {
    /// Permitted ports; empty for all.
    pub ports: Vec<u16>,
    /// Maximum number of redirects per request.
    pub redirects_max: u32,
    /// Hosts and networks that may be reached although they are not public.
    pub allowed: Vec<AllowedTarget>,
    /// The configuration key of `allowed`, if there is one: a refusal names it.
    pub allowed_setting: Option<&'static str>,
    pub idle_per_host_max: usize,
}

impl Default for GuardedSettings {
    fn default() -> Self {
        Self {
            ports: vec![80, 443],
            redirects_max: 3,
            allowed: Vec::new(),
            allowed_setting: None,
            idle_per_host_max: 2,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedResponse {
    pub status: u16,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// The server's `Content-Type`.
    pub content_type: Option<String>,
    pub body: Bytes,
}

/// A client with its connections. Cheap to clone.
#[derive(Clone)]
pub struct GuardedClient {
    client: reqwest::Client,
    gate: Gate,
    settings: Arc<GuardedSettings>,
    clock: Arc<dyn Clock>,
}

impl GuardedClient {
    /// A client that uses the system's resolver.
    pub fn new(clock: Arc<dyn Clock>, settings: GuardedSettings) -> Result<Self> {
        Self::with_names(clock, settings, Arc::new(SystemResolver))
    }

    /// A client with another resolver.
    pub fn with_names(
        clock: Arc<dyn Clock>,
        settings: GuardedSettings,
        names: Arc<dyn NameResolver>,
    ) -> Result<Self> {
        let (allowed, setting) = (settings.allowed.clone().into(), settings.allowed_setting);
        let gate = Gate { names, allowed, setting };
        let client = reqwest::Client::builder()
            .dns_resolver(Arc::new(gate.clone()))
            .redirect(Policy::none())
            .no_proxy()
            .no_gzip()
            .no_brotli()
            .no_deflate()
            .no_zstd()
            .referer(false)
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(settings.idle_per_host_max)
            .user_agent(concat!("logmill/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|source| failed("create a client", "http", source))?;
        Ok(Self { client, gate, settings: Arc::new(settings), clock })
    }

    /// Gets a URL, following redirects; returns the last answer, whatever its status.
    pub async fn get(&self, url: &str, accept: &str, limits: Limits) -> Result<GuardedResponse> {
        let url = parsed(url)?;
        let accept = header(accept)?;
        let work = self.hops(url, accept, limits.bytes_max);
        within(&*self.clock, "get by guarded http", limits.timeout, work).await
    }

    /// Refuses a URL that could never be requested, without resolving its name; returns host and port.
    pub fn check_address(&self, url: &str) -> Result<String> {
        refuse_control_characters(url)?;
        self.check(&parsed(url)?)
    }

    /// Posts a body and returns the answer, whatever its status. Redirects are not followed.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        limits: Limits,
    ) -> Result<GuardedResponse> {
        let request = posting(url, headers, body)?;
        let work = async {
            let (place, response) = self.send(request).await?;
            read(&place, response, limits.bytes_max, self.clock.now()).await
        };
        within(&*self.clock, "post by guarded http", limits.timeout, work).await
    }

    /// Posts a body to a server whose status alone matters: reads at most the limit of the answer's body, and a
    /// body that is longer, late, broken or compressed is not an error.
    pub async fn post_for_status(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        limits: Limits,
    ) -> Result<GuardedResponse> {
        let request = posting(url, headers, body)?;
        let started = self.clock.monotonic();
        let sent = self.send(request);
        let (_, mut response) =
            within(&*self.clock, "post by guarded http", limits.timeout, sent).await?;
        let headers = response.headers();
        let mut fetched = GuardedResponse {
            status: response.status().as_u16(),
            retry_after: retry_after(headers, self.clock.now()),
            content_type: content_type(headers),
            body: Bytes::new(),
        };
        if is_compressed(headers) {
            return Ok(fetched);
        }
        let taken = self.clock.monotonic().saturating_sub(started);
        let mut begun = BytesMut::new();
        tokio::select! {
            biased;
            () = read_begin(&mut response, limits.bytes_max, &mut begun) => {}
            () = self.clock.sleep(limits.timeout.saturating_sub(taken)) => {}
        }
        fetched.body = begun.freeze();
        Ok(fetched)
    }

    async fn hops(
        &self,
        url: Url,
        accept: HeaderValue,
        bytes_max: usize,
    ) -> Result<GuardedResponse> {
        let mut url = url;
        for hop in 0.. {
            let mut request = Request::new(Method::GET, url.clone());
            request.headers_mut().insert(ACCEPT, accept.clone());
            let (place, response) = self.send(request).await?;
            let Some(next) = redirect(&place, &url, &response)? else {
                return read(&place, response, bytes_max, self.clock.now()).await;
            };
            if hop >= self.settings.redirects_max {
                let why = format!("more than {} redirects", self.settings.redirects_max);
                return Err(Error::Refused { place, why });
            }
            url = next;
        }
        // Unreachable: the range above has no end.
        Err(Error::invalid("no request was made"))
    }

    /// Checks the destination and sends one request; returns host and port with the response.
    async fn send(&self, mut request: Request) -> Result<(String, Response)> {
        let place = self.check(request.url())?;
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let response = self.client.execute(request).await;
        let response = response.map_err(|source| match barred(&source) {
            Some(barred) => Error::Refused { place: place.clone(), why: barred.why },
            None => failed("send a request to", &place, source),
        })?;
        Ok((place, response))
    }

    /// Refuses an invalid URL before any name is resolved; returns host and port.
    fn check(&self, url: &Url) -> Result<String> {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        let place = format!("{host}:{port}");
        let refused = |why: &str| Err(Error::Refused { place: place.clone(), why: why.to_owned() });
        if !matches!(url.scheme(), "http" | "https") {
            return refused("neither http nor https");
        }
        if host.is_empty() {
            return refused("the URL has no host");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refused("the URL contains credentials");
        }
        if !self.settings.ports.is_empty() && !self.settings.ports.contains(&port) {
            return refused("the port is not one of the permitted ports");
        }
        // No resolver is involved in connecting to a literal address, so it is checked here.
        let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let checked = match literal {
            Some(address) => self.gate.check(None, address),
            None => self.gate.check_name(host),
        };
        if let Err(barred) = checked {
            return refused(&barred.why);
        }
        Ok(place)
    }
}

impl fmt::Debug for GuardedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedClient").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Parses a URL. The error does not repeat it.
fn parsed(url: &str) -> Result<Url> {
    if url.len() > URL_LENGTH_MAX {
        return Err(Error::invalid(format!("the URL has more than {URL_LENGTH_MAX} bytes")));
    }
    Url::parse(url).map_err(|error| Error::invalid(format!("not a valid URL: {error}")))
}

fn posting(url: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Request> {
    let mut request = Request::new(Method::POST, parsed(url)?);
    for (name, value) in headers {
        let name: HeaderName = name
            .parse()
            .map_err(|_| Error::invalid(format!("{name:?} is not a valid header name")))?;
        request.headers_mut().insert(name, header(value)?);
    }
    *request.body_mut() = Some(body.into());
    Ok(request)
}

fn header(value: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value)
        .map_err(|_| Error::invalid("a header value has characters that cannot be sent"))
}

/// The target of a redirect, if the response is one.
fn redirect(place: &str, from: &Url, response: &Response) -> Result<Option<Url>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else {
        return Ok(None);
    };
    let location = location.to_str().ok().filter(|location| location.len() <= URL_LENGTH_MAX);
    let next = location.and_then(|location| from.join(location).ok());
    let why = "a redirect to an invalid URL".to_owned();
    next.map(Some).ok_or_else(|| Error::Refused { place: place.to_owned(), why })
}

async fn read(
    place: &str,
    mut response: Response,
    bytes_max: usize,
    now: Timestamp,
) -> Result<GuardedResponse> {
    let headers = response.headers();
    if is_compressed(headers) {
        let why = "the body is compressed, which was not asked for".to_owned();
        return Err(Error::Refused { place: place.to_owned(), why });
    }
    let status = response.status().as_u16();
    let (retry_after, content_type) = (retry_after(headers, now), content_type(headers));
    let too_large = || Error::TooLarge { what: place.to_owned(), limit_bytes: bytes_max };
    let announced = usize::try_from(response.content_length().unwrap_or(0)).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(too_large());
    }
    let mut body = BytesMut::with_capacity(announced.min(BODY_FIRST_MAX));
    let broken = |source| failed("read the answer of", place, source);
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        if body.len().saturating_add(chunk.len()) > bytes_max {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(GuardedResponse { status, retry_after, content_type, body: body.freeze() })
}

/// Reads the beginning of a body, up to the limit.
async fn read_begin(response: &mut Response, bytes_max: usize, begun: &mut BytesMut) {
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = bytes_max.saturating_sub(begun.len());
        begun.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return;
        }
    }
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().any(|encoding| {
        !encoding.to_str().is_ok_and(|encoding| {
            let encoding = encoding.trim();
            encoding.is_empty() || encoding.eq_ignore_ascii_case("identity")
        })
    })
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    let said = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    (said.len() <= CONTENT_TYPE_LENGTH_MAX).then(|| said.to_owned())
}

/// The gate's refusal, if the gate made the request fail.
fn barred(error: &reqwest::Error) -> Option<AddressRefusal> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(barred) = error.downcast_ref::<AddressRefusal>() {
            return Some(barred.clone());
        }
        cause = error.source();
    }
    None
}

fn failed(doing: &'static str, place: &str, source: reqwest::Error) -> Error {
    // Without the URL, which may be a secret.
    Error::Http { doing, place: place.to_owned(), source: source.without_url() }
}
