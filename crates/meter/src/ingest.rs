//! Usage comes in: each event is recorded once, and recorded events are changed only with a note.
//!
//! - [`record`]: the protocol; `new_events`: what it writes; [`recorder`]: many requests in one transaction.
//! - `valid_times`: times at which nothing can be recorded; [`sources`]: the source of each API key.
//! - `corrections`: changes of recorded events.
//!
//! Leaves to others: checking events ([`crate::event`]), and what follows from usage ([`crate::aggregate`]).

pub(crate) mod corrections;
pub(crate) mod new_events;
pub mod record;
pub(crate) mod recorder;
pub mod sources;
pub(crate) mod valid_times;
