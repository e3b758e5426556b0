//! Damaged places that are checked again: in the store, not in a cache, and by each process for itself.

use bytes::Bytes;
use finalized_log_index::{DamageLocation, Filter, LogIndex, Recheck, Stores};
use logmill_io::{BlobName, Condition, KeyRange};
use proptest::prelude::*;

use crate::degraded::reader;
use crate::fixture::MemoryStores;
use crate::life::{self, check_answers, write};

/// The only place that a process has noted as damaged.
fn noted(index: &LogIndex) -> DamageLocation {
    let noted = index.noted_damage();
    let [(place, _)] = &noted[..] else { panic!("one place: {noted:?}") };
    *place
}

async fn replace(stores: &Stores, name: &BlobName, bytes: Bytes) {
    stores.blobs.delete(name).await.expect("it works");
    stores.blobs.put(name, bytes).await.expect("it works");
}

/// Flips every byte of a blob after its beginning; returns its name and its bytes as they were.
async fn damage(stores: &Stores, token: u64, is_bodies: bool) -> (BlobName, Bytes) {
    let blobs = stores.blobs.list("", None, 1_000).await.expect("it lists");
    let is_it = |name: &str| {
        name.ends_with(&format!("{token:016x}")) && name.contains("bodies") == is_bodies
    };
    let blob = blobs.into_iter().find(|blob| is_it(blob.name.as_str())).expect("it is there");
    let bytes = stores.blobs.get(&blob.name).await.expect("it reads").expect("listed");
    let damaged: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x55).collect();
    replace(stores, &blob.name, damaged.into()).await;
    (blob.name, bytes)
}

