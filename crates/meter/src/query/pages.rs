//! Partials of many series, page by page, for a query.
//!
//! How large a partial is depends on what happened, from some fifty bytes to many thousands. So a page has as many rows
//! as fit by the size of those before it, and as many series as had room on one.
//!
//! Guarantees: partials come in the order of their series and buckets, each once; a page is bounded, and so is the sum
//! of all pages: beyond it is an error. Leaves to others: what is done with them.

use std::ops::Range;

use logmill_io::{Row, Sql};

use super::{Limits, too_much};
use crate::error::Result;
use crate::partials;

/// How many series are read at once, at most.
const SERIES_AT_ONCE: usize = 1_000;
/// About how many bytes of partials one page has.
const PAGE_BYTES: usize = 16 << 20;
/// How many rows the first page has, and how many one has whose rows are very large.
const ROWS_MIN: usize = 256;
/// How many rows one page has at most.
const ROWS_MAX: usize = 50_000;
/// How much longer than the one before a page may be: the rows to come may be larger.
const GROWTH: usize = 8;

/// What a query has read so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    rows: usize,
    bytes: usize,
}

impl Spent {
    /// Counts rows and their bytes; an error once they are too many.
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

/// Where the partials are, and how far they were read.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    sql: &'a Sql,
    limits: &'a Limits,
    spent: &'a mut Spent,
    /// The series that are left, in order.
    series: &'a [i64],
    buckets: Range<i64>,
    /// From which bucket on the first of them is left; of the others all are.
    from: i64,
    /// How many series and rows the next page has.
    series_at_once: usize,
    rows_at_once: usize,
}

impl<'a> Pages<'a> {
    /// Pages of these series, whose numbers are in order.
    pub(super) fn new(
        sql: &'a Sql,
        limits: &'a Limits,
        spent: &'a mut Spent,
        series: &'a [i64],
        buckets: Range<i64>,
    ) -> Self {
        let from = buckets.start;
        Self {
            sql,
            limits,
            spent,
            series,
            buckets,
            from,
            series_at_once: SERIES_AT_ONCE,
            rows_at_once: ROWS_MIN,
        }
    }

    /// The next page, which may be empty; none after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Row>>> {
        if self.series.is_empty() {
            return Ok(None);
        }
        // What is left of a series in the middle is not the same range as that of others.
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
        self.spent.add(rows.len(), bytes, self.limits)?;
        let most = ROWS_MAX.min(self.rows_at_once.saturating_mul(GROWTH));
        self.rows_at_once = (PAGE_BYTES / largest).clamp(ROWS_MIN, most);
        Ok(())
    }
}
