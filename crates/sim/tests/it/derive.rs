//! Derived tables against a naive fold over the whole chain: for every processor, on both engines.

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
