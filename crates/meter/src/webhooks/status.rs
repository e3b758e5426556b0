//! Status: the state of endpoints, their deliveries, and every attempt.
//!
//! Guarantees: read-only, and never waits for writers; lists are bounded. Leaves to others: authorization.

use logmill_io::{Row, Timestamp, Value, params};

use super::Webhooks;
use super::endpoint::{COLUMNS, Endpoint, from_row};
use super::tables::DeliveryState;
use crate::error::{Error, Result};

/// Maximum length of a list.
pub(super) const LIST_MAX: usize = 1_000;
/// Endpoints counted per statement.
const STATUS_PAGE: usize = 200;

/// An endpoint with the counts of its deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    pub endpoint: Endpoint,
    /// Deliveries that are due, now or later.
    pub pending: u64,
    /// Pending deliveries that have failed at least once.
    pub failing: u64,
    /// Deliveries that wait for the previous one.
    pub waiting: u64,
    /// Deliveries whose attempts have all failed.
    pub exhausted: u64,
    pub cancelled: u64,
    /// When the oldest unsettled delivery was published.
    pub oldest: Option<Timestamp>,
}

/// A delivery as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryView {
    pub message_id: String,
    /// Kind of the message.
    pub kind: String,
    pub customer: Option<String>,
    pub endpoint_id: String,
    pub state: DeliveryState,
    /// How often it was replayed, or got a new job because it had none.
    pub round: i64,
    /// Attempts made in this round.
    pub attempts: i64,
    /// HTTP status of the last response.
    pub last_status: Option<i64>,
    pub last_error: Option<String>,
    /// When the next attempt is due, if one failed.
    pub next_at: Option<Timestamp>,
    /// When it was published.
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Where the next page begins.
    pub cursor: DeliveryCursor,
}

/// Where a page of deliveries ended. Contains the endpoint, because one message may go to more endpoints than a page
/// holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryCursor {
    /// Sequence number of the message.
    pub message: i64,
    /// Sequence number of the endpoint.
    pub endpoint: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptView {
    /// Number of replays of the delivery at that time.
    pub round: i64,
    /// Number of the attempt in its round, from 1.
    pub attempt: i64,
    pub at: Timestamp,
    pub duration_ms: i64,
    /// HTTP status of the response.
    pub status: Option<i64>,
    pub error: Option<String>,
    /// Beginning of the response body.
    pub response: String,
    /// Whether nothing was sent.
    pub dry_run: bool,
}

impl Webhooks {
    /// Status of all endpoints, in the order of their ids.
    pub async fn statuses(&self) -> Result<Vec<EndpointStatus>> {
        let mut all: Vec<EndpointStatus> = Vec::new();
        loop {
            let after = all.last().map(|last| last.endpoint.id.as_str());
            let page = self.statuses_after(after, STATUS_PAGE).await?;
            let full = page.len() == STATUS_PAGE;
            all.extend(page);
            if !full {
                return Ok(all);
            }
        }
    }

