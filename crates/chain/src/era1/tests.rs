//! Tests of reading and writing era1 files.

use alloy_primitives::U256;
use bytes::Bytes;
use logmill_io::{ErrorKind, SimClock, Timestamp};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::sim::{Fork, Shape, SimChain};
use crate::source::{BlockSource, ChainSource};
use crate::verify_level::VerifyLevel;

fn chain(fork: Fork, blocks: u64) -> SimChain {
    let chain = SimChain::new(21, Shape::sparse().at(fork));
    chain.grow(blocks);
    chain
}

fn bytes_of(chain: &SimChain) -> (Vec<u8>, String) {
    let mut writer = Writer::new(Vec::new(), U256::ZERO).expect("memory");
    for number in 0..=chain.latest().number {
        writer.push(&chain.block(number).expect("grown")).expect("written");
    }
    let written = writer.finish().expect("written");
    let name = written.name("sim");
    (written.out, name)
}

fn checked(bytes: Vec<u8>) -> Result<CheckedFile> {
    CheckedFile::open(ReadFile::memory("some.era1", Bytes::from(bytes)), None)
}

/// Reads all blocks of a file.
fn read_all(bytes: Vec<u8>) -> Result<Vec<Block>> {
    let file = checked(bytes)?;
    file.read(0..file.last().number + 1).into_iter().collect()
}

fn expect_same(block: &Block, original: &Block) {
    assert_eq!(block.verified, VerifyLevel::Full);
    let mut block = block.clone();
    block.verified = VerifyLevel::Off;
    assert_eq!(block, *original);
}

#[test]
fn blocks_of_every_fork_round_trip() {
    for fork in [Fork::Homestead, Fork::London, Fork::Prague] {
        let chain = chain(fork, 60);
        let blocks = read_all(bytes_of(&chain).0).expect("whole");
        assert_eq!(blocks.len(), 61);
        for block in &blocks {
            expect_same(block, &chain.block(block.at.number).expect("grown"));
        }
    }
}

#[test]
fn batches_cover_a_range_once_and_keep_their_bounds() {
    let file = checked(bytes_of(&chain(Fork::London, 60)).0).expect("whole");
    for (blocks, bytes) in [(1, 1), (7, u64::MAX), (1_000, 5_000), (1_000, u64::MAX)] {
        let batches = file.batches(3..50, blocks, bytes);
        assert_eq!((batches[0].start, batches[batches.len() - 1].end), (3, 50));
        assert!(batches.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(batches.iter().all(|batch| batch.end - batch.start <= blocks));
    }
    assert_eq!(file.batches(5..5, 10, 10), []);
}

#[test]
fn a_writer_refuses_blocks_that_do_not_form_a_file() {
    let chain = chain(Fork::London, 5);
    let block = |number| chain.block(number).expect("grown");
    let mut writer = Writer::new(Vec::new(), U256::ZERO).expect("memory");
    writer.push(&block(1)).expect("the first may have any number");
    assert_eq!(writer.push(&block(3)).expect_err("a gap").kind(), ErrorKind::Invalid);
    assert_eq!(writer.push(&block(1)).expect_err("again").kind(), ErrorKind::Invalid);
    let mut uncle = Block::clone(&block(2));
    uncle.uncles.push(B256::ZERO);
    assert_eq!(writer.push(&uncle).expect_err("uncles").kind(), ErrorKind::Invalid);
    writer.push(&block(2)).expect("the refused ones have left nothing");
    let written = writer.finish().expect("two blocks");
    assert_eq!(written.first, 1);
    let empty = Writer::new(Vec::new(), U256::ZERO).expect("memory");
    assert_eq!(empty.finish().expect_err("no blocks").kind(), ErrorKind::Invalid);
}

#[test]
fn a_file_that_contradicts_its_name_is_corrupt() {
    let (bytes, name) = bytes_of(&chain(Fork::London, 3));
    let file = || ReadFile::memory(&name, Bytes::from(bytes.clone()));
    let right = FileName::parse(Path::new(&name)).expect("named");
    CheckedFile::open(file(), Some(&right)).expect("whole");
    let wrong = FileName::parse(Path::new("sim-00000-00000000.era1")).expect("named");
    let error = CheckedFile::open(file(), Some(&wrong)).expect_err("another accumulator");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&name), "{error}");
}

