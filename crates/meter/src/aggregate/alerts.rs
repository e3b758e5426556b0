//! Alerts: a webhook message when usage of a period reaches a threshold.
//!
//! Guarantees: one message per rule, customer, period and threshold, no matter what is recorded, corrected or run
//! twice; the note and the message are one transaction. A change of usage and the job that checks thresholds are one
//! transaction too, so that no threshold is missed. Figures that grow with time alone are checked every fifteen
//! minutes. Leaves to others: delivery ([`crate::webhooks`]).

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use logmill_io::sql::Execute;
use logmill_io::{Row, Tx, params};
use logmill_work::{Claim, Failure, Handler, NewJob, Outcome, Queue, RunningJob};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::Meter;
use crate::aggregate::figures::{Figure, PartOf};
use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::period::{Bucket, Period, format_time};
use crate::settings::{AlertRule, Op};
use crate::store::series;
use crate::webhooks::{NewMessage, message_id};

/// Kind of the jobs that check thresholds.
pub const ALERT_JOB: &str = "meter.alert";
/// Maximum number of checks enqueued at once.
const CHECKS_PER_PAGE: i64 = 1_000;

/// A check of one customer's thresholds for some buckets.
#[derive(Debug, Serialize, Deserialize)]
struct ThresholdCheck {
    customer: i64,
    buckets: Vec<i64>,
}

impl ThresholdCheck {
    /// The job of this check; `why` distinguishes it from other checks of the customer.
    fn job(&self, why: &str) -> Result<NewJob> {
        let payload =
            serde_json::to_string(self).map_err(|error| Error::corrupt(error.to_string()))?;
        Ok(NewJob::new(ALERT_JOB, format!("{}:{why}", self.customer), payload))
    }
}

/// Worker that checks the thresholds of one customer per job.
#[derive(Clone, Debug)]
pub struct Watcher(pub Meter);

#[async_trait]
impl Handler for Watcher {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let checked = Box::pin(self.0.check_thresholds(&running.queue, &running.claim)).await;
        checked.map_err(|error| Failure::again(error.chain()))?;
        self.0.webhooks.wake();
        Ok(Outcome::Completed)
    }
}

struct ReachedThreshold<'a> {
    rule: &'a AlertRule,
    period: Period,
    value: Decimal,
    threshold: Decimal,
}

impl Meter {
    /// Enqueues checks for customers whose usage changed. `number` must be unique to this change.
    pub(crate) async fn enqueue_alerts(&self, tx: &Tx, number: i64, marks: &[Row]) -> Result<()> {
        if self.settings.alerts.is_empty() {
            return Ok(());
        }
        let mut buckets: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for mark in marks {
            buckets.entry(mark.int(1)?).or_default().push(mark.int(0)?);
        }
        let mut jobs = Vec::with_capacity(buckets.len());
        for (customer, buckets) in buckets {
            jobs.push(ThresholdCheck { customer, buckets }.job(&number.to_string())?);
        }
        self.queue.enqueue_many_in(tx, &jobs).await?;
        Ok(())
    }

    /// Enqueues checks of thresholds that time alone can reach: held values weighted by time.
    pub(crate) async fn watch_held_values(&self) -> Result<()> {
        let weighs = |rule: &&AlertRule| {
            let known = self.settings.events.get(&rule.event_type);
            known.is_some_and(|known| rule.op.unwrap_or(known.op) == Op::TimeWeighted)
        };
        let types: BTreeSet<&str> =
            self.settings.alerts.iter().filter(weighs).map(|rule| &*rule.event_type).collect();
        let now = Bucket::of(self.clock().now()).0;
        for event_type in types {
            let mut after = i64::MIN;
            loop {
                let text = format!(
                    "SELECT DISTINCT customer FROM meter_series
                     WHERE event_type = $1 AND customer > $2 ORDER BY customer LIMIT {CHECKS_PER_PAGE}"
                );
                let found = self.sql.query(&text, params![event_type, after]).await?;
                let mut jobs = Vec::with_capacity(found.rows.len());
                for row in &found.rows {
                    after = row.int(0)?;
                    // The previous bucket may have been the last of its period.
                    let check = ThresholdCheck { customer: after, buckets: vec![now - 1, now] };
                    jobs.push(check.job(&format!("held:{now}"))?);
                }
                if jobs.is_empty() {
                    break;
                }
                self.queue.enqueue_many(&jobs).await?;
            }
        }
        Ok(())
    }

