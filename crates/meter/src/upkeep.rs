//! Upkeep: what operators and schedules do to recorded usage.
//!
//! - [`correct`]: cancels or amends an event; [`recount`]: recomputes everything from events.
//! - [`audit`]: checks that stored usage is what was written; [`mend`]: restores or removes damaged events.
//! - [`service`]: sweeps and housekeeping, on schedule.
//!
//! Leaves to others: authorization, and showing what was found.

pub mod audit;
pub mod correct;
pub mod mend;
pub mod recount;
pub mod service;
