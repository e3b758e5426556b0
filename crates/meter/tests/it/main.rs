//! Metering over SQLite in memory, on a clock that tests move.

mod aggregates;
mod corrections;
mod fixture;
mod recording;
