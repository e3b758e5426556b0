//! Tests of the names of async workers.

use super::*;

#[test]
fn no_async_worker_is_a_processor_of_blocks() {
    let workers = [contract_code::NAME, nft_items::NAME, reconcile::NAME, token_metadata::NAME];
    let processors = crate::processors::all(&crate::processors::Settings::of_chain(1));
    let both: Vec<_> = processors.iter().filter(|one| workers.contains(&one.name())).collect();
    assert!(both.is_empty(), "{both:?}");
}
