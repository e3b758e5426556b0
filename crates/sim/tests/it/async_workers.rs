//! Async workers and observations: hostile contracts, nodes and servers, on both engines.

mod code;
mod crashes;
mod fixture;
mod items;
mod ranges;
mod reconcile;
mod tokens;
mod web;
