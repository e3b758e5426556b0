//! Metering over SQLite in memory, on a clock that tests control.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a panic is how a test fails")]

mod aggregates;
mod chains;
mod clock;
mod cloud;
mod corrections;
mod damage;
mod group_commit;
mod held_values;
mod keys;
mod lists;
mod queries;
mod recording;
mod replaced_blocks;
