//! The query parameters of `/fees`, `/fees/summary` and `/collected/{table}`, parsed.
//!
//! This file decides what unusual numbers mean. A chain id is `137` or `0x89` and nothing else (no `1e3`, no spaces). A
//! page or limit is a whole number: decimals are dropped, a value out of range is moved to the nearest bound, and a
//! text that is not a number (`Infinity`, `abc`) means the default.
//!
//! Guarantees: pure; an invalid value is an error, except for page and limit. Leaves to others: reading the tables.

use std::collections::BTreeMap;

use alloy_primitives::Address;

/// The seed's own error text.
const WRONG_INTEGRATOR: &str = "Invalid integrator value. Expected numeric chain id.";
/// Default and maximum page size.
const LIMIT: u64 = 20;
pub(in crate::http) const LIMIT_MAX: u64 = 100;

/// Error message for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct InvalidParam(pub(in crate::http) String);

impl InvalidParam {
    pub(in crate::http) fn other(what: &str) -> Self {
        Self(what.to_owned())
    }

    pub(in crate::http) fn value(name: &str, needed: &str) -> Self {
        Self(format!("{name}: must be {needed}"))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct Filter {
    /// If unset, the only chain there is, or the handler's default.
    pub(in crate::http) chain_id: Option<u64>,
    pub(in crate::http) integrator: Option<Address>,
    pub(in crate::http) token: Option<Address>,
    pub(in crate::http) from_block: Option<i64>,
    pub(in crate::http) to_block: Option<i64>,
    pub(in crate::http) from_time: Option<i64>,
    /// Exclusive.
    pub(in crate::http) to_time: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum PagePosition {
    /// Page number, from 1.
    Page(u64),
    /// The rows after an event, or from the start.
    After(Option<(i64, i64)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct PageQuery {
    pub(in crate::http) filter: Filter,
    pub(in crate::http) position: PagePosition,
    pub(in crate::http) limit: u64,
}

/// Period by which sums are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Period {
    Day,
    Month,
    All,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct SummaryQuery {
    pub(in crate::http) filter: Filter,
    pub(in crate::http) period: Period,
}

type Params = BTreeMap<String, String>;

/// An error if a parameter has none of these names. Separators without a name are no parameter.
pub(in crate::http) fn allow_only(params: &Params, names: &[&str]) -> Result<(), InvalidParam> {
    let mut given = params.keys().filter(|name| !name.is_empty());
    match given.find(|name| !names.contains(&name.as_str())) {
        Some(name) => Err(InvalidParam(format!("{name}: not a parameter of this path"))),
        None => Ok(()),
    }
}

impl PageQuery {
    pub(in crate::http) fn parse(params: &Params, limit_max: u64) -> Result<Self, InvalidParam> {
        let filter = Filter::parse(params)?;
        let number = |name: &str, otherwise: u64| {
            params.get(name).and_then(|text| whole(text)).unwrap_or(otherwise)
        };
        let position = match params.get("cursor") {
            None => PagePosition::Page(number("page", 1).max(1)),
            Some(text) if text.is_empty() => PagePosition::After(None),
            Some(text) => {
                let wrong = || InvalidParam::value("cursor", "the nextCursor of the previous page");
                PagePosition::After(Some(cursor(text).ok_or_else(wrong)?))
            }
        };
        Ok(Self { filter, position, limit: number("limit", LIMIT).clamp(1, limit_max) })
    }
}

impl SummaryQuery {
    pub(in crate::http) fn parse(params: &Params) -> Result<Self, InvalidParam> {
        let period = match params.get("period").map(String::as_str) {
            None | Some("all") => Period::All,
            Some("day") => Period::Day,
            Some("month") => Period::Month,
            Some(_) => return Err(InvalidParam::value("period", "day, month or all")),
        };
        Ok(Self { filter: Filter::parse(params)?, period })
    }
}

impl Filter {
    fn parse(params: &Params) -> Result<Self, InvalidParam> {
        let integrator = match params.get("integrator") {
            None => None,
            Some(text) => Some(chain(text).ok_or_else(|| InvalidParam::other(WRONG_INTEGRATOR))?),
        };
        let chain_id = optional(params, "chainId", "a chain id such as 137 or 0x89", chain)?;
        let chain_id = merge_synonyms(integrator, chain_id, "integrator and chainId")?;
        let address =
            |name| optional(params, name, "an address (0x and 40 hexadecimal digits)", address);
        let block = |name| optional(params, name, "a block number", number);
        let time = |name| optional(params, name, "seconds since 1970 or an ISO 8601 date", time);
        let integrator = merge_synonyms(
            address("integratorAddress")?,
            address("eventIntegrator")?,
            "integratorAddress and eventIntegrator",
        )?;
        Ok(Self {
            chain_id,
            integrator,
            token: address("token")?,
            from_block: block("fromBlock")?,
            to_block: block("toBlock")?,
            from_time: time("fromTime")?,
            to_time: time("toTime")?,
        })
    }
}

/// The parsed value of a parameter, if given.
fn optional<T>(
    params: &Params,
    name: &str,
    needed: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, InvalidParam> {
    let Some(text) = params.get(name) else {
        return Ok(None);
    };
    parse(text.trim()).map(Some).ok_or_else(|| InvalidParam::value(name, needed))
}

/// Merges the values of two parameters that are synonyms; they must agree.
fn merge_synonyms<T: PartialEq>(
    one: Option<T>,
    two: Option<T>,
    names: &str,
) -> Result<Option<T>, InvalidParam> {
    match (one, two) {
        (Some(one), Some(two)) if one != two => Err(InvalidParam(format!("{names} differ"))),
        (one, two) => Ok(one.or(two)),
    }
}

/// A chain id, at most as large as the tables can store.
fn chain(text: &str) -> Option<u64> {
    number(text).and_then(|number| u64::try_from(number).ok())
}

/// A decimal or hexadecimal number.
fn number(text: &str) -> Option<i64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The parser would accept a sign.
    let plain = digits.chars().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| i64::from_str_radix(digits, radix).ok()).flatten()
}

/// A whole number, clamped to the range of `u64`; decimals are dropped.
fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    let (negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (digits, rest) = text.split_once('.').unwrap_or((text, ""));
    let plain = |text: &str| text.chars().all(|digit| digit.is_ascii_digit());
    if digits.is_empty() || !plain(digits) || !plain(rest) {
        return None;
    }
    Some(if negative { 0 } else { digits.parse().unwrap_or(u64::MAX) })
}

fn address(text: &str) -> Option<Address> {
    text.starts_with("0x").then(|| text.parse().ok()).flatten()
}

/// Seconds since 1970, from a number, a timestamp or a date.
fn time(text: &str) -> Option<i64> {
    if let Ok(seconds) = text.parse::<i64>() {
        return Some(seconds);
    }
    if let Ok(moment) = text.parse::<jiff::Timestamp>() {
        return Some(moment.as_second());
    }
    let day: jiff::civil::Date = text.parse().ok()?;
    Some(day.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

/// End of a page: a block number and a log index.
fn cursor(text: &str) -> Option<(i64, i64)> {
    let (block, log) = text.split_once('-')?;
    number(block).zip(number(log))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn params(text: &str) -> Params {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn page(text: &str) -> Result<PageQuery, InvalidParam> {
        PageQuery::parse(&params(text), LIMIT_MAX)
    }

    #[test]
    fn pages_are_clamped_and_unusual_numbers_have_defined_meanings() {
        for (text, page_number, limit) in [
            ("", 1, 20),
            ("page=3&limit=50", 3, 50),
            ("page=0&limit=0", 1, 1),
            ("page=-5&limit=-5", 1, 1),
            ("page=2&limit=1000", 2, 100),
            ("page=1.5&limit=2.5", 1, 2),
            ("page=Infinity&limit=Infinity", 1, 20),
            ("page=NaN&limit=abc", 1, 20),
            ("page=1e3&limit=1e3", 1, 20),
            ("page=&limit=", 1, 20),
            ("page= 7 &limit= 8 ", 7, 8),
            ("page=99999999999999999999999&limit=99999999999999999999999", u64::MAX, 100),
        ] {
            let query = page(text).expect(text);
            assert_eq!(
                (query.position, query.limit),
                (PagePosition::Page(page_number), limit),
                "{text}"
            );
        }
    }

    #[test]
    fn the_chain_is_a_number_and_its_error_text_is_the_seeds() {
        for (text, expected) in [
            ("integrator=137", Some(137)),
            ("integrator=0x89", Some(137)),
            ("integrator=0", Some(0)),
            ("chainId=10", Some(10)),
            ("chainId=10&integrator=0xa", Some(10)),
            ("", None),
        ] {
            assert_eq!(page(text).expect(text).filter.chain_id, expected, "{text}");
        }
        let address = "integrator=0x1aC3EF0ECF4E0ed23D62cab448f3169064230624";
        for text in [
            "integrator=abc",
            "integrator=1e3",
            "integrator=",
            "integrator= ",
            "integrator=-1",
            "integrator=+1",
            "integrator=1.5",
            "integrator=0x",
            "integrator=Infinity",
            "integrator=9223372036854775808",
            address,
        ] {
            assert_eq!(page(text), Err(InvalidParam::other(WRONG_INTEGRATOR)), "{text}");
        }
        let differ = InvalidParam::other("integrator and chainId differ");
        assert_eq!(page("chainId=1&integrator=2"), Err(differ));
    }

    #[test]
    fn filters_are_parsed_and_invalid_ones_are_named() {
        let someone = "0x1aC3EF0ECF4E0ed23D62cab448f3169064230624";
        let text = format!(
            "integratorAddress={someone}&token={}&fromBlock=5&toBlock=0x10&fromTime=2024-01-01&\
             toTime=2024-01-01T00:00:01Z",
            someone.to_lowercase()
        );
        let filter = page(&text).expect("fine").filter;
        let someone_parsed: Address = someone.parse().expect("an address");
        assert_eq!((filter.integrator, filter.token), (Some(someone_parsed), Some(someone_parsed)));
        assert_eq!((filter.from_block, filter.to_block), (Some(5), Some(16)));
        assert_eq!((filter.from_time, filter.to_time), (Some(1_704_067_200), Some(1_704_067_201)));
        for (text, name) in [
            ("chainId=x", "chainId"),
            ("integratorAddress=0x12", "integratorAddress"),
            ("eventIntegrator=vitalik.eth", "eventIntegrator"),
            ("token=1aC3EF0ECF4E0ed23D62cab448f3169064230624", "token"),
            ("fromBlock=-1", "fromBlock"),
            ("toBlock=99999999999999999999", "toBlock"),
            ("fromTime=yesterday", "fromTime"),
            ("toTime=", "toTime"),
            ("cursor=12", "cursor"),
            ("cursor=a-b", "cursor"),
        ] {
            let wrong = page(text).expect_err(text);
            assert!(wrong.0.starts_with(&format!("{name}: ")), "{text}: {wrong:?}");
        }
        assert_eq!(page("cursor=").expect("fine").position, PagePosition::After(None));
        assert_eq!(
            page("cursor=52661448-377").expect("fine").position,
            PagePosition::After(Some((52_661_448, 377)))
        );
        let two = format!("integratorAddress={someone}&eventIntegrator=0x{}", "00".repeat(20));
        page(&two).expect_err("they differ");
        SummaryQuery::parse(&params("period=week")).expect_err("no such period");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_an_error(name in 0_usize..11, value in ".{0,40}") {
            let names = ["integrator", "chainId", "page", "limit", "cursor", "integratorAddress",
                "token", "fromBlock", "fromTime", "toTime", "period"];
            let params = Params::from([(names[name].to_owned(), value)]);
            let _ = PageQuery::parse(&params, LIMIT_MAX);
            let _ = SummaryQuery::parse(&params);
        }
    }
}
