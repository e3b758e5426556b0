//! Query parameters, each known and given at most once, and cursors between pages.
//!
//! Guarantees: an unknown, repeated or invalid parameter is a 400 that names it; a cursor is accepted only by the list
//! that issued it. Leaves to others: the meaning of the parameters.

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

use crate::http::problem;
use crate::http::route::Param;

/// Default page size.
pub(super) const LIMIT_DEFAULT: usize = 100;
/// Header that carries the cursor of the next page.
const NEXT: HeaderName = HeaderName::from_static("x-next-cursor");
/// Maximum length of a client's parameter name that is repeated in an error.
const SHOWN_CHARS_MAX: usize = 32;

/// Query parameters as a handler receives them.
pub(super) type QueryParams = Result<Query<Vec<(String, String)>>, QueryRejection>;

#[derive(Debug)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    /// Checks a query against the known parameters.
    pub(super) fn read(params: QueryParams, known: &[Param]) -> Result<Self, Response> {
        let Ok(Query(pairs)) = params else {
            return Err(bad_request("the query must be percent-encoded UTF-8"));
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, _) in &pairs {
            let Some(param) = known.iter().find(|param| param.is_meant(name)) else {
                let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
                let shown = shown.escape_debug();
                return Err(bad_request(&format!("{shown}: unknown parameter")));
            };
            let count = counts.entry(param.name).or_default();
            *count += 1;
            if *count > 1 && !param.is_repeated {
                return Err(bad_request(&format!("{name}: given more than once")));
            }
        }
        for param in known.iter().filter(|param| param.is_required) {
            if !counts.contains_key(param.name) {
                return Err(bad_request(&format!("{}: this parameter is required", param.name)));
            }
        }
        Ok(Self(pairs))
    }

    /// All non-empty values of a parameter.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.0.iter().filter(move |(given, _)| given == name);
        named.map(|(_, text)| text.as_str()).filter(|text| !text.is_empty())
    }

    /// All parameters with this prefix: the rest of the name, and the value.
    pub(super) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(move |(name, text)| {
            name.strip_prefix(prefix).map(|rest| (rest, text.as_str()))
        })
    }

    /// A value; `None` if it is missing or empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    pub(super) fn time(&self, name: &str) -> Result<Option<Timestamp>, Response> {
        let parse =
            |text| parse_time(text).map_err(|error| bad_request(&format!("{name}: {error}")));
        self.text(name).map(parse).transpose()
    }

    /// Page size: a whole number, clamped to 1 to [`PAGE_MAX`]. The next page continues after a shorter one.
    pub(super) fn limit(&self) -> Result<usize, Response> {
        let Some(text) = self.text("limit") else { return Ok(LIMIT_DEFAULT) };
        let (digits, is_negative) = match text.strip_prefix('-') {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad_request("limit: must be a whole number"));
        }
        // For a number that does not fit, only the sign matters.
        let limit = if is_negative { 0 } else { digits.parse().unwrap_or(PAGE_MAX) };
        Ok(limit.clamp(1, PAGE_MAX))
    }

    /// The end of the previous page: a number and the rest of the position.
    pub(super) fn cursor(&self, list: &str) -> Result<Option<(i64, String)>, Response> {
        let Some(text) = self.text("cursor") else { return Ok(None) };
        let bad = || bad_request("cursor: not a cursor of this list");
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

/// Headers that announce the next page: its cursor and its URL.
pub(super) fn next_page(uri: &Uri, list: &str, next: Option<(i64, String)>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let Some((number, rest)) = next else { return headers };
    let cursor = URL_SAFE_NO_PAD.encode(format!("{list} {number} {rest}"));
    let query = uri.query().unwrap_or_default().split('&');
    let others = query.filter(|pair| !pair.is_empty() && !pair.starts_with("cursor="));
    let query: String = others.map(|pair| format!("{pair}&")).collect();
    let link = format!("<{}?{query}cursor={cursor}>; rel=\"next\"", uri.path());
    // Both contain only URL characters, which are valid in headers.
    for (name, value) in [(NEXT, cursor), (LINK, link)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers
}

pub(super) fn bad_request(why: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, why)
}