    /// Status of endpoints in the order of their ids, after the given one; at most [`LIST_MAX`]. Counts only the
    /// deliveries of these endpoints.
    pub(super) async fn statuses_after(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<EndpointStatus>> {
        let limit = i64::try_from(limit.min(LIST_MAX)).unwrap_or(0);
        let params = params![after.unwrap_or(""), limit];
        let found = self.sql().query(&statuses_text(), params).await?;
        found.rows.iter().map(|row| status(row, COLUMNS.split(',').count())).collect()
    }

    /// Deliveries, newest first, after a cursor: of one endpoint or of all, in one state or in any.
    pub async fn deliveries(
        &self,
        endpoint_id: Option<&str>,
        state: Option<DeliveryState>,
        after: Option<DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryView>> {
        if let Some(id) = endpoint_id {
            self.get(id).await?;
        }
        let (text, params) = deliveries_text(endpoint_id, state, after, limit);
        let found = self.sql().query(&text, params).await?;
        found.rows.iter().map(view).collect()
    }

    pub async fn deliveries_of(&self, message_id: &str) -> Result<Vec<DeliveryView>> {
        let text = format!(
            "{VIEWED} FROM webhook_delivery AS d {JOINED} WHERE m.id = $1 ORDER BY e.id LIMIT $2"
        );
        let limit = i64::try_from(LIST_MAX).unwrap_or(0);
        let found = self.sql().query(&text, params![message_id, limit]).await?;
        found.rows.iter().map(view).collect()
    }

    /// All attempts to deliver a message to an endpoint, oldest first.
    pub async fn attempts(&self, message_id: &str, endpoint_id: &str) -> Result<Vec<AttemptView>> {
        let text = "
            SELECT a.round, a.attempt, a.at, a.duration_ms, a.status, a.error, a.response, a.dry_run
            FROM webhook_message AS m
            JOIN webhook_endpoint AS e ON e.id = $2
            JOIN webhook_attempt AS a ON a.message_seq = m.seq AND a.endpoint_seq = e.seq
            WHERE m.id = $1 ORDER BY a.round, a.attempt LIMIT $3";
        let limit = i64::try_from(LIST_MAX).unwrap_or(0);
        let found = self.sql().query(text, params![message_id, endpoint_id, limit]).await?;
        found.rows.iter().map(attempt).collect()
    }

    /// Body of a message, as it is sent.
    pub async fn body(&self, message_id: &str) -> Result<String> {
        let text = "SELECT body FROM webhook_message WHERE id = $1";
        let found = self.sql().query(text, params![message_id]).await?;
        let row = found.rows.first().ok_or_else(|| Error::not_found("such message"))?;
        Ok(row.text(0)?.to_owned())
    }
}

/// SQL of a page of deliveries.
pub(super) fn deliveries_text(
    endpoint_id: Option<&str>,
    state: Option<DeliveryState>,
    after: Option<DeliveryCursor>,
    limit: usize,
) -> (String, Vec<Value>) {
    let after = after.unwrap_or(DeliveryCursor { message: i64::MAX, endpoint: i64::MAX });
    // The first of the two conditions lets the index be used.
    let place = "d.message_seq <= $1 AND (d.message_seq < $1 OR d.endpoint_seq > $2)";
    let mut conditions = vec![place.to_owned()];
    let limit = i64::try_from(limit.min(LIST_MAX)).unwrap_or(0);
    let mut params = params![after.message, after.endpoint, limit];
    if let Some(id) = endpoint_id {
        let seq = "d.endpoint_seq = (SELECT seq FROM webhook_endpoint WHERE id = $4)";
        conditions.push(seq.to_owned());
        params.push(id.into());
    }
    if let Some(state) = state {
        // With the redundant condition that the partial indexes of some states require.
        let is_so = match state {
            DeliveryState::Pending => "d.state = 0 AND d.state <> 2",
            DeliveryState::Waiting => "d.state = 1 AND d.state <> 2",
            DeliveryState::Succeeded => "d.state = 2",
            DeliveryState::Exhausted => "d.state = 3 AND d.state <> 2 AND d.state >= 3",
            DeliveryState::Cancelled => "d.state = 4 AND d.state <> 2 AND d.state >= 3",
        };
        conditions.push(is_so.to_owned());
    }
    let conditions = conditions.join(" AND ");
    let order = "ORDER BY d.message_seq DESC, d.endpoint_seq";
    // Selects the page first, so that only its rows are joined.
    let page = format!("SELECT * FROM webhook_delivery AS d WHERE {conditions} {order} LIMIT $3");
    let text = format!("{VIEWED} FROM ({page}) AS d {JOINED} {order}");
    (text, params)
}

/// SQL of a page of endpoints.
pub(super) fn statuses_text() -> String {
    let columns: Vec<String> =
        COLUMNS.split(',').map(|column| format!("e.{}", column.trim())).collect();
    let page = "FROM webhook_endpoint WHERE deleted_at IS NULL AND id > $1 ORDER BY id LIMIT $2";
    format!(
        "SELECT {}, d.pending, d.failing, d.waiting, d.exhausted, d.cancelled, d.oldest
         FROM (SELECT * {page}) AS e LEFT JOIN (
             SELECT endpoint_seq,
                 count(CASE WHEN state = 0 THEN 1 END) AS pending,
                 count(CASE WHEN state = 0 AND attempts > 0 THEN 1 END) AS failing,
                 count(CASE WHEN state = 1 THEN 1 END) AS waiting,
                 count(CASE WHEN state = 3 THEN 1 END) AS exhausted,
                 count(CASE WHEN state = 4 THEN 1 END) AS cancelled,
                 min(CASE WHEN state < 2 THEN created_at END) AS oldest
             FROM webhook_delivery
             WHERE state <> 2 AND state IN (0, 1, 3, 4)
                 AND endpoint_seq any_of(SELECT seq {page})
             GROUP BY endpoint_seq
         ) AS d ON d.endpoint_seq = e.seq
         ORDER BY e.id",
        columns.join(", ")
    )
}

const VIEWED: &str = "
    SELECT m.id, m.kind, m.customer, e.id, d.state, d.round, d.attempts, d.last_status,
        d.last_error, d.next_at, d.created_at, d.updated_at, d.message_seq, d.endpoint_seq";

const JOINED: &str = "
    JOIN webhook_message AS m ON m.seq = d.message_seq
    JOIN webhook_endpoint AS e ON e.seq = d.endpoint_seq";

fn status(row: &Row, first: usize) -> Result<EndpointStatus> {
    // An endpoint without deliveries has no counts.
    let count = |column: usize| -> Result<u64> {
        Ok(if row.is_null(first + column) { 0 } else { row.count(first + column)? })
    };
    Ok(EndpointStatus {
        endpoint: from_row(row)?.1,
        pending: count(0)?,
        failing: count(1)?,
        waiting: count(2)?,
        exhausted: count(3)?,
        cancelled: count(4)?,
        oldest: row.opt_time(first + 5)?,
    })
}

fn view(row: &Row) -> Result<DeliveryView> {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let number = row.int(4)?;
    let state = DeliveryState::from_number(number)
        .ok_or_else(|| Error::corrupt(format!("unknown delivery state {number}")))?;
    Ok(DeliveryView {
        message_id: row.text(0)?.to_owned(),
        kind: row.text(1)?.to_owned(),
        customer: owned(row.opt_text(2)?),
        endpoint_id: row.text(3)?.to_owned(),
        state,
        round: row.int(5)?,
        attempts: row.int(6)?,
        last_status: row.opt_int(7)?,
        last_error: owned(row.opt_text(8)?),
        next_at: row.opt_time(9)?,
        created_at: row.time(10)?,
        updated_at: row.time(11)?,
        cursor: DeliveryCursor { message: row.int(12)?, endpoint: row.int(13)? },
    })
}

fn attempt(row: &Row) -> Result<AttemptView> {
    Ok(AttemptView {
        round: row.int(0)?,
        attempt: row.int(1)?,
        at: row.time(2)?,
        duration_ms: row.int(3)?,
        status: row.opt_int(4)?,
        error: row.opt_text(5)?.map(str::to_owned),
        response: row.text(6)?.to_owned(),
        dry_run: row.int(7)? != 0,
    })
}
