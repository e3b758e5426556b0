//! The read API over a derived chain: its answers against a scan of the blocks, its document, plans and errors.

mod bounds;
mod details;
mod errors;
mod moments;
mod openapi;
mod pages;
mod plans;
mod rich;
pub(super) mod schema;
mod world;
