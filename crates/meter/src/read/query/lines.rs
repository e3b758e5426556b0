//! Lines of an answer under construction, and the walk of one series through its windows.
//!
//! Guarantees: lines never exceed the limits, in number or in size: the first excess is an error, however much is still
//! to come. Leaves to others: reading partials.

use std::collections::BTreeMap;

use logmill_io::Timestamp;

use super::{Group, Limits, Plan, too_much};
use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::partial::{AddOutcome, OptionalParts, Partial, Sample, Window};
use crate::settings::Op;

/// Data collected for one line.
pub(super) struct LineData {
    pub(super) partial: Partial,
    pub(super) area: Option<Decimal>,
    pub(super) provisional: Option<Partial>,
}

impl LineData {
    fn new(keeps: OptionalParts) -> Self {
        Self { partial: Partial::new(keeps), area: None, provisional: None }
    }

    fn add_area(&mut self, area: Option<Decimal>) -> Result<()> {
        if let Some(area) = area {
            let sum = self.area.unwrap_or(Decimal::ZERO).checked_add(area);
            self.area = Some(sum.ok_or_else(|| Error::invalid("the sum is too large"))?);
        }
        Ok(())
    }
}

/// The lines of an answer, by window and group.
pub(super) struct QueryLines<'a> {
    limits: &'a Limits,
    lines: BTreeMap<(usize, Group), LineData>,
    /// Total size of the optional parts of all lines.
    bytes: usize,
    /// How often a value was carried into a window.
    held: usize,
}

impl<'a> QueryLines<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self { limits, lines: BTreeMap::new(), bytes: 0, held: 0 }
    }

    pub(super) fn limits(&self) -> &'a Limits {
        self.limits
    }

    pub(super) fn into_lines(self) -> impl Iterator<Item = ((usize, Group), LineData)> {
        self.lines.into_iter()
    }

    /// The line of a window and group, created if missing.
    fn at(&mut self, span: usize, group: &Group, keeps: OptionalParts) -> Result<&mut LineData> {
        let key = (span, group.clone());
        if self.lines.len() >= self.limits.lines && !self.lines.contains_key(&key) {
            return Err(too_much("lines", self.limits.lines));
        }
        Ok(self.lines.entry(key).or_insert_with(|| LineData::new(keeps)))
    }

    /// Adds the partials of one series in one window, and the area under its values.
    fn add(
        &mut self,
        span: usize,
        group: &Group,
        partial: &Partial,
        area: Option<Decimal>,
    ) -> Result<()> {
        let line = self.at(span, group, partial.keeps())?;
        line.add_area(area)?;
        let before = line.partial.extra_bytes();
        line.partial.merge(partial)?;
        // Unique items that become an estimate take less than before.
        let after = line.partial.extra_bytes();
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
        if self.bytes > self.limits.kept_bytes {
            return Err(too_much("bytes in lines", self.limits.kept_bytes));
        }
        Ok(())
    }

    /// Adds an event that is not final yet. For time-weighted values the order does not matter, because no area is
    /// reported for them.
    pub(super) fn add_provisional(
        &mut self,
        span: usize,
        group: &Group,
        keeps: OptionalParts,
        sample: Sample<'_>,
    ) -> Result<()> {
        let line = self.at(span, group, keeps)?;
        let partial = line.provisional.get_or_insert_with(|| Partial::new(keeps));
        let seq = i64::try_from(partial.count()).unwrap_or(i64::MAX);
        let at = crate::partial::Position { seq, ..sample.at };
        match partial.add(&Sample { at, ..sample })? {
            AddOutcome::Done | AddOutcome::OutOfOrder => Ok(()),
        }
    }
}

/// One series on its way through the windows, its partials in order.
pub(super) struct SeriesWalk<'a> {
    pub(super) series: i64,
    plan: &'a Plan,
    group: Group,
    now: Timestamp,
    /// The value that is carried into the window; only for time-weighted meters.
    held: Option<Decimal>,
    /// The current window, and the partials in it.
    span: usize,
    merged: Partial,
}

impl<'a> SeriesWalk<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        series: i64,
        group: Group,
        now: Timestamp,
        held: Option<Decimal>,
    ) -> Self {
        Self { series, plan, group, now, held, span: 0, merged: Partial::new(plan.keeps) }
    }

    /// Adds the next partial, whose bucket starts at the given time.
    pub(super) fn add(
        &mut self,
        start: Timestamp,
        partial: &Partial,
        lines: &mut QueryLines<'_>,
    ) -> Result<()> {
        let Some(span) = self.plan.span_at(start) else { return Ok(()) };
        self.go_to(span, lines)?;
        self.merged.merge(partial)
    }

    /// Ends the walk after the last partial.
    pub(super) fn finish(mut self, lines: &mut QueryLines<'_>) -> Result<()> {
        self.go_to(self.plan.spans.len(), lines)
    }

    /// Finishes all windows before this one.
    fn go_to(&mut self, span: usize, lines: &mut QueryLines<'_>) -> Result<()> {
        while self.span < span {
            if self.merged.is_empty() && self.held.is_none() {
                self.span = span;
                return Ok(());
            }
            self.finish_window(lines)?;
            self.span += 1;
        }
        Ok(())
    }

    fn finish_window(&mut self, lines: &mut QueryLines<'_>) -> Result<()> {
        let plan = self.plan;
        let merged = std::mem::replace(&mut self.merged, Partial::new(plan.keeps));
        let mut area = None;
        if let (Op::TimeWeighted, Some(span)) = (plan.op, plan.spans.get(self.span)) {
            lines.held += 1;
            if lines.held > lines.limits.held {
                return Err(too_much("values carried into windows", lines.limits.held));
            }
            let last = merged.last().map_or(span.start, |(at, _)| at.time);
            let end = span.end.min(self.now.max(last));
            let window = Window { start: span.start, end, opening: self.held };
            if end > span.start || !merged.is_empty() {
                let result = merged.value(plan.op, plan.quantile_milli, Some(window))?;
                area = result.map(|result| result.value);
            }
            self.held = merged.last().map_or(self.held, |(_, value)| Some(value));
        }
        lines.add(self.span, &self.group, &merged.reduced(plan.flat)?, area)
    }
}
