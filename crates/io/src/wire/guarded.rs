//! An HTTP client for addresses that strangers chose: metadata of tokens, webhooks of customers.
//!
//! Such an address may point at anything: at the machine itself, at its neighbours, at the service where a cloud keeps
//! credentials. So a host is resolved here, all its addresses are looked at, and the connection goes to
//! just these; a redirect is a new address like any other.
//!
//! Guarantees: only `http` and `https`, only the ports that are set, no credentials in an address, no address that is
//! not public ([`is_public`]) unless it is allowed by name or network; no proxy, no cookies, no decompression; a body
//! is cut off at its limit while it arrives, and one deadline holds for all hops together. Errors name host and port
//! alone. Leaves to others: what a status or a body means, trying again.

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
pub use resolve::{Allowed, Names};
use resolve::{Barred, Gate, SystemNames};

/// The longest until a connection stands.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// What is allocated for a body before any of it has come.
const BODY_FIRST_MAX: usize = 64 << 10;
/// The longest address.
const URL_LENGTH_MAX: usize = 8 << 10;
/// The longest content type that is kept.
const CONTENT_TYPE_LENGTH_MAX: usize = 256;

/// What a guarded client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedSettings {
    /// The ports that may be asked; all if none is given.
    pub ports: Vec<u16>,
    /// How many redirects of one request are followed.
    pub redirects_max: u32,
    /// What may be reached although it is not public.
    pub allowed: Vec<Allowed>,
    /// How many idle connections to one host are kept.
    pub idle_per_host_max: usize,
}

impl Default for GuardedSettings {
    fn default() -> Self {
        Self { ports: vec![80, 443], redirects_max: 3, allowed: Vec::new(), idle_per_host_max: 2 }
    }
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The status.
    pub status: u16,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Duration>,
    /// What the body is said to be.
    pub content_type: Option<String>,
    /// The body.
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
    /// A client that asks the machine for the addresses of names.
    pub fn new(clock: Arc<dyn Clock>, settings: GuardedSettings) -> Result<Self> {
        Self::with_names(clock, settings, Arc::new(SystemNames))
    }

    /// A client that asks somebody else for them.
    pub fn with_names(
        clock: Arc<dyn Clock>,
        settings: GuardedSettings,
        names: Arc<dyn Names>,
    ) -> Result<Self> {
        let gate = Gate { names, allowed: settings.allowed.clone().into() };
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
            .map_err(|source| failed("make a client", "http", source))?;
        Ok(Self { client, gate, settings: Arc::new(settings), clock })
    }

    /// Gets what is at an address, over redirects if there are some, whatever its last status.
    pub async fn get(&self, url: &str, accept: &str, limits: Limits) -> Result<Fetched> {
        let url = parsed(url)?;
        let accept = header(accept)?;
        let work = self.hops(url, accept, limits.bytes_max);
        within(&*self.clock, "get by guarded http", limits.timeout, work).await
    }

    /// Refuses an address that could never be asked, without looking its name up; gives host and port.
    pub fn check_address(&self, url: &str) -> Result<String> {
        refuse_control_characters(url)?;
        self.check(&parsed(url)?)
    }

    /// Posts a body, and gives what came back, whatever its status. A redirect is an answer like any other.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        limits: Limits,
    ) -> Result<Fetched> {
        let request = posting(url, headers, body)?;
        let work = async {
            let (place, response) = self.send(request).await?;
            read(&place, response, limits.bytes_max, self.clock.now()).await
        };
        within(&*self.clock, "post by guarded http", limits.timeout, work).await
    }

    /// Posts a body to somebody of whose answer the status is what counts: of the answer's body no more is read than
    /// its limit, and one that is longer, late, broken or compressed is no error.
    pub async fn post_for_status(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        limits: Limits,
    ) -> Result<Fetched> {
        let request = posting(url, headers, body)?;
        let started = self.clock.monotonic();
        let sent = self.send(request);
        let (_, mut response) =
            within(&*self.clock, "post by guarded http", limits.timeout, sent).await?;
        let headers = response.headers();
        let mut fetched = Fetched {
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

    async fn hops(&self, url: Url, accept: HeaderValue, bytes_max: usize) -> Result<Fetched> {
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
        // The range above has no end.
        Err(Error::invalid("no request was made"))
    }

    /// Sends one request after looking at where it goes; gives that place as it may be shown.
    async fn send(&self, mut request: Request) -> Result<(String, Response)> {
        let place = self.check(request.url())?;
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let response = self.client.execute(request).await;
        let response = response.map_err(|source| match barred(&source) {
            Some(barred) => Error::Refused { place: place.clone(), why: barred.why },
            None => failed("ask", &place, source),
        })?;
        Ok((place, response))
    }

    /// Refuses what is wrong with an address before any name is looked up.
    fn check(&self, url: &Url) -> Result<String> {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        let place = format!("{host}:{port}");
        let refused = |why: &str| Err(Error::Refused { place: place.clone(), why: why.to_owned() });
        if !matches!(url.scheme(), "http" | "https") {
            return refused("neither http nor https");
        }
        if host.is_empty() {
            return refused("there is no host");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refused("there are credentials in the address");
        }
        if !self.settings.ports.is_empty() && !self.settings.ports.contains(&port) {
            return refused("the port is not one of those that may be asked");
        }
        // Connecting to an address asks no resolver, so it is looked at here.
        let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        if let Some(Err(barred)) = literal.map(|address| self.gate.check(None, address)) {
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

/// Reads an address. An error does not repeat it.
fn parsed(url: &str) -> Result<Url> {
    if url.len() > URL_LENGTH_MAX {
        return Err(Error::invalid(format!("an address of more than {URL_LENGTH_MAX} bytes")));
    }
    Url::parse(url).map_err(|error| Error::invalid(format!("an address that is no URL: {error}")))
}

fn posting(url: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Request> {
    let mut request = Request::new(Method::POST, parsed(url)?);
    for (name, value) in headers {
        let name: HeaderName =
            name.parse().map_err(|_| Error::invalid(format!("{name:?} is no name of a header")))?;
        request.headers_mut().insert(name, header(value)?);
    }
    *request.body_mut() = Some(body.into());
    Ok(request)
}

fn header(value: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|_| Error::invalid("a header that can not be sent"))
}

/// Where an answer sends us, if it does.
fn redirect(place: &str, from: &Url, response: &Response) -> Result<Option<Url>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else {
        return Ok(None);
    };
    let location = location.to_str().ok().filter(|location| location.len() <= URL_LENGTH_MAX);
    let next = location.and_then(|location| from.join(location).ok());
    let why = "a redirect to nowhere".to_owned();
    next.map(Some).ok_or_else(|| Error::Refused { place: place.to_owned(), why })
}

async fn read(
    place: &str,
    mut response: Response,
    bytes_max: usize,
    now: Timestamp,
) -> Result<Fetched> {
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
    Ok(Fetched { status, retry_after, content_type, body: body.freeze() })
}

/// Reads the beginning of a body, as far as there is one.
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

/// What the gate said, if it was the gate that made a request fail.
fn barred(error: &reqwest::Error) -> Option<Barred> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(barred) = error.downcast_ref::<Barred>() {
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
