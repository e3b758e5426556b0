//! Derived tables against a naive fold over the whole chain: for every processor, on both engines.

#[path = "../../../pipeline/tests/it/world.rs"]
#[allow(
    dead_code,
    clippy::single_range_in_vec_init,
    reason = "shared with the tests of the pipeline"
)]
mod chain_world;
mod crashes;
mod extra_transactions;
mod generations;
mod life;
mod live;
mod model;
mod naive;
mod probe;
mod ranges;
mod replacements;
mod views;
