//! The log index on databases, files and S3, and on real chain data.

#[path = "../../../finalized-log-index/tests/it/chain.rs"]
mod chain;
#[path = "../../../finalized-log-index/tests/it/fence.rs"]
mod fence;
#[path = "../../../finalized-log-index/tests/it/life.rs"]
mod life;

