//! Names of customers and series in their rows, with the row's checksum in the column `checks`.
//!
//! Every event and aggregate is joined with these rows, so one changed byte of a name would move usage to another
//! customer. Rows of versions that had no checksums have `NULL` until the audit fills it in.
//!
//! Guarantees: a row with one changed bit, or a burst of up to 32, is never taken for the one that was written. Leaves
//! to others: rows that are gone, and which names there are ([`crate::store::series`]).

use logmill_io::sql::Execute;
use logmill_io::{Row, params};

use crate::damage::DamagedRecord;
use crate::error::{Error, Result};

/// The columns that [`customer_at`] reads, from a table with the alias `c`.
pub(crate) const CUSTOMER: &str = "c.id, c.name, c.checks";
/// The columns that [`series_at`] reads, from a table with the alias `s`.
pub(crate) const SERIES: &str = "s.id, s.customer, s.event_type, s.dims, s.checks";
/// Number of columns in [`SERIES`].
pub(crate) const SERIES_COLUMNS: usize = 5;
/// Names that one query of a check reads.
const NAMES_PER_PAGE: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeriesNames<'a> {
    pub(crate) id: i64,
    pub(crate) customer: i64,
    pub(crate) event_type: &'a str,
    pub(crate) dims: &'a str,
}

impl SeriesNames<'_> {
    /// The value of the column `checks`.
    pub(crate) fn checks(&self) -> i64 {
        checksum(&[self.id, self.customer], &[self.event_type, self.dims])
    }
}

/// The value of the column `checks` of a customer.
pub(crate) fn customer_checks(id: i64, name: &str) -> i64 {
    checksum(&[id], &[name])
}

fn checksum(numbers: &[i64], texts: &[&str]) -> i64 {
    let mut checksum = 0;
    for number in numbers {
        checksum = crc32c::crc32c_append(checksum, &number.to_le_bytes());
    }
    for text in texts {
        // Lengths, so that no byte can move from one text to its neighbour.
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        checksum = crc32c::crc32c_append(checksum, &length.to_le_bytes());
        checksum = crc32c::crc32c_append(checksum, text.as_bytes());
    }
    i64::from(checksum)
}

/// The name of a customer whose columns [`CUSTOMER`] begin at `at`.
pub(crate) fn customer_at(row: &Row, at: usize) -> Result<&str> {
    let id = row.int(at).unwrap_or_default();
    let damaged = |_| Error::DamagedName { record: DamagedRecord::Customer(id) };
    let name = row.text(at + 1).map_err(damaged)?;
    match row.opt_int(at + 2).map_err(damaged)? {
        Some(checks) if checks != customer_checks(id, name) => {
            Err(Error::DamagedName { record: DamagedRecord::Customer(id) })
        }
        _ => Ok(name),
    }
}

/// The names of a series whose columns [`SERIES`] begin at `at`.
pub(crate) fn series_at(row: &Row, at: usize) -> Result<SeriesNames<'_>> {
    let id = row.int(at).unwrap_or_default();
    let damaged = |_| Error::DamagedName { record: DamagedRecord::Series(id) };
    let names = SeriesNames {
        id,
        customer: row.int(at + 1).map_err(damaged)?,
        event_type: row.text(at + 2).map_err(damaged)?,
        dims: row.text(at + 3).map_err(damaged)?,
    };
    match row.opt_int(at + 4).map_err(damaged)? {
        Some(checks) if checks != names.checks() => {
            Err(Error::DamagedName { record: DamagedRecord::Series(id) })
        }
        _ => Ok(names),
    }
}

pub(crate) async fn read_customer(on: &impl Execute, id: i64) -> Result<String> {
    let text = format!("SELECT {CUSTOMER} FROM meter_customer c WHERE c.id = $1");
    let found = on.execute(&text, params![id]).await?;
    let row = found.rows.first();
    let row = row.ok_or_else(|| Error::corrupt(format!("customer {id} has no name")))?;
    Ok(customer_at(row, 0)?.to_owned())
}

/// Reads every name; the first damaged one is the error.
pub(crate) async fn check_all(on: &impl Execute) -> Result<()> {
    let customers = format!(
        "SELECT {CUSTOMER} FROM meter_customer c WHERE c.id > $1 ORDER BY c.id LIMIT {NAMES_PER_PAGE}"
    );
    check_pages(on, &customers, |row| customer_at(row, 0).map(drop)).await?;
    let series = format!(
        "SELECT {SERIES} FROM meter_series s WHERE s.id > $1 ORDER BY s.id LIMIT {NAMES_PER_PAGE}"
    );
    check_pages(on, &series, |row| series_at(row, 0).map(drop)).await
}

/// Checks all rows of a query for those after an id, which is their first column.
async fn check_pages(
    on: &impl Execute,
    text: &str,
    check: impl Fn(&Row) -> Result<()>,
) -> Result<()> {
    let mut after = i64::MIN;
    loop {
        let found = on.execute(text, params![after]).await?;
        let Some(last) = found.rows.last() else { return Ok(()) };
        after = last.int(0)?;
        found.rows.iter().try_for_each(&check)?;
    }
}

/// The event type of a series, and the number of its customer.
pub(crate) async fn read_series(on: &impl Execute, id: i64) -> Result<(String, i64)> {
    let text = format!("SELECT {SERIES} FROM meter_series s WHERE s.id = $1");
    let found = on.execute(&text, params![id]).await?;
    let row = found.rows.first();
    let row = row.ok_or_else(|| Error::corrupt(format!("series {id} has no name")))?;
    let names = series_at(row, 0)?;
    Ok((names.event_type.to_owned(), names.customer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_moves_from_one_name_to_the_next_changes_the_checksum() {
        let of = |event_type, dims| SeriesNames { id: 1, customer: 2, event_type, dims }.checks();
        assert_ne!(of("ab", "c"), of("a", "bc"));
        assert_ne!(customer_checks(1, "acme"), customer_checks(2, "acme"));
    }
}
