//! What is asked: parameters of a query, each known and given at most once, and cursors between pages.
//!
//! Guarantees: a parameter that is unknown, given twice or makes no sense is a 400 that names it; a cursor is taken
//! only by the list that gave it. Leaves to others: what the parameters mean.

use std::collections::BTreeMap;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::header::LINK;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use logmill_io::Timestamp;
use logmill_meter::list::PAGE_MAX;
use logmill_meter::period::parse_time;

use super::route::Param;
use crate::http::problem;

/// How many entries a page has if nothing is said.
pub(super) const LIMIT_DEFAULT: usize = 100;
/// The header of the cursor of the next page.
const NEXT: HeaderName = HeaderName::from_static("x-next-cursor");
/// How much of a name that a client thought of is said back.
const SHOWN_SIGNS_MAX: usize = 32;

/// What a handler gets of a query.
pub(super) type Asked = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// The parameters of a request.
#[derive(Debug)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    /// Reads a query that may have these parameters.
    pub(super) fn read(asked: Asked, known: &[Param]) -> Result<Self, Response> {
        let Ok(Query(pairs)) = asked else {
            return Err(wrong("the query is to be text in UTF-8, percent-encoded"));
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, _) in &pairs {
            let Some(param) = known.iter().find(|param| param.is_meant(name)) else {
                let shown: String = name.chars().take(SHOWN_SIGNS_MAX).collect();
                let shown = shown.escape_debug();
                return Err(wrong(&format!("{shown}: there is no such parameter here")));
            };
            let count = counts.entry(param.name).or_default();
            *count += 1;
            if *count > 1 && !param.is_repeated {
                return Err(wrong(&format!("{name}: it is given twice")));
            }
        }
        for param in known.iter().filter(|param| param.is_required) {
            if !counts.contains_key(param.name) {
                return Err(wrong(&format!("{}: it is missing", param.name)));
            }
        }
        Ok(Self(pairs))
    }

    /// All texts of a name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.0.iter().filter(move |(given, _)| given == name);
        named.map(|(_, text)| text.as_str()).filter(|text| !text.is_empty())
    }

    /// All that have a name that begins so, with the rest of the name.
    pub(super) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(move |(name, text)| {
            name.strip_prefix(prefix).map(|rest| (rest, text.as_str()))
        })
    }

    /// A text; none if it is not given or empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// A text of one's own.
    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// A moment.
    pub(super) fn time(&self, name: &str) -> Result<Option<Timestamp>, Response> {
        let parse = |text| parse_time(text).map_err(|error| wrong(&format!("{name}: {error}")));
        self.text(name).map(parse).transpose()
    }

    /// How many entries are wanted.
    pub(super) fn limit(&self) -> Result<usize, Response> {
        let Some(text) = self.text("limit") else { return Ok(LIMIT_DEFAULT) };
        let limit = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let limit = limit.and_then(|text| text.parse().ok());
        let limit = limit.filter(|limit| (1..=PAGE_MAX).contains(limit));
        limit.ok_or_else(|| wrong(&format!("limit: it is a number from 1 to {PAGE_MAX}")))
    }

    /// Where the page before ended: a number, and what comes after it.
    pub(super) fn cursor(&self, list: &str) -> Result<Option<(i64, String)>, Response> {
        let Some(text) = self.text("cursor") else { return Ok(None) };
        let bad = || wrong("cursor: it is not one that this list gave");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
        let text = String::from_utf8(bytes).map_err(|_| bad())?;
        let mut parts = text.splitn(3, ' ');
        let (Some(of), Some(number), Some(rest)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        let number = number.parse().ok().filter(|_| of == list).ok_or_else(bad)?;
        Ok(Some((number, rest.to_owned())))
    }
}

/// What tells of the next page: its cursor, and its address.
pub(super) fn next_page(uri: &Uri, list: &str, next: Option<(i64, String)>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let Some((number, rest)) = next else { return headers };
    let cursor = URL_SAFE_NO_PAD.encode(format!("{list} {number} {rest}"));
    let query = uri.query().unwrap_or_default().split('&');
    let others = query.filter(|pair| !pair.is_empty() && !pair.starts_with("cursor="));
    let query: String = others.map(|pair| format!("{pair}&")).collect();
    let link = format!("<{}?{query}cursor={cursor}>; rel=\"next\"", uri.path());
    // Both are of the signs of an address.
    for (name, value) in [(NEXT, cursor), (LINK, link)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers
}

/// A request that makes no sense.
pub(super) fn wrong(why: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, why)
}
