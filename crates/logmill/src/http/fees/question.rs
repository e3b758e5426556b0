//! What is asked of fees: parameters as values.
//!
//! What JavaScript would make of odd numbers is decided here, once: a chain may be written `137` or `0x89`, and
//! nothing else (`1e3`, spaces); a page or limit is a whole number, what comes after its point is dropped, what is
//! out of bounds is moved to the nearest bound, and what is no number at all (`Infinity`, `abc`) is the default.
//!
//! Guarantees: pure; a value that is given and can not be meant is an error, except for pages. Leaves to others:
//! reading.

use std::collections::BTreeMap;

use alloy_primitives::Address;

/// The body of the seed's own error.
const WRONG_INTEGRATOR: &str = "Invalid integrator value. Expected numeric chain id.";
/// The limit of a page that says none, and the highest.
const LIMIT: u64 = 20;
const LIMIT_MAX: u64 = 100;

/// What is wrong with a question, as its sender is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong(pub(super) String);

impl Wrong {
    pub(super) fn other(what: &str) -> Self {
        Self(what.to_owned())
    }

    fn value(name: &str, needed: &str) -> Self {
        Self(format!("{name}: {needed} is needed"))
    }
}

/// Which fees are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    /// Of which chain; the one that there is if none is said.
    pub(super) chain_id: Option<u64>,
    pub(super) integrator: Option<Address>,
    pub(super) token: Option<Address>,
    pub(super) from_block: Option<i64>,
    pub(super) to_block: Option<i64>,
    pub(super) from_time: Option<i64>,
    /// Just after the last.
    pub(super) to_time: Option<i64>,
}

/// Which part of the list is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A page by its number, from 1.
    Page(u64),
    /// What comes after an event; from the start if none is named.
    After(Option<(i64, i64)>),
}

/// One page of fees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageQuestion {
    pub(super) filter: Filter,
    pub(super) part: Part,
    pub(super) limit: u64,
}

/// By what time sums are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Period {
    Day,
    Month,
    All,
}

/// Sums of fees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SummaryQuestion {
    pub(super) filter: Filter,
    pub(super) period: Period,
}

type Asked = BTreeMap<String, String>;

impl PageQuestion {
    pub(super) fn parse(asked: &Asked) -> Result<Self, Wrong> {
        let filter = Filter::parse(asked)?;
        let number = |name: &str, otherwise: u64| {
            asked.get(name).and_then(|text| whole(text)).unwrap_or(otherwise)
        };
        let part = match asked.get("cursor") {
            None => Part::Page(number("page", 1).max(1)),
            Some(text) if text.is_empty() => Part::After(None),
            Some(text) => {
                let wrong = || Wrong::value("cursor", "the nextCursor of the page before");
                Part::After(Some(cursor(text).ok_or_else(wrong)?))
            }
        };
        Ok(Self { filter, part, limit: number("limit", LIMIT).clamp(1, LIMIT_MAX) })
    }
}

impl SummaryQuestion {
    pub(super) fn parse(asked: &Asked) -> Result<Self, Wrong> {
        let period = match asked.get("period").map(String::as_str) {
            None | Some("all") => Period::All,
            Some("day") => Period::Day,
            Some("month") => Period::Month,
            Some(_) => return Err(Wrong::value("period", "day, month or all")),
        };
        Ok(Self { filter: Filter::parse(asked)?, period })
    }
}

impl Filter {
    fn parse(asked: &Asked) -> Result<Self, Wrong> {
        let integrator = match asked.get("integrator") {
            None => None,
            Some(text) => Some(chain(text).ok_or_else(|| Wrong::other(WRONG_INTEGRATOR))?),
        };
        let chain_id = parsed(asked, "chainId", "a chain id such as 137 or 0x89", chain)?;
        let chain_id = same(integrator, chain_id, "integrator and chainId")?;
        let address = |name| parsed(asked, name, "an address (0x and 40 digits)", address);
        let block = |name| parsed(asked, name, "the number of a block", number);
        let time = |name| parsed(asked, name, "seconds since 1970 or a date of ISO 8601", time);
        let integrator = same(
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

/// The value of a parameter, if it is given.
fn parsed<T>(
    asked: &Asked,
    name: &str,
    needed: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Wrong> {
    let Some(text) = asked.get(name) else {
        return Ok(None);
    };
    parse(text.trim()).map(Some).ok_or_else(|| Wrong::value(name, needed))
}

/// What two names for one thing say.
fn same<T: PartialEq>(one: Option<T>, two: Option<T>, names: &str) -> Result<Option<T>, Wrong> {
    match (one, two) {
        (Some(one), Some(two)) if one != two => Err(Wrong(format!("{names} differ"))),
        (one, two) => Ok(one.or(two)),
    }
}

/// The id of a chain; as large as any that the tables can have.
fn chain(text: &str) -> Option<u64> {
    number(text).and_then(|number| u64::try_from(number).ok())
}

/// A number of digits, or in hexadecimal.
fn number(text: &str) -> Option<i64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // A sign is no digit, though the parser takes one.
    let plain = digits.chars().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| i64::from_str_radix(digits, radix).ok()).flatten()
}

/// A whole number that is not below zero, however large; what comes after a point is dropped.
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

/// Seconds since 1970: as such, or of a moment or a day as people write them.
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

/// Where a page ended: a block and the position of a log in it.
fn cursor(text: &str) -> Option<(i64, i64)> {
    let (block, log) = text.split_once('-')?;
    number(block).zip(number(log))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(text: &str) -> Asked {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn page(text: &str) -> Result<PageQuestion, Wrong> {
        PageQuestion::parse(&asked(text))
    }

    #[test]
    fn pages_are_clamped_and_odd_numbers_are_what_was_decided() {
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
            let question = page(text).expect(text);
            assert_eq!((question.part, question.limit), (Part::Page(page_number), limit), "{text}");
        }
    }

    #[test]
    fn the_chain_is_a_number_and_its_error_is_the_seeds() {
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
            assert_eq!(page(text), Err(Wrong::other(WRONG_INTEGRATOR)), "{text}");
        }
        let differ = Wrong::other("integrator and chainId differ");
        assert_eq!(page("chainId=1&integrator=2"), Err(differ));
    }

    #[test]
    fn filters_are_read_and_wrong_ones_are_named() {
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
        assert_eq!(page("cursor=").expect("fine").part, Part::After(None));
        assert_eq!(
            page("cursor=52661448-377").expect("fine").part,
            Part::After(Some((52_661_448, 377)))
        );
        let two = format!("integratorAddress={someone}&eventIntegrator=0x{}", "00".repeat(20));
        page(&two).expect_err("they differ");
        SummaryQuestion::parse(&asked("period=week")).expect_err("no such period");
    }

    proptest! {
        #[test]
        fn any_text_is_a_question_or_an_error(name in 0_usize..11, value in ".{0,40}") {
            let names = ["integrator", "chainId", "page", "limit", "cursor", "integratorAddress",
                "token", "fromBlock", "fromTime", "toTime", "period"];
            let asked = Asked::from([(names[name].to_owned(), value)]);
            let _ = PageQuestion::parse(&asked);
            let _ = SummaryQuestion::parse(&asked);
        }
    }
}
