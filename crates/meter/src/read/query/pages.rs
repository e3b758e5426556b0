//! Partials of many series, page by page, for a query.
//!
//! The size of a partial depends on its events, from about fifty bytes to many thousands. So the number of rows on a
//! page follows the size of earlier rows, and the number of series follows how many fitted on one page.
//!
//! Guarantees: partials are returned once each, ordered by series and bucket. A page is bounded, and so is the sum of
//! all pages: exceeding it is an error. Leaves to others: what is done with them.

use std::ops::Range;

use logmill_io::{Row, Sql};

use super::{Limits, too_much};
use crate::error::Result;
use crate::store::partials;

/// Maximum number of series on one page.
const SERIES_AT_ONCE: usize = 1_000;
/// Approximate size of one page.
const PAGE_BYTES: usize = 16 << 20;
/// Rows of the first page, and minimum if rows are very large.
const ROWS_MIN: usize = 256;
/// Maximum number of rows on one page.
const ROWS_MAX: usize = 50_000;
/// Maximum growth from one page to the next: the coming rows may be larger.
const GROWTH: usize = 8;

/// What a query has read so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueryCost {
    rows: usize,
    bytes: usize,
}

impl QueryCost {
    /// Adds rows and their size; an error if a limit is exceeded.
    pub(super) fn add(&mut self, rows: usize, bytes: usize, limits: &Limits) -> Result<()> {
        self.rows = self.rows.saturating_add(rows);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.rows > limits.rows {
            return Err(too_much("rows", limits.rows));
        }
        if self.bytes > limits.bytes {
            return Err(too_much("bytes of partials", limits.bytes));
        }
        Ok(())
    }
}

/// Position in the partials of some series.
#[derive(Debug)]
pub(super) struct PartialPages<'a> {
    sql: &'a Sql,
    limits: &'a Limits,
    cost: &'a mut QueryCost,
    /// The remaining series, in order.
    series: &'a [i64],
    buckets: Range<i64>,
    /// The first remaining bucket of the first of them; the others are unread.
    from: i64,
    /// Number of series and rows of the next page.
    series_at_once: usize,
    rows_at_once: usize,
}

impl<'a> PartialPages<'a> {
    /// `series` must be sorted.
    pub(super) fn new(
        sql: &'a Sql,
        limits: &'a Limits,
        cost: &'a mut QueryCost,
        series: &'a [i64],
        buckets: Range<i64>,
    ) -> Self {
        let from = buckets.start;
        Self {
            sql,
            limits,
            cost,
            series,
            buckets,
            from,
            series_at_once: SERIES_AT_ONCE,
            rows_at_once: ROWS_MIN,
        }
    }

    /// The next page, which may be empty; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Row>>> {
        if self.series.is_empty() {
            return Ok(None);
        }
        // The rest of a partly read series has a different range than the others.
        let in_the_middle = self.from > self.buckets.start;
        let at_once = if in_the_middle { 1 } else { self.series_at_once };
        let (some, later) = self.series.split_at(at_once.min(self.series.len()));
        let left = self.from..self.buckets.end;
        let most = i64::try_from(self.rows_at_once).unwrap_or(i64::MAX);
        let rows = partials::of_series(&self.sql.reading(), some, &left, most).await?;
        match rows.last().filter(|_| rows.len() >= self.rows_at_once) {
            Some(last) => {
                let (series, bucket) = (last.int(0)?, last.int(1)?);
                let done = some.iter().take_while(|id| **id != series).count();
                self.series = self.series.get(done..).unwrap_or_default();
                self.from = bucket.saturating_add(1);
                self.series_at_once = (self.series_at_once / 2).max(1);
            }
            None => {
                (self.series, self.from) = (later, self.buckets.start);
                self.series_at_once = (self.series_at_once * 2).min(SERIES_AT_ONCE);
            }
        }
        self.account(&rows)?;
        Ok(Some(rows))
    }

    fn account(&mut self, rows: &[Row]) -> Result<()> {
        let (mut largest, mut bytes) = (1, 0_usize);
        for row in rows {
            let length = row.blob(3)?.len();
            largest = largest.max(length);
            bytes = bytes.saturating_add(length);
        }
        self.cost.add(rows.len(), bytes, self.limits)?;
        let most = ROWS_MAX.min(self.rows_at_once.saturating_mul(GROWTH));
        self.rows_at_once = (PAGE_BYTES / largest).clamp(ROWS_MIN, most);
        Ok(())
    }
}
