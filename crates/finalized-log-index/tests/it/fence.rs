//! A writer that lost its lease and continues cannot publish anything.

use std::collections::BTreeMap;
use std::time::Duration;

use finalized_log_index::{
    B256, FinalizedBlock, GcMode, LogIndex, Resolution, Result, Settings, Stores, Writer,
};
use logmill_io::{ErrorKind, KeyRange};

use super::life::{self, check_answers};

/// Stores that several processes share, with a clock that can be moved.
pub(crate) trait SharedStores {
    /// Opens the stores as a new process would.
    fn open(&self) -> impl Future<Output = Stores>;
    /// Moves the clock of the stores.
    fn advance(&self, by: Duration);
}

/// An operation that an old writer may try.
#[derive(Clone, Copy, Debug)]
enum WriteAttempt {
    Ingest,
    IngestBatch,
    Contradict,
    Seal,
    Merge,
    Maintain,
    Collect,
    Count,
    Prune,
    Keep,
    Rebuild,
    Discard,
    Renew,
}

const TRIES: [WriteAttempt; 13] = [
    WriteAttempt::Ingest,
    WriteAttempt::IngestBatch,
    WriteAttempt::Contradict,
    WriteAttempt::Seal,
    WriteAttempt::Merge,
    WriteAttempt::Maintain,
    WriteAttempt::Collect,
    WriteAttempt::Count,
    WriteAttempt::Prune,
    WriteAttempt::Keep,
    WriteAttempt::Rebuild,
    WriteAttempt::Discard,
    WriteAttempt::Renew,
];

/// Number of blocks that the old and the new writer add.
const OLD: usize = 20;
const NEW: usize = 40;

async fn attempt(writer: &Writer, blocks: &[FinalizedBlock], what: WriteAttempt) -> Result<()> {
    let next = &blocks[OLD];
    match what {
        WriteAttempt::Ingest => drop(writer.ingest_finalized_block(next.clone()).await?),
        WriteAttempt::IngestBatch => {
            drop(writer.ingest_finalized_blocks(&blocks[OLD..OLD + 3]).await?);
        }
        WriteAttempt::Contradict => {
            let foreign = FinalizedBlock { parent_hash: B256::repeat_byte(9), ..next.clone() };
            writer.ingest_finalized_block(foreign).await?;
        }
        WriteAttempt::Seal => drop(writer.seal_next().await?),
        WriteAttempt::Merge => drop(writer.merge_next().await?),
        WriteAttempt::Maintain => drop(writer.maintain().await?),
        WriteAttempt::Collect => drop(writer.collect_garbage(GcMode::Delete).await?),
        WriteAttempt::Count => drop(writer.collect_garbage(GcMode::DryRun).await?),
        WriteAttempt::Prune => drop(writer.prune_below(16).await?),
        WriteAttempt::Keep => writer.resolve(Resolution::Keep).await?,
        WriteAttempt::Rebuild => writer.resolve(Resolution::RebuildFrom(3)).await?,
        WriteAttempt::Discard => {
            let token = writer.index().chunks()[0].token;
            writer.resolve(Resolution::Discard(token)).await?;
        }
        WriteAttempt::Renew => writer.renew().await?,
    }
    Ok(())
}

/// All records and blobs, except what a build attempt leaves for garbage collection: its own record and an unlisted
/// blob.
async fn dump(stores: &Stores, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let attempts = format!("{prefix}/build/");
    for (key, record) in stores.meta.scan(&KeyRange::all(), 10_000).await.expect("it scans") {
        let key = key.to_string();
        if key.contains(prefix) && !key.starts_with(&attempts) {
            all.insert(format!("{key} of {:?}", record.version), record.value.to_vec());
        }
    }
    let settings = Settings { prefix: prefix.to_owned(), ..life::settings() };
    let index = LogIndex::open(stores.clone(), settings).await.expect("it opens");
    let listed: Vec<String> =
        index.chunks().iter().map(|chunk| format!("{:016x}", chunk.token)).collect();
    for blob in stores.blobs.list(prefix, None, 1_000).await.expect("it lists") {
        let bytes = stores.blobs.get(&blob.name).await.expect("it reads").expect("listed");
        if listed.iter().any(|token| blob.name.as_str().ends_with(token.as_str())) {
            all.insert(blob.name.to_string(), bytes.to_vec());
        }
    }
    all
}

/// Replaces a writer, then lets the old one try an operation.
async fn replaced(place: &impl SharedStores, what: WriteAttempt, busy: bool) {
    let blocks = life::blocks();
    let prefix = format!("fence-{what:?}-{busy}");
    let settings = Settings { prefix: prefix.clone(), ..life::settings() };
    let stores = place.open().await;
    let old = LogIndex::open(stores, settings.clone()).await.expect("it opens");
    let old = old.writer("old").await.expect("it is free");
    old.ingest_finalized_blocks(&blocks[..OLD]).await.expect("they follow");
    while old.index().chunks().len() < 3 {
        assert!(old.seal_next().await.expect("it works"), "there is something to seal");
    }
    place.advance(settings.lease_ttl);
    let stores = place.open().await;
    let new = LogIndex::open(stores.clone(), settings).await.expect("it opens");
    let new = new.writer("new").await.expect("the old one's lease is over");
    if busy {
        new.ingest_finalized_blocks(&blocks[OLD..NEW]).await.expect("they follow");
        new.maintain().await.expect("it works");
        new.collect_garbage(GcMode::Delete).await.expect("it works");
    }
    let before = dump(&stores, &prefix).await;
    let error = attempt(&old, &blocks, what).await.expect_err("it is fenced out");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{what:?}: {error:?}");
    assert_eq!(dump(&stores, &prefix).await, before, "{what:?}");
    assert_eq!(old.index().health().degraded, None, "{what:?}: to stand by is not to be degraded");
    // It may continue as a reader.
    old.index().refresh().await.expect("it can be followed");
    check_answers(old.index(), &blocks).await.expect("all is there");
    assert_eq!(old.index().coverage(), new.index().coverage());
    // Garbage collection removes what it left behind.
    place.advance(Duration::from_secs(400));
    new.renew().await.expect("it is held");
    place.advance(Duration::from_secs(400));
    new.collect_garbage(GcMode::Delete).await.expect("it is held");
    let blobs = stores.blobs.list(&prefix, None, 1_000).await.expect("it lists");
    let listed: usize = new.index().chunks().iter().map(|chunk| 1 + chunk.bodies.len()).sum();
    assert_eq!(blobs.len(), listed, "{what:?} left an orphan");
    new.ingest_finalized_blocks(&blocks).await.expect("the new one goes on");
    check_answers(new.index(), &blocks).await.expect("all is there");
}

/// All operations that a fenced writer may try, while the new one is idle or busy.
pub(crate) async fn all_tries(place: &impl SharedStores) {
    for what in TRIES {
        for busy in [false, true] {
            replaced(place, what, busy).await;
        }
    }
}
