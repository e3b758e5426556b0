//! Answers: the result of one operation on a partial.
//!
//! Guarantees: without events there is no answer, not even a count of zero; an inexact answer is marked. Leaves to
//! others: which partials make up a period.

use logmill_io::Timestamp;

use super::{Facts, Partial, area, held, plus, too_large};
use crate::decimal::{Decimal, Mean};
use crate::error::{Error, Result};
use crate::settings::Op;

/// Decimal places between milliseconds and seconds.
const MILLI_PLACES: u8 = 3;

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpResult {
    pub value: Decimal,
    /// False for an average with infinitely many digits, a quantile from a sketch, and a unique count above
    /// `UNIQUE_EXACT_MAX`.
    pub exact: bool,
    /// The exact fraction of an average with infinitely many digits.
    pub mean: Option<Mean>,
}

impl OpResult {
    pub(crate) fn exact(value: Decimal) -> Self {
        Self { value, exact: true, mean: None }
    }

    /// The answer as a JSON number: an exact one only if every JSON reader gets it exactly; an inexact one as the
    /// nearest double.
    pub fn json_number(&self) -> Option<serde_json::Number> {
        match (self.exact, self.mean) {
            (true, _) => self.value.json_number(),
            (false, Some(mean)) => mean.nearest_double(),
            (false, None) => self.value.json_number().or_else(|| self.value.nearest_double()),
        }
    }
}

/// The range of time over which values are weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// No event is earlier.
    pub start: Timestamp,
    /// Exclusive; no event is later.
    pub end: Timestamp,
    /// The value at the start, if there was an event before.
    pub opening: Option<Decimal>,
}

impl Partial {
    /// The result of an operation; `None` without events. `quantile_milli` is for [`Op::Percentile`] only: the smallest
    /// value that at least so many thousandths of the values do not exceed. [`Op::TimeWeighted`] requires the window:
    /// each value times the seconds that it held, the opening value from the start of the window to the first event,
    /// the last value until its end. A window without events still has the area of its opening value.
    pub(crate) fn value(
        &self,
        op: Op,
        quantile_milli: u16,
        window: Option<Window>,
    ) -> Result<Option<OpResult>> {
        self.check_kept(op)?;
        if op == Op::TimeWeighted {
            return self.time_weighted(window);
        }
        let Some(facts) = &self.facts else { return Ok(None) };
        let exact = OpResult::exact;
        let result = match op {
            Op::Sum => exact(facts.sum),
            Op::Min => exact(facts.min),
            Op::Max => exact(facts.max),
            Op::Count => exact(facts.count.into()),
            Op::First => exact(facts.first.1),
            Op::Last => exact(facts.last.1),
            Op::Avg => {
                let (value, exact) = facts.sum.div(facts.count).ok_or_else(too_large)?;
                let mean = Mean { sum: facts.sum, count: facts.count };
                OpResult { value, exact, mean: (!exact).then_some(mean) }
            }
            Op::Unique => {
                let (count, exact) = facts.unique.as_ref().map_or((0, true), |set| set.count());
                OpResult { value: count.into(), exact, mean: None }
            }
            Op::Percentile => facts.quantile(quantile_milli)?,
            Op::TimeWeighted => return Ok(None),
        };
        Ok(Some(result))
    }

    fn check_kept(&self, op: Op) -> Result<()> {
        let kept = match op {
            Op::Unique => self.keeps.unique,
            Op::Percentile => self.keeps.sketch,
            Op::TimeWeighted => self.keeps.weighted,
            _ => true,
        };
        if kept {
            Ok(())
        } else {
            Err(Error::invalid("this event type does not keep the data that the operation needs"))
        }
    }

    fn time_weighted(&self, window: Option<Window>) -> Result<Option<OpResult>> {
        let Some(window) = window else {
            return Err(Error::invalid("a time-weighted value needs a window"));
        };
        let held_before = |until: Timestamp| match window.opening {
            Some(opening) => area(opening, window.start, until).map(Some),
            None => Ok(None),
        };
        let milliseconds = match &self.facts {
            None => held_before(window.end)?,
            Some(facts) => Some(facts.area_in(&window, held_before(facts.first.0.time)?)?),
        };
        let Some(milliseconds) = milliseconds else { return Ok(None) };
        let value = milliseconds.point_left(MILLI_PLACES).ok_or_else(too_large)?;
        Ok(Some(OpResult::exact(value)))
    }
}

impl Facts {
    /// The area over a window; `before` is that of the opening value.
    fn area_in(&self, window: &Window, before: Option<Decimal>) -> Result<Decimal> {
        if self.first.0.time < window.start || self.last.0.time > window.end {
            return Err(Error::invalid("there are events outside of the window"));
        }
        let after = held(&self.last, window.end)?;
        let inside = plus(self.area.unwrap_or(Decimal::ZERO), after)?;
        plus(inside, before.unwrap_or(Decimal::ZERO))
    }

    fn quantile(&self, quantile_milli: u16) -> Result<OpResult> {
        if !(1..=1_000).contains(&quantile_milli) {
            return Err(Error::invalid("a quantile is 1 to 1000 thousandths"));
        }
        let rank = (u128::from(self.count) * u128::from(quantile_milli)).div_ceil(1_000);
        let rank = u64::try_from(rank).unwrap_or(self.count);
        // Minimum and maximum are known exactly.
        let known = if rank >= self.count {
            Some(self.max)
        } else if rank <= 1 || self.min == self.max {
            Some(self.min)
        } else {
            None
        };
        if let Some(value) = known {
            return Ok(OpResult::exact(value));
        }
        let found = self.sketch.as_ref().and_then(|sketch| sketch.at_rank(rank));
        let value =
            found.ok_or_else(|| Error::corrupt("a sketch has fewer values than its partial"))?;
        Ok(OpResult { value: value.clamp(self.min, self.max), exact: false, mean: None })
    }
}
