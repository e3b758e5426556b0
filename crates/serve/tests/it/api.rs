//! The read API over a derived chain: answers compared with a scan of the blocks, the OpenAPI document, plans and
//! errors.

mod bounds;
mod derived_server;
mod details;
mod errors;
mod moments;
mod openapi;
mod pages;
mod plans;
mod reconciliation;
mod sample_chain;
pub(super) mod schema;
