//! Content negotiation by the `Accept` header.
//!
//! Guarantees: pure; an unreadable header expresses no preference. Leaves to others: producing the formats.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// Whether the client names JSON explicitly and prefers it to every other media type it names.
pub(super) fn prefers_json(headers: &HeaderMap) -> bool {
    let text = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut best: Option<(&str, u32)> = None;
    for range in text.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(1_000, thousandths);
        if best.is_none_or(|(_, most)| quality > most) {
            best = Some((name, quality));
        }
    }
    best.is_some_and(|(name, quality)| quality > 0 && name.eq_ignore_ascii_case("application/json"))
}

/// A weight such as `0.8` in thousandths; an invalid one counts as 0.
fn thousandths(text: &str) -> u32 {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = rest.chars().chain("000".chars()).take(3).collect();
    match (whole.parse::<u32>(), digits.parse::<u32>()) {
        (Ok(whole), Ok(rest)) => (whole.min(1) * 1_000 + rest).min(1_000),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_preferred_only_where_it_is_named_first_or_weighs_most() {
        for (accept, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/json, text/plain, */*", true),
            ("text/html;q=0.8, application/json", true),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false),
            ("text/html, application/json", false),
            ("application/json;q=0.5, text/html", false),
            ("application/json;q=0", false),
            ("application/json;q=x, */*", false),
            ("*/*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().expect("a header"));
            assert_eq!(prefers_json(&headers), expected, "{accept}");
        }
        assert!(!prefers_json(&HeaderMap::new()));
    }
}
