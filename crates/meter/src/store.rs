//! What is stored of usage: one module for each group of tables, with its SQL.
//!
//! | module | tables and blobs |
//! |---|---|
//! | `schema` | all tables, with what each holds |
//! | `head` | `meter_head`: the row that every change of usage locks first |
//! | `names`, `series` | `meter_customer`, `meter_series`: checked rows, and the numbers behind names |
//! | `keys` | `meter_keys` and its blobs: which (source, id) pairs were seen |
//! | `stored_event`, `checksum` | `meter_event` and the checksums of its rows |
//! | `place`, `place_index` | `meter_place`, `meter_unplaced`: which events belong to which partial |
//! | `archive` | `meter_archive` and its blobs: old events |
//! | `partials` | `meter_partial`, `meter_partial_recent`, `meter_touched` |
//! | `chain_state` | `meter_chain`, `meter_chain_state` |
//! | `requests` | `meter_request`: outcomes of repeatable requests |
//!
//! Guarantees: nothing here knows the [`crate::Meter`]; callers pass the database, and hold the head's lock where a
//! function takes a [`head::Head`]. Leaves to others: what to write, and when.

pub(crate) mod archive;
pub(crate) mod chain_state;
pub(crate) mod checksum;
pub(crate) mod head;
pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod partials;
pub(crate) mod place;
pub(crate) mod place_index;
pub mod requests;
pub(crate) mod schema;
pub(crate) mod series;
pub mod stored_event;
