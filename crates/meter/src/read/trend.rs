//! Trends: a straight line through a customer's final aggregates, and its value at the next period as a forecast.
//!
//! The line is the least-squares fit over consecutive periods that end with the newest final aggregate. For `sum` and
//! `count`, a period without usage of the event type is a point of value zero once there was some before; for other
//! operations it is no point.
//!
//! Guarantees: slope and forecast are exact fractions of the stored values, rounded only if they have infinitely many
//! digits. Leaves to others: whether usage follows a line.

use std::collections::BTreeMap;

use logmill_io::Timestamp;
use serde::Deserialize;

use crate::Meter;
use crate::aggregate::AggregateState;
use crate::decimal::{Decimal, Mean};
use crate::error::{Error, Result};
use crate::event::unknown_type;
use crate::partial::OpResult;
use crate::period::Period;
use crate::read::list::{Aggregate, AggregateFilter};
use crate::settings::Op;

/// Minimum number of periods of a trend.
pub const POINTS_MIN: usize = 2;
/// Maximum number of periods of a trend.
pub const POINTS_MAX: usize = 366;
/// Number of aggregates of a customer and kind of period that may be newer than the final ones: the current period, and
/// the one before it during the grace.
const NOT_FINAL_MAX: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrendQuery {
    pub event_type: String,
    pub customer: String,
    /// The name of a configured kind of period.
    pub period: String,
    /// Number of periods, up to the newest final one.
    pub points: usize,
}

/// A line and its points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trend {
    /// The operation of the values.
    pub op: Op,
    /// Oldest first.
    pub points: Vec<TrendPoint>,
    /// `None` if there are fewer than two points.
    pub line: Option<TrendLine>,
}

/// The value of one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrendPoint {
    pub period: Period,
    /// The figure of its aggregate, or zero.
    pub result: OpResult,
}

/// Slope and forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrendLine {
    /// The change from one period to the next.
    pub slope: OpResult,
    /// The period after the newest final one.
    pub next: Period,
    /// The value of the line there.
    pub forecast: OpResult,
}

/// The fields of an aggregate's body that are used.
#[derive(Deserialize)]
struct Body {
    #[serde(rename = "eventsExact")]
    values: BTreeMap<String, Decimal>,
    #[serde(default)]
    approximate: Vec<String>,
}

impl Meter {
    /// A line through the last final aggregates of a customer.
    pub async fn trend(&self, query: &TrendQuery) -> Result<Trend> {
        let name = &query.event_type;
        let known = self.settings().events.get(name);
        let op = known.ok_or_else(|| Error::invalid(unknown_type(self.settings(), name)))?.op;
        let kind = self.period_kind(&query.period)?;
        if !(POINTS_MIN..=POINTS_MAX).contains(&query.points) {
            let bounds = format!("points must be {POINTS_MIN} to {POINTS_MAX}");
            return Err(Error::invalid(bounds));
        }
        let filter = AggregateFilter {
            customer: Some(query.customer.clone()),
            period: Some(query.period.clone()),
            limit: query.points + NOT_FINAL_MAX,
            ..AggregateFilter::default()
        };
        let mut newest_first = self.aggregates(&filter).await?.items;
        newest_first.retain(|aggregate| aggregate.state != AggregateState::Provisional);
        let Some(newest) = newest_first.first() else {
            return Ok(Trend { op, points: Vec::new(), line: None });
        };
        let mut values = BTreeMap::new();
        for aggregate in &newest_first {
            values.extend(value_of(aggregate, name)?.map(|result| (aggregate.start, result)));
        }
        let newest = self.calendar().period_of_key(kind, &newest.key)?;
        let next = self.calendar().next(&newest)?;
        let points = points(op, self.periods_until(newest, query.points)?, &values);
        let line = line(&points, query.points, next)?;
        Ok(Trend { op, points: points.into_iter().map(|(_, point)| point).collect(), line })
    }

    /// `count` consecutive periods up to this one, oldest first.
    fn periods_until(&self, newest: Period, count: usize) -> Result<Vec<Period>> {
        let mut periods = vec![newest];
        while periods.len() < count
            && let Some(oldest) = periods.last()
        {
            periods.push(self.calendar().previous(oldest)?);
        }
        periods.reverse();
        Ok(periods)
    }
}

/// The figure of an event type in an aggregate.
fn value_of(aggregate: &Aggregate, event_type: &str) -> Result<Option<OpResult>> {
    let body: Body = serde_json::from_str(&aggregate.body)
        .map_err(|error| Error::corrupt(format!("the aggregate {}: {error}", aggregate.id)))?;
    let exact = !body.approximate.iter().any(|name| name == event_type);
    let value = body.values.get(event_type);
    Ok(value.map(|value| OpResult { value: *value, exact, mean: None }))
}

