//! Answers: what a partial says when it is asked for one operation.
//!
//! Guarantees: without events there is no answer, not even a count of zero; what is not exact says so. Leaves to
//! others: which partials a period is made of.

use logmill_io::Timestamp;

use super::{Facts, Partial, area, held, plus, too_large};
use crate::decimal::{Decimal, Mean};
use crate::error::{Error, Result};
use crate::settings::Op;

/// The decimal places between milliseconds and seconds.
const MILLI_PLACES: u8 = 3;

/// What an operation gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number.
    pub value: Decimal,
    /// Whether it is this very number: not for an average whose digits do not end, a quantile from a sketch, or a
    /// unique count above [`super::UNIQUE_EXACT_MAX`].
    pub exact: bool,
    /// The exact fraction, for an average whose digits do not end.
    pub mean: Option<Mean>,
}

impl Answer {
    /// A value that is exact.
    pub fn exact(value: Decimal) -> Self {
        Self { value, exact: true, mean: None }
    }

    /// The answer as a JSON number: an exact one only where every reader of JSON gets it exactly; what is not exact is
    /// the nearest double.
    pub fn json_number(&self) -> Option<serde_json::Number> {
        match (self.exact, self.mean) {
            (true, _) => self.value.json_number(),
            (false, Some(mean)) => mean.nearest_double(),
            (false, None) => self.value.json_number().or_else(|| self.value.nearest_double()),
        }
    }
}

/// The stretch of time over which values are weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first moment; no event is before it.
    pub start: Timestamp,
    /// The first moment after it; no event is after it.
    pub end: Timestamp,
    /// The value that held when it began, if there was an event before.
    pub opening: Option<Decimal>,
}

impl Partial {
    /// What an operation gives; `None` without events. `quantile_milli` is for [`Op::Percentile`] only: the
    /// smallest value that at least so many thousandths of the values do not exceed. The window is for
    /// [`Op::TimeWeighted`] only, which needs it: each value times the seconds that it held, the opening value from
    /// the start of the window to the first event, the last value until its end. A window without events still has
    /// the area of its opening value.
    pub fn value(
        &self,
        op: Op,
        quantile_milli: u16,
        window: Option<Window>,
    ) -> Result<Option<Answer>> {
        self.check_kept(op)?;
        if op == Op::TimeWeighted {
            return self.time_weighted(window);
        }
        let Some(facts) = &self.facts else { return Ok(None) };
        let exact = Answer::exact;
        let answer = match op {
            Op::Sum => exact(facts.sum),
            Op::Min => exact(facts.min),
            Op::Max => exact(facts.max),
            Op::Count => exact(facts.count.into()),
            Op::First => exact(facts.first.1),
            Op::Last => exact(facts.last.1),
            Op::Avg => {
                let (value, exact) = facts.sum.div(facts.count).ok_or_else(too_large)?;
                let mean = Mean { sum: facts.sum, count: facts.count };
                Answer { value, exact, mean: (!exact).then_some(mean) }
            }
            Op::Unique => {
                let (count, exact) = facts.unique.as_ref().map_or((0, true), |set| set.count());
                Answer { value: count.into(), exact, mean: None }
            }
            Op::Percentile => facts.quantile(quantile_milli)?,
            Op::TimeWeighted => return Ok(None),
        };
        Ok(Some(answer))
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
            Err(Error::invalid("this meter does not keep what is asked for"))
        }
    }

    fn time_weighted(&self, window: Option<Window>) -> Result<Option<Answer>> {
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
        Ok(Some(Answer::exact(value)))
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

    fn quantile(&self, quantile_milli: u16) -> Result<Answer> {
        if !(1..=1_000).contains(&quantile_milli) {
            return Err(Error::invalid("a quantile is 1 to 1000 thousandths"));
        }
        let rank = (u128::from(self.count) * u128::from(quantile_milli)).div_ceil(1_000);
        let rank = u64::try_from(rank).unwrap_or(self.count);
        // The ends are known exactly.
        let known = if rank >= self.count {
            Some(self.max)
        } else if rank <= 1 || self.min == self.max {
            Some(self.min)
        } else {
            None
        };
        if let Some(value) = known {
            return Ok(Answer::exact(value));
        }
        let found = self.sketch.as_ref().and_then(|sketch| sketch.at_rank(rank));
        let value = found.ok_or_else(|| Error::corrupt("a sketch that has fewer values"))?;
        Ok(Answer { value: value.clamp(self.min, self.max), exact: false, mean: None })
    }
}
