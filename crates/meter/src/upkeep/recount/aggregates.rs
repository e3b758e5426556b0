//! Part of the recount: compares every aggregate with its newest revision.
//!
//! An aggregate and its newest revision are two rows, which one transaction writes with the same figures. They have no
//! checksums, so damage in one of them shows as a difference. Which of the two is right is decided by computing the
//! figures again from the partials, which are compared with events before.
//!
//! Guarantees: a repair writes only what one of the two rows has and the partials confirm, so nothing is announced:
//! what was published stays as it was. Leaves to others: damage of both rows, and of aggregates that are still
//! provisional; both are reported.

use logmill_io::sql::Execute;
use logmill_io::{Row, params};

use super::{DIFFERENCES_MAX, RecountReport};
use crate::Meter;
use crate::aggregate::figures::Figures;
use crate::aggregate::{AggregateState, body};
use crate::error::Result;

/// Number of differences that one query reads.
const PAGE: usize = 1_000;

/// An aggregate that differs from its newest revision.
struct Differing {
    id: String,
    customer: i64,
    period: String,
    key: String,
    revision: i64,
    aggregate: StoredCopy,
    newest: StoredCopy,
}

/// One of the two rows; what cannot be read is `None`.
struct StoredCopy {
    state: Option<i64>,
    inputs: Option<Vec<u8>>,
    body: Option<String>,
}

impl StoredCopy {
    fn from_row(row: &Row, first: usize) -> Self {
        Self {
            state: row.int(first).ok(),
            inputs: row.blob(first + 1).ok().map(|inputs| inputs.to_vec()),
            body: row.text(first + 2).ok().map(str::to_owned),
        }
    }

    fn is_finished(&self) -> bool {
        let state = self.state.and_then(|state| AggregateState::from_number(state).ok());
        state.is_some_and(|state| state != AggregateState::Provisional)
    }
}

impl Meter {
    /// Compares all aggregates with their newest revisions.
    pub(super) async fn recount_aggregates(
        &self,
        repair: bool,
        report: &mut RecountReport,
    ) -> Result<()> {
        let mut after = String::new();
        loop {
            let page = self.differing_aggregates(&after).await?;
            let Some(last) = page.last().map(|one| one.id.clone()) else { return Ok(()) };
            for differing in page {
                report.wrong += 1;
                if repair && self.repair_aggregate(&differing).await? {
                    report.repaired += 1;
                }
                if report.differences.len() < DIFFERENCES_MAX {
                    let (id, revision) = (&differing.id, differing.revision);
                    let what = format!("aggregate {id} differs from its revision {revision}");
                    report.differences.push(what);
                }
            }
            after = last;
        }
    }

    async fn differing_aggregates(&self, after: &str) -> Result<Vec<Differing>> {
        let text = format!(
            "SELECT a.id, a.customer, a.period, a.period_key, a.revision,
                 a.state, a.inputs, a.body, r.state, r.inputs, r.body
             FROM meter_aggregate a
             LEFT JOIN meter_revision r ON r.id = a.id AND r.revision = a.revision
             WHERE a.id > $1 AND (r.id IS NULL OR r.state <> a.state OR r.inputs <> a.inputs
                 OR r.body <> a.body)
             ORDER BY a.id LIMIT {PAGE}"
        );
        let found = self.sql.query(&text, params![after]).await?;
        let differing = found.rows.iter().map(|row| {
            Ok(Differing {
                id: row.text(0)?.to_owned(),
                customer: row.int(1)?,
                period: row.text(2)?.to_owned(),
                key: row.text(3)?.to_owned(),
                revision: row.int(4)?,
                aggregate: StoredCopy::from_row(row, 5),
                newest: StoredCopy::from_row(row, 8),
            })
        });
        differing.collect()
    }

    /// Copies the row that the partials confirm over the other; false if they confirm neither, or both.
    async fn repair_aggregate(&self, differing: &Differing) -> Result<bool> {
        let Differing { id, customer, period, key, revision, aggregate, newest } = differing;
        // The figures of a provisional aggregate depend on when it was computed.
        let Ok(kind) = self.period_kind(period) else { return Ok(false) };
        let period = self.calendar.period_of_key(kind, key)?;
        let figures =
            Figures::of_customer(&self.sql, &self.settings, *customer, &period, period.end).await?;
        let text = body(&figures).to_string();
        let is_right = |copy: &StoredCopy| {
            copy.is_finished()
                && copy.inputs.as_deref() == Some(&figures.inputs[..])
                && copy.body.as_deref() == Some(&text[..])
        };
        let (table, state) = match (is_right(aggregate), is_right(newest)) {
            (true, false) => ("meter_revision", aggregate.state),
            (false, true) => ("meter_aggregate", newest.state),
            _ => return Ok(false),
        };
        let update = format!(
            "UPDATE {table} SET state = $3, inputs = $4, body = $5 WHERE id = $1 AND revision = $2"
        );
        let inputs = figures.inputs.as_slice();
        let params = params![id.as_str(), *revision, state.unwrap_or_default(), inputs, text];
        Ok(self.sql.execute(&update, params).await?.changed > 0)
    }
}
