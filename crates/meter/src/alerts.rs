//! Alerts: somebody is told when usage of a period reaches a threshold.
//!
//! Guarantees: once for each rule, customer, period and threshold, whatever is recorded, corrected or run twice; the
//! note and the message are one transaction. A change of usage and the job that looks at thresholds are one
//! transaction too, so that none is passed over; where time alone lets a figure grow it is looked at every quarter of
//! an hour. Leaves to others: delivering ([`crate::webhooks`]).

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use logmill_io::sql::Execute;
use logmill_io::{Row, Tx, params};
use logmill_work::{Claim, Failure, Handler, NewJob, Outcome, Queue, Running};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::figures::PartOf;
use crate::meter::Meter;
use crate::period::{Bucket, Period, format_time};
use crate::settings::{AlertRule, Op};
use crate::webhooks::{NewMessage, message_id};

/// The kind of jobs that look at thresholds.
pub const ALERT_JOB: &str = "meter.alert";
/// The most looks that are enqueued at once.
const LOOKS_PER_PAGE: i64 = 1_000;

/// Whose usage of when is to be looked at.
#[derive(Debug, Serialize, Deserialize)]
struct Look {
    customer: i64,
    buckets: Vec<i64>,
}

impl Look {
    /// The job that does it; `why` makes it another than other looks.
    fn job(&self, why: &str) -> Result<NewJob> {
        let payload =
            serde_json::to_string(self).map_err(|error| Error::corrupt(error.to_string()))?;
        Ok(NewJob::new(ALERT_JOB, format!("{}:{why}", self.customer), payload))
    }
}

/// Looks at thresholds, one customer a job.
#[derive(Clone, Debug)]
pub struct Watcher(pub Meter);

#[async_trait]
impl Handler for Watcher {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        let looked = Box::pin(self.0.look(&running.queue, &running.claim)).await;
        looked.map_err(|error| Failure::again(error.chain()))?;
        self.0.webhooks.wake();
        Ok(Outcome::Completed)
    }
}

/// A threshold that was reached.
struct Reached<'a> {
    rule: &'a AlertRule,
    period: Period,
    value: Decimal,
    threshold: Decimal,
}

impl Meter {
    /// Has thresholds looked at for customers whose usage changed. `number` is one that no other change has.
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
            jobs.push(Look { customer, buckets }.job(&number.to_string())?);
        }
        self.queue.enqueue_many_in(tx, &jobs).await?;
        Ok(())
    }

    /// Has thresholds looked at that are reached by time alone: by values that hold on and are weighed by it.
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
                     WHERE event_type = $1 AND customer > $2 ORDER BY customer LIMIT {LOOKS_PER_PAGE}"
                );
                let found = self.sql.query(&text, params![event_type, after]).await?;
                let mut jobs = Vec::with_capacity(found.rows.len());
                for row in &found.rows {
                    after = row.int(0)?;
                    // The quarter of an hour before may have been the last one of a period.
                    let look = Look { customer: after, buckets: vec![now - 1, now] };
                    jobs.push(look.job(&format!("held:{now}"))?);
                }
                if jobs.is_empty() {
                    break;
                }
                self.queue.enqueue_many(&jobs).await?;
            }
        }
        Ok(())
    }

    async fn look(&self, queue: &Queue, claim: &Claim) -> Result<()> {
        let look: Look = serde_json::from_str(&claim.payload)
            .map_err(|error| Error::corrupt(format!("the job {}: {error}", claim.key)))?;
        let name = self.customer_name(look.customer).await?;
        let mut reached = Vec::new();
        for rule in &self.settings.alerts {
            if rule.customer.as_ref().is_none_or(|customer| *customer == name) {
                self.look_at_rule(rule, &look, &mut reached).await?;
            }
        }
        let (name, reached) = (&name, &reached);
        let customer = look.customer;
        self.sql
            .write(|tx| async move {
                for reached in reached {
                    self.tell(&tx, customer, name, reached).await?;
                }
                Ok(queue.remove_in(&tx, claim).await?)
            })
            .await?;
        Ok(())
    }

    async fn look_at_rule<'a>(
        &self,
        rule: &'a AlertRule,
        look: &Look,
        reached: &mut Vec<Reached<'a>>,
    ) -> Result<()> {
        let Some(event_type) = self.settings.events.get(&rule.event_type) else { return Ok(()) };
        let series: Vec<i64> = self
            .series_of(look.customer)
            .await?
            .into_iter()
            .filter(|(_, name)| *name == rule.event_type)
            .map(|(series, _)| series)
            .collect();
        let mut seen = BTreeSet::new();
        for bucket in &look.buckets {
            let at = Bucket(*bucket).start();
            let Ok(period) = self.calendar.period_at(&rule.period, at) else {
                tracing::error!(rule = rule.name, at = format_time(at), "usage is in no period");
                continue;
            };
            if !seen.insert(period.key.clone()) {
                continue;
            }
            let op = rule.op.unwrap_or(event_type.op);
            let mut revisions = blake3::Hasher::new();
            let part = PartOf { period: &period, until: self.clock().now() };
            let figure = self.figure(&series, event_type, op, part, &mut revisions).await?;
            let Some(figure) = figure else { continue };
            for threshold in rule.thresholds.iter().filter(|least| **least <= figure.answer.value) {
                let (period, value) = (period.clone(), figure.answer.value);
                reached.push(Reached { rule, period, value, threshold: *threshold });
            }
        }
        Ok(())
    }

    async fn tell(&self, tx: &Tx, customer: i64, name: &str, reached: &Reached<'_>) -> Result<()> {
        let Reached { rule, period, value, threshold } = reached;
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
