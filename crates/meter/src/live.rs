//! Live values: what the periods under way say of a customer at this moment.
//!
//! Guarantees: computed from partials, never from events. Leaves to others: when to look again.

use logmill_io::Timestamp;
use serde_json::Value as Json;

use crate::aggregate::body;
use crate::error::Result;
use crate::meter::Meter;
use crate::period::Period;
use crate::series::find_customer;

/// What a period under way says so far.
#[derive(Clone, Debug, PartialEq)]
pub struct LivePeriod {
    /// Which period.
    pub period: Period,
    /// `events`, `eventsExact` and `eventCounts`, as an aggregate has them.
    pub said: Json,
}

impl Meter {
    /// What every period at a moment says of a customer, of one event type or of all.
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
                Some(id) => self.figures(id, &period, at).await?,
                None => crate::figures::Figures::default(),
            };
            figures.types.retain(|name, _| event_type.is_none_or(|wanted| wanted == name));
            all.push(LivePeriod { period, said: body(&figures) });
        }
        Ok(all)
    }
}
