//! Blobs as files on a disk that crashes, fails or is full.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use logmill_io::blob::FileBlobs;
use logmill_io::{BlobStore, BlobStoreExt, Error, ErrorKind, Result};
use logmill_sim::{SmallDisk, skip, with_failing_syncs};

use super::{name, names};

#[tokio::test]
async fn what_a_crashed_writer_left_is_never_listed_and_goes_when_it_is_old() {
    let folder = tempfile::tempdir().expect("a folder");
    let (young, old) = (folder.path().join(".put-1"), folder.path().join(".put-2"));
    let foreign = folder.path().join(".lock");
    for path in [&young, &old, &foreign] {
        std::fs::write(path, "half a blo").expect("a file");
    }
    let hours_ago = SystemTime::now() - Duration::from_secs(3 * 3600);
    for path in [&old, &foreign] {
        let file = std::fs::File::options().write(true).open(path).expect("the file");
        file.set_modified(hours_ago).expect("an old file");
    }
    let store = FileBlobs::open(folder.path()).expect("a store");
    assert!(names(&store).await.is_empty());
    assert!(young.exists() && foreign.exists() && !old.exists());
}

#[tokio::test]
async fn a_finished_put_leaves_only_its_blob() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = FileBlobs::open(folder.path()).expect("a store");
    store.put(&name("a"), Bytes::from("1")).await.expect("a put");
    store.put(&name("a"), Bytes::from("2")).await.expect_err("taken");
    let entries: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_created_is_a_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let error = FileBlobs::open(file.join("blobs")).expect_err("a file is no folder");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.chain().starts_with("create the folder "), "{}", error.chain());
}

#[test]
fn a_failed_sync_poisons_the_handle_and_loses_nothing_acknowledged() {
    let this = "blob_stores::disk::a_failed_sync_poisons_the_handle_and_loses_nothing_acknowledged";
    with_failing_syncs(this, fail_every_sync);
}

/// Lets the first sync of a put fail, then the second, and so on until a put needs no more syncs.
#[tokio::main(flavor = "current_thread")]
async fn fail_every_sync(folder: &Path, armed: &Path) {
    let mut acknowledged = Vec::new();
    for succeeding in 0.. {
        let store = FileBlobs::open(folder).expect("a store");
        let before = format!("before/{succeeding}");
        store.put(&name(&before), Bytes::from("safe")).await.expect("nothing fails yet");
        acknowledged.push(before);

        let doomed = name(&format!("doomed/{succeeding}"));
        std::fs::write(armed, succeeding.to_string()).expect("syncs fail from now on");
        let put = store.put(&doomed, Bytes::from("lost?")).await;
        std::fs::remove_file(armed).expect("syncs work again");
        let all_failed = put.is_err();
        if let Err(error) = put {
            assert!(error.chain().starts_with("sync "), "{}", error.chain());
            assert!(matches!(error, Error::File { .. }), "{error:?}");
            everything_is_refused(&store).await;
        }

        let reopened = FileBlobs::open(folder).expect("a new handle");
        for name in &acknowledged {
            let read = reopened.read(&super::name(name)).await.expect("it was acknowledged");
            assert_eq!(read, "safe");
        }
        reopened.put(&doomed, Bytes::from("lost?")).await.expect("it may be tried again");
        if !all_failed {
            assert_eq!(succeeding, 3, "a put syncs the file, its folder and the root");
            return;
        }
    }
}

async fn everything_is_refused(store: &Arc<dyn BlobStore>) {
    let any = name("before/0");
    let outcomes: [Result<()>; 5] = [
        store.put(&any, Bytes::from("safe")).await,
        store.get(&any).await.map(|_| ()),
        store.get_range(&any, 0..1).await.map(|_| ()),
        store.delete(&any).await,
        store.list("", None, 1).await.map(|_| ()),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(Error::Poisoned { .. })), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error_that_loses_nothing_and_passes() {
    let Some(disk) = SmallDisk::mount(1) else {
        return skip("mounting a small disk needs root");
    };
    let store = FileBlobs::open(disk.path()).expect("a store");
    let (small, large) = (Bytes::from("small"), Bytes::from(vec![7; 600 << 10]));
    store.put(&name("a/small"), small.clone()).await.expect("there is space");
    store.put(&name("a/large"), large.clone()).await.expect("there is still space");

    let full = store.put(&name("b/large"), large.clone()).await.expect_err("the disk is full");
    assert!(full.is_disk_full() && full.kind() == ErrorKind::Transient, "{}", full.chain());
    assert!(full.chain().starts_with("write the temporary file "), "{}", full.chain());
    assert_eq!(names(&store).await, ["a/large", "a/small"]);
    assert_eq!(store.read(&name("a/large")).await.expect("as before"), large);
    store.put(&name("b/small"), small).await.expect("what fits is still taken");

    store.delete(&name("a/large")).await.expect("space is freed");
    store.put(&name("b/large"), large.clone()).await.expect("there is space again");
    assert_eq!(names(&store).await, ["a/small", "b/large", "b/small"]);
    assert_eq!(store.read(&name("b/large")).await.expect("written"), large);
}