/// The points among some consecutive periods, each with its position.
fn points(
    op: Op,
    periods: Vec<Period>,
    values: &BTreeMap<Timestamp, OpResult>,
) -> Vec<(u64, TrendPoint)> {
    let empty_is_zero = matches!(op, Op::Sum | Op::Count);
    let mut points: Vec<(u64, TrendPoint)> = Vec::new();
    for (position, period) in (0..).zip(periods) {
        let zero = (empty_is_zero && !points.is_empty()).then(|| OpResult::exact(Decimal::ZERO));
        if let Some(result) = values.get(&period.start).copied().or(zero) {
            points.push((position, TrendPoint { period, result }));
        }
    }
    points
}

/// The line through some points; `None` if there are fewer than two. The next period is at the position `count`.
fn line(points: &[(u64, TrendPoint)], count: usize, next: Period) -> Result<Option<TrendLine>> {
    let values: Vec<(u64, Decimal)> =
        points.iter().map(|(position, point)| (*position, point.result.value)).collect();
    if values.len() < POINTS_MIN {
        return Ok(None);
    }
    let too_large =
        || Error::invalid("the values are too large for a line through them".to_owned());
    let at = u64::try_from(count).map_err(|_| too_large())?;
    let (slope, forecast) = fit(&values, at).ok_or_else(too_large)?;
    let exact = points.iter().all(|(_, point)| point.result.exact);
    let slope = quotient(slope, exact).ok_or_else(too_large)?;
    let forecast = quotient(forecast, exact).ok_or_else(too_large)?;
    Ok(Some(TrendLine { slope, next, forecast }))
}

/// The slope of the least-squares line through some points, and its value at the position `at`, which is not before any
/// of them, both as a sum over a count. `None` if a number does not fit, or all points have one position.
fn fit(points: &[(u64, Decimal)], at: u64) -> Option<(Mean, Mean)> {
    let n = u64::try_from(points.len()).ok()?;
    let (mut sum_x, mut sum_xx) = (0_u64, 0_u64);
    let (mut sum_y, mut sum_xy) = (Decimal::ZERO, Decimal::ZERO);
    for &(x, y) in points {
        sum_x = sum_x.checked_add(x)?;
        sum_xx = sum_xx.checked_add(x.checked_mul(x)?)?;
        sum_y = sum_y.checked_add(y)?;
        sum_xy = sum_xy.checked_add(y.checked_mul_u64(x)?)?;
    }
    // slope = (n Σxy - Σx Σy) / spread, and at `at`: (Σy + slope (n at - Σx)) / n.
    let spread = n.checked_mul(sum_xx)?.checked_sub(sum_x.checked_mul(sum_x)?)?;
    let rise = sum_xy.checked_mul_u64(n)?.checked_sub(sum_y.checked_mul_u64(sum_x)?)?;
    let ahead = n.checked_mul(at)?.checked_sub(sum_x)?;
    let value = sum_y.checked_mul_u64(spread)?.checked_add(rise.checked_mul_u64(ahead)?)?;
    let slope = Mean { sum: rise, count: spread };
    (spread > 0).then_some((slope, Mean { sum: value, count: n.checked_mul(spread)? }))
}

/// A fraction as a number; exact if it has finitely many digits and its input was exact.
fn quotient(fraction: Mean, exact: bool) -> Option<OpResult> {
    let (value, ends) = fraction.sum.div(fraction.count)?;
    Some(OpResult { value, exact: exact && ends, mean: (!ends).then_some(fraction) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(decimal: Decimal) -> i128 {
        decimal.to_string().parse().expect("a whole number")
    }

    proptest! {
        /// The residuals of a line of least squares add up to zero, and so do their products with the positions.
        #[test]
        fn residuals_vanish(
            values in prop::collection::btree_map(0..POINTS_MAX as u64, -9_999_i64..9_999, 2..40),
        ) {
            let at = POINTS_MAX as u64;
            let points: Vec<(u64, Decimal)> =
                values.iter().map(|(x, y)| (*x, Decimal::from_integer(*y))).collect();
            let (slope, forecast) = fit(&points, at).expect("it fits");
            let n = points.len() as i128;
            prop_assert_eq!(i128::from(forecast.count), n * i128::from(slope.count));
            let (mut residuals, mut moments) = (0, 0);
            for (x, y) in &values {
                let (x, y) = (i128::from(*x), i128::from(*y));
                let back = (i128::from(at) - x) * whole(slope.sum) * n;
                let residual = y * i128::from(forecast.count) - (whole(forecast.sum) - back);
                residuals += residual;
                moments += x * residual;
            }
            prop_assert_eq!((residuals, moments), (0, 0));
        }
    }

    #[test]
    fn a_line_through_the_largest_values_is_exact() {
        let largest = format!("{}.{}", "9".repeat(78), "9".repeat(36));
        let largest: Decimal = largest.parse().expect("a number");
        let points: Vec<_> = (0..POINTS_MAX as u64).map(|x| (x, largest)).collect();
        let (slope, forecast) = fit(&points, POINTS_MAX as u64).expect("it fits");
        let forecast = quotient(forecast, true).expect("it fits");
        assert_eq!((slope.sum, forecast), (Decimal::ZERO, OpResult::exact(largest)));
    }

    #[test]
    fn one_point_has_no_line() {
        assert_eq!(fit(&[(3, Decimal::from(7_u64))], 9), None);
    }
}