    async fn check_thresholds(&self, queue: &Queue, claim: &Claim) -> Result<()> {
        let check: ThresholdCheck = serde_json::from_str(&claim.payload).map_err(|error| {
            Error::corrupt(format!("the payload of job {} cannot be parsed: {error}", claim.key))
        })?;
        let name = self.customer_name(check.customer).await?;
        let mut reached = Vec::new();
        for rule in &self.settings.alerts {
            if rule.customer.as_ref().is_none_or(|customer| *customer == name) {
                self.check_rule(rule, &check, &mut reached).await?;
            }
        }
        let (name, reached) = (&name, &reached);
        let customer = check.customer;
        self.sql
            .write(|tx| async move {
                for reached in reached {
                    self.publish_alert(&tx, customer, name, reached).await?;
                }
                Ok::<_, Error>(queue.remove_in(&tx, claim).await?)
            })
            .await?;
        Ok(())
    }

    async fn check_rule<'a>(
        &self,
        rule: &'a AlertRule,
        check: &ThresholdCheck,
        reached: &mut Vec<ReachedThreshold<'a>>,
    ) -> Result<()> {
        let Some(event_type) = self.settings.events.get(&rule.event_type) else { return Ok(()) };
        let series: Vec<i64> = series::of_customer(&self.sql, check.customer)
            .await?
            .into_iter()
            .filter(|(_, name)| *name == rule.event_type)
            .map(|(series, _)| series)
            .collect();
        let mut seen = BTreeSet::new();
        for bucket in &check.buckets {
            let at = Bucket(*bucket).start();
            let Ok(period) = self.calendar.period_at(&rule.period, at) else {
                tracing::error!(
                    rule = rule.name,
                    at = format_time(at),
                    "usage falls into no period, its alerts are not checked"
                );
                continue;
            };
            if !seen.insert(period.key.clone()) {
                continue;
            }
            let op = rule.op.unwrap_or(event_type.op);
            let mut revisions = blake3::Hasher::new();
            let part = PartOf { period: &period, until: self.clock().now() };
            let figure =
                Figure::compute(&self.sql, &series, event_type, op, part, &mut revisions).await?;
            let Some(figure) = figure else { continue };
            for threshold in rule.thresholds.iter().filter(|least| **least <= figure.result.value) {
                let (period, value) = (period.clone(), figure.result.value);
                reached.push(ReachedThreshold { rule, period, value, threshold: *threshold });
            }
        }
        Ok(())
    }

    async fn publish_alert(
        &self,
        tx: &Tx,
        customer: i64,
        name: &str,
        reached: &ReachedThreshold<'_>,
    ) -> Result<()> {
        let ReachedThreshold { rule, period, value, threshold } = reached;
        let now = self.clock().now();
        let text = "
            INSERT INTO meter_alert (rule, customer, period_key, threshold, value, at_ms)
            VALUES ($1, $2, $3, $4, $5, $6)
            ON CONFLICT (rule, customer, period_key, threshold) DO NOTHING";
        let params = params![
            rule.name.as_str(),
            customer,
            period.key.as_str(),
            threshold.to_string(),
            value.to_string(),
            now,
        ];
        if tx.execute(text, params).await?.changed == 0 {
            return Ok(());
        }
        let threshold = threshold.to_string();
        let id = message_id(&["alert", name, &rule.name, &period.key, &threshold]);
        let data = json!({
            "alert": rule.name,
            "eventType": rule.event_type,
            "threshold": threshold,
            "value": value.to_string(),
            "periodStart": format_time(period.start),
            "periodEnd": format_time(period.end_inclusive()),
            "periodKey": period.key,
        });
        let message = NewMessage {
            customer: Some(name.to_owned()),
            period: Some(period.kind.name().to_owned()),
            ..NewMessage::new(id, "alert.triggered", now, &data)?
        };
        self.webhooks.publish_in(tx, &message).await?;
        Ok(())
    }
}
