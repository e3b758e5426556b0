//! x
pub mod event;