#[test]
fn file_names_are_parsed_and_invalid_ones_refused() {
    for bad in
        ["mainnet-00000.era1", "mainnet-x-5ec1ffb8.era1", "mainnet-00000-5ec1ff.era1", "a.era1"]
    {
        assert_eq!(FileName::parse(Path::new(bad)), None, "{bad}");
    }
    let name = FileName::parse(Path::new("/x/op-main-00012-5ec1ffb8.era1")).expect("named");
    assert_eq!(name.network, "op-main");
}

#[test]
fn every_cut_of_a_file_is_corrupt() {
    let bytes = bytes_of(&chain(Fork::Prague, 3)).0;
    for length in 0..bytes.len() {
        let error = read_all(bytes[..length].to_vec()).expect_err("cut");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{length}: {error}");
        assert!(error.to_string().contains("some.era1 at byte"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(400)))]

    /// Unless it changes nothing: where bytes repeat, a compressed reference may point to another copy of them.
    #[test]
    fn every_flipped_bit_is_corrupt(place in any::<proptest::sample::Index>(), bit in 0u8..8) {
        let (bytes, _) = small();
        let mut damaged = bytes.clone();
        let at = place.index(bytes.len());
        damaged[at] ^= 1 << bit;
        match read_all(damaged) {
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error),
            Ok(blocks) => {
                let whole = read_all(bytes.clone()).expect("whole");
                prop_assert!(blocks == whole, "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn random_bytes_are_corrupt(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let error = read_all(bytes).expect_err("noise");
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

/// Builds a file of one block with this body, followed by a valid index.
fn with_body(body: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let (original, _) = bytes_of(&SimChain::new(21, Shape::sparse().at(Fork::London)));
    let head_at = |at: usize| {
        let length: [u8; 4] = original[at + 2..at + 6].try_into().expect("four bytes");
        8 + usize::try_from(u32::from_le_bytes(length)).expect("small")
    };
    let body_at = 8 + head_at(8);
    let after = body_at + head_at(body_at);
    let mut frames = snap::write::FrameEncoder::new(Vec::new());
    frames.write_all(body).expect("memory");
    let frames = frames.into_inner().expect("memory");
    let mut bytes = original[..body_at].to_vec();
    bytes.extend(entry::EntryHead { kind: entry::BODY, length: frames.len() }.encode());
    bytes.extend(&frames);
    let index_at = original.len() - 32;
    bytes.extend(&original[after..index_at]);
    let back = 8u64.wrapping_sub(u64::try_from(bytes.len()).expect("small"));
    bytes.extend(&original[index_at..index_at + 16]);
    bytes.extend(back.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes
}

#[test]
fn a_body_that_would_exhaust_memory_is_corrupt() {
    let list = |payload: Vec<u8>| {
        let mut out = Vec::new();
        alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut out);
        out.extend(payload);
        out
    };
    let two = |transactions: Vec<u8>| list([list(transactions), vec![0xc0]].concat());
    assert_eq!(read_all(with_body(&two(Vec::new()))).expect("empty, as it was").len(), 1);
    let error = read_all(with_body(&two(vec![0x80; 200_000]))).expect_err("too many");
    assert!(error.to_string().contains("more than 100000 transactions"), "{error}");
    let error = read_all(with_body(&vec![0; 33 << 20])).expect_err("too large");
    assert!(error.to_string().contains("more than 33554432 bytes"), "{error}");
    // Deeply nested lists: nothing here recurses into them.
    let nested = (0..10_000).fold(vec![0xc0], |inner, _| list(inner));
    let error = read_all(with_body(&nested)).expect_err("no body");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

fn small() -> &'static (Vec<u8>, String) {
    static SMALL: std::sync::OnceLock<(Vec<u8>, String)> = std::sync::OnceLock::new();
    SMALL.get_or_init(|| bytes_of(&chain(Fork::Prague, 4)))
}

async fn folder_of(chain: &SimChain) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = chain.write_era1(folder.path(), "sim").expect("written");
    (folder, paths)
}

#[tokio::test]
async fn a_folder_is_a_source_that_ends() {
    let chain = chain(Fork::London, 300);
    let (folder, paths) = folder_of(&chain).await;
    assert_eq!(paths.len(), 1);
    let settings = Era1Settings::new(folder.path(), 1);
    let era1 = Era1::open_folder(settings).await.expect("a folder of files");
    assert_eq!(era1.ranges(), [Range { start: 0, end: 301 }]);
    let source = Era1Source::new(era1, SimClock::at(Timestamp(0)));
    assert_eq!(source.info().await.expect("known").chain_id, 1);
    let heads = source.heads().await.expect("read");
    assert_eq!((heads.latest, heads.finalized), (chain.latest(), Some(chain.latest())));
    let blocks = source.blocks(100..400).await.expect("read");
    assert_eq!(blocks.len(), 201);
    for block in &blocks {
        expect_same(block, &chain.block(block.at.number).expect("grown"));
    }
    assert!(matches!(source.blocks(301..302).await, Err(Error::NotYet { number: 301 })));
    let by_hash = source.block_by_hash(blocks[7].at.hash).await.expect("read");
    assert_eq!(by_hash.as_ref(), Some(&blocks[7]));
    assert_eq!(source.block_by_hash(B256::ZERO).await.expect("read"), None);
}

#[tokio::test]
async fn files_follow_each_other_and_gaps_are_reported() {
    let tiny = Shape { transactions: 0, logs: 0, ..Shape::sparse().at(Fork::London) };
    let chain = SimChain::new(5, tiny);
    chain.grow(3 * 8_192);
    let (folder, paths) = folder_of(&chain).await;
    assert_eq!(paths.len(), 4);
    let settings = Era1Settings::new(folder.path(), 1);
    let era1 = Era1::open_folder(settings.clone()).await.expect("files");
    let blocks: Vec<_> = era1.blocks(8_180..8_200).collect().await;
    let numbers: Vec<u64> = blocks.iter().flatten().map(|block| block.at.number).collect();
    assert_eq!(numbers, (8_180..8_200).collect::<Vec<u64>>());
    #[expect(clippy::disallowed_methods, reason = "a file is lost behind our back")]
    std::fs::remove_file(&paths[1]).expect("removed");
    let era1 = Era1::open_folder(settings).await.expect("files");
    assert_eq!(era1.ranges(), [0..8_192, 16_384..24_577]);
    let mut blocks: Vec<_> = era1.blocks(8_190..17_000).collect().await;
    assert!(matches!(blocks.pop(), Some(Err(Error::Unavailable { .. }))));
    assert_eq!(blocks.len(), 2);
}

#[tokio::test]
async fn a_folder_with_two_networks_needs_a_network_setting() {
    let folder = tempfile::tempdir().expect("a folder");
    chain(Fork::London, 3).write_era1(folder.path(), "one").expect("written");
    chain(Fork::Homestead, 3).write_era1(folder.path(), "two").expect("written");
    let mut settings = Era1Settings::new(folder.path(), 1);
    let error = Era1::open_folder(settings.clone()).await.expect_err("two networks");
    assert!(error.to_string().contains("different networks"), "{error}");
    settings.network = Some("two".to_owned());
    let era1 = Era1::open_folder(settings.clone()).await.expect("one network");
    assert_eq!(era1.last().await.expect("read"), chain(Fork::Homestead, 3).latest());
    settings.network = Some("three".to_owned());
    assert_eq!(Era1::open_folder(settings).await.expect_err("none").kind(), ErrorKind::Invalid);
}