#[tokio::test(start_paused = true)]
async fn damage_in_the_store_is_confirmed_by_a_process_that_has_the_bytes_cached() {
    for is_bodies in [false, true] {
        let memory = MemoryStores::new(1);
        let (stores, blocks) = (&memory.stores, life::blocks());
        let writer = write(stores).await.expect("it opens");
        writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
        writer.maintain().await.expect("it works");
        let index = writer.index();
        check_answers(index, &blocks[..50]).await.expect("all is there, and cached");
        let chunk = index.chunks()[1].clone();
        let token = if is_bodies { chunk.bodies[0].token } else { chunk.token };
        let (name, bytes) = damage(stores, token, is_bodies).await;
        let follower = reader(stores).await;
        let number = chunk.blocks.start;
        match is_bodies {
            false => drop(follower.query_finalized(&Filter::range(number..=number)).await),
            true => drop(follower.body(number).await),
        }
        let place = noted(&follower);
        assert_eq!(place.to_string().parse::<DamageLocation>().expect("it is one"), place);
        assert_eq!(index.noted_damage(), [], "the writer has not met it");
        for index in [&follower, index] {
            let found = index.recheck(place).await.expect("it reads");
            assert!(matches!(&found, Recheck::Damaged(found) if found.blocks == chunk.blocks));
            assert_eq!(noted(index), place, "noted once");
        }
        // The bytes are right again: the process that read the wrong ones forgets them.
        replace(stores, &name, bytes).await;
        for index in [&follower, index] {
            assert!(index.health().degraded.is_some());
            assert_eq!(index.recheck(place).await.expect("it reads"), Recheck::Intact);
            assert_eq!((index.health().degraded, index.noted_damage()), (None, Vec::new()));
            check_answers(index, &blocks[..50]).await.expect("no damaged part is cached");
        }
        writer.ingest_finalized_blocks(&blocks[50..52]).await.expect("writes go on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_in_the_tail_is_checked_until_it_is_sealed() {
    let memory = MemoryStores::new(2);
    let (stores, blocks) = (&memory.stores, life::blocks());
    let writer = write(stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let follower = reader(stores).await;
    let bodies = stores.meta.scan(&KeyRange::prefix("logindex/body/"), 1_000).await;
    let bodies = bodies.expect("it scans");
    let (key, record) = bodies.last().expect("the tail has bodies");
    let mut damaged = record.value.to_vec();
    damaged[3] ^= 1;
    let put = |value: Vec<u8>| {
        let batch = logmill_io::Batch::new().put(key.clone(), value, Condition::Any);
        stores.meta.commit(batch)
    };
    put(damaged).await.expect("it works");
    follower.body(49).await.expect_err("it is damaged");
    let place = noted(&follower);
    let found = writer.index().recheck(place).await.expect("it reads");
    assert!(matches!(&found, Recheck::Damaged(found) if found.blocks == (49..50)), "{found:?}");
    put(record.value.to_vec()).await.expect("it works");
    for index in [&follower, writer.index()] {
        assert_eq!(index.recheck(place).await.expect("it reads"), Recheck::Intact);
        assert_eq!(index.health().degraded, None);
    }
    writer.ingest_finalized_blocks(&blocks[50..]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    if writer.index().health().tail_start.expect("there is one") > 49 {
        assert_eq!(writer.index().recheck(place).await.expect("it looks"), Recheck::Gone);
    }
}

#[tokio::test(start_paused = true)]
async fn places_that_hold_nothing_are_gone_and_other_texts_name_none() {
    let memory = MemoryStores::new(3);
    let (stores, blocks) = (&memory.stores, life::blocks());
    let writer = write(stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let places = ["chunk-7", "bodies-7-0", "tail-63-0-0", "unknown"];
    for place in places.map(|text| text.parse::<DamageLocation>().expect("a place")) {
        assert_eq!(writer.index().recheck(place).await.expect("it looks"), Recheck::Gone);
    }
    for text in ["", "chunk", "chunk-x", "chunk-1-2", "tail-1-2", "bodies-1", "unknown-1"] {
        assert!(text.parse::<DamageLocation>().is_err(), "{text}");
    }
    assert_eq!(writer.index().health().degraded, None);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_page_is_placed_by_every_kind_of_lookup_and_read_again_once_it_is_restored() {
    let memory = MemoryStores::new(4);
    let (stores, blocks) = (&memory.stores, life::blocks());
    let writer = write(stores).await.expect("it opens");
    writer.ingest_finalized_blocks(&blocks[..50]).await.expect("they follow");
    writer.maintain().await.expect("it works");
    let chunk = writer.index().chunks()[1].clone();
    let blobs = stores.blobs.list("", None, 1_000).await.expect("it lists");
    let token = format!("{:016x}", chunk.token);
    let is_it = |name: &str| name.ends_with(&token) && !name.contains("bodies");
    let name = &blobs.iter().find(|blob| is_it(blob.name.as_str())).expect("it is there").name;
    let bytes = stores.blobs.get(name).await.expect("it reads").expect("listed");
    // Pages are at the beginning; everything else stays as it is.
    let mut damaged = bytes.to_vec();
    damaged[8..40].iter_mut().for_each(|byte| *byte ^= 0x55);
    let of_chunk = |block: &&finalized_log_index::FinalizedBlock| {
        chunk.blocks.contains(&block.number) && !block.logs.is_empty()
    };
    let block = blocks.iter().find(of_chunk).expect("it has logs");
    let (number, transaction) = (block.number, block.logs[0].transaction_hash);
    for is_by_transaction in [false, true] {
        replace(stores, name, damaged.clone().into()).await;
        let index = reader(stores).await;
        let read = async || match is_by_transaction {
            true => index.logs_of_transaction(&transaction).await.map(|logs| logs.len()),
            false => {
                let page = index.query_finalized(&Filter::range(number..=number)).await;
                page.map(|page| page.logs.len())
            }
        };
        read().await.expect_err("the page is damaged");
        assert_eq!(noted(&index), DamageLocation::Chunk(chunk.token), "{is_by_transaction}");
        let degraded = index.health().degraded.expect("it is noted");
        assert_eq!(degraded.damaged[0].blocks, chunk.blocks, "{is_by_transaction}");
        replace(stores, name, bytes.clone()).await;
        assert!(read().await.expect("it is right again") > 0);
    }
}

proptest! {
    #[test]
    fn the_text_of_a_place_names_it((kind, one, two, three) in any::<(u8, u64, u64, u64)>()) {
        let place = match kind % 4 {
            0 => DamageLocation::Chunk(one),
            1 => DamageLocation::Bodies { token: one, start: two },
            2 => DamageLocation::Tail { generation: one, replacements: two, number: three },
            _ => DamageLocation::Unknown,
        };
        prop_assert_eq!(place.to_string().parse::<DamageLocation>().expect("a place"), place);
    }
}
