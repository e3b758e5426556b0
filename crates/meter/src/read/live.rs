//! Live values: the current figures of a customer in the periods in progress.
//!
//! Guarantees: computed from partials, never from events. Leaves to others: when to refresh.

use logmill_io::Timestamp;
use serde_json::Value as Json;

use crate::Meter;
use crate::aggregate::body;
use crate::aggregate::figures::Figures;
use crate::error::Result;
use crate::period::Period;
use crate::store::series::find_customer;

/// Figures of a period in progress.
#[derive(Clone, Debug, PartialEq)]
pub struct LivePeriod {
    pub period: Period,
    /// `events`, `eventsExact` and `eventCounts`, as in an aggregate.
    pub figures: Json,
}

impl Meter {
    /// The figures of a customer in every period that contains `at`, for one event type or all.
    pub async fn live(
        &self,
        customer: &str,
        event_type: Option<&str>,
        at: Timestamp,
    ) -> Result<Vec<LivePeriod>> {
        let id = find_customer(&self.sql.reading(), customer).await?;
        let mut all = Vec::with_capacity(self.settings.periods.len());
        for kind in &self.settings.periods {
            let period = self.calendar.period_at(kind, at)?;
            let mut figures = match id {
                Some(id) => {
                    Figures::of_customer(&self.sql, &self.settings, id, &period, at).await?
                }
                None => Figures::default(),
            };
            figures.types.retain(|name, _| event_type.is_none_or(|wanted| wanted == name));
            all.push(LivePeriod { period, figures: body(&figures) });
        }
        Ok(all)
    }
}
