//! Chains: history files that others wrote, and nodes behind sockets.

mod era1;
mod node;
