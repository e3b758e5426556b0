//! Every kind of blob store passes the conformance suite, which itself rejects stores that lose races; and
//! files keep their promises on a disk that fails or is full.
//!
//! Leaves to others: faults of the wire, which the wrapper of faults plays.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::blob::{FileBlobs, LIST_LIMIT_MAX, MemoryBlobs, S3Blobs, S3Settings, conformance};
use logmill_io::sql::Durability;
use logmill_io::{BlobMeta, BlobName, BlobStore, BlobStoreExt, ErrorKind, OsEntropy, Result};
use tokio::net::TcpListener;

mod disk;

pub(crate) use logmill_sim::moto::Moto;

fn name(name: &str) -> BlobName {
    BlobName::new(name).expect("a fine name")
}

async fn names(store: &Arc<dyn BlobStore>) -> Vec<String> {
    let metas = store.list("", None, LIST_LIMIT_MAX).await.expect("a list");
    metas.into_iter().map(|meta| meta.name.to_string()).collect()
}

async fn conforms(store: &Arc<dyn BlobStore>) {
    if let Err(violation) = conformance::run(store, &OsEntropy).await {
        panic!("{store:?}: {}", violation);
    }
    assert!(names(store).await.is_empty(), "the suite leaves nothing behind");
}

pub(crate) fn settings(endpoint: String) -> S3Settings {
    S3Settings {
        bucket: "logmill-proof".to_owned(),
        endpoint: Some(endpoint),
        region: "us-east-1".to_owned(),
        access_key: "key".to_owned(),
        secret_key: "secret".to_owned(),
        prefix: "tests/blobs/".to_owned(),
        allow_http: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    conforms(&MemoryBlobs::shared()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_conform() {
    let folder = tempfile::tempdir().expect("a folder");
    conforms(&FileBlobs::open(folder.path().join("blobs")).expect("a store")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_handles_on_one_folder_are_one_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || FileBlobs::open_with(folder.path(), Durability::Relaxed).expect("a store");
    let (one, other) = (open(), open());
    one.put(&name("a/b"), Bytes::from("1")).await.expect("first");
    let second = other.put(&name("a/b"), Bytes::from("2")).await.expect_err("taken");
    assert_eq!(second.kind(), ErrorKind::Conflict);
    assert_eq!(other.read(&name("a/b")).await.expect("there"), "1");
}

#[tokio::test]
async fn a_list_is_cut_at_its_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = FileBlobs::open_with(folder.path(), Durability::Relaxed).expect("a store");
    for store in [MemoryBlobs::shared(), files] {
        for number in 0..LIST_LIMIT_MAX + 5 {
            store.put(&name(&format!("{number:05}")), Bytes::new()).await.expect("a put");
        }
        let first = store.list("", None, usize::MAX).await.expect("a list");
        assert_eq!(first.len(), LIST_LIMIT_MAX, "{store:?}");
        let last = first.last().map(|meta| &meta.name);
        assert_eq!(store.list("", last, usize::MAX).await.expect("the rest").len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn moto_conforms() {
    let moto = Moto::start();
    moto.create_bucket("logmill-proof").await;
    conforms(&S3Blobs::connect(settings(moto.endpoint())).expect("a store")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_an_error_and_not_an_empty_store() {
    let moto = Moto::start();
    let store = S3Blobs::connect(settings(moto.endpoint())).expect("a store");
    let (a, bytes) = (name("a"), Bytes::from("1"));
    let outcomes: [Result<()>; 4] = [
        store.put(&a, bytes).await,
        store.get(&a).await.map(|_| ()),
        store.get_range(&a, 0..1).await.map(|_| ()),
        store.list("", None, 1).await.map(|_| ()),
    ];
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let error = outcome.expect_err("there is no bucket");
        assert!(error.chain().contains("NoSuchBucket"), "{number}: {}", error.chain());
    }
}

/// `make proof` starts a real server and names it; see `tools/ceph.sh`.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_of_the_proof_conforms() {
    let Ok(server) = std::env::var("LOGMILL_PROOF_S3") else {
        return logmill_sim::skip("proof: LOGMILL_PROOF_S3 is not set (make proof sets it)");
    };
    let parts: Vec<_> = server.split(',').map(str::to_owned).collect();
    let [endpoint, access_key, secret_key] = &parts[..] else {
        panic!("LOGMILL_PROOF_S3 is endpoint,key,secret");
    };
    let (access_key, secret_key) = (access_key.clone(), secret_key.clone());
    let settings = S3Settings { access_key, secret_key, ..settings(endpoint.clone()) };
    conforms(&S3Blobs::connect(settings).expect("a store")).await;
}

#[test]
fn settings_hide_the_secret_and_refuse_plain_http_and_bad_prefixes() {
    let plain = settings("http://127.0.0.1:1".to_owned());
    assert!(!format!("{plain:?}").contains("secret\""), "{plain:?}");
    S3Blobs::connect(plain.clone()).expect("plain http is allowed");
    let wrong = [
        S3Settings { allow_http: false, ..plain.clone() },
        S3Settings { endpoint: Some("127.0.0.1:1".to_owned()), ..plain.clone() },
        S3Settings { prefix: "a//b".to_owned(), ..plain.clone() },
        S3Settings { prefix: "/a".to_owned(), ..plain },
    ];
    for settings in wrong {
        let error = S3Blobs::connect(settings).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_transient() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = nobody.local_addr().expect("an address");
    drop(nobody);
    let store = S3Blobs::connect(settings(format!("http://{address}"))).expect("a store");
    let error = store.get(&name("a")).await.expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.chain());
}

/// Checks, yields, then writes, like a server whose condition is not part of the write.
struct RacyStore(Arc<dyn BlobStore>);

impl fmt::Debug for RacyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RacyStore")
    }
}

#[async_trait]
impl BlobStore for RacyStore {
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()> {
        if self.0.get(name).await?.is_none() {
            tokio::task::yield_now().await;
            self.0.delete(name).await?;
        }
        self.0.put(name, bytes).await
    }

    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>> {
        self.0.get(name).await
    }

    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>> {
        self.0.get_range(name, range).await
    }

    async fn delete(&self, name: &BlobName) -> Result<()> {
        self.0.delete(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>> {
        self.0.list(prefix, after, limit).await
    }
}

async fn loses_races(store: &Arc<dyn BlobStore>) {
    let violation = conformance::run(store, &OsEntropy).await.expect_err("it loses races");
    assert_eq!(violation.case, "one writer wins each race", "{}", violation);
}

#[tokio::test]
async fn the_suite_rejects_a_store_that_checks_and_then_writes() {
    let racy: Arc<dyn BlobStore> = Arc::new(RacyStore(MemoryBlobs::shared()));
    loses_races(&racy).await;
}

/// A server that answers 412 correctly, unless there is a concurrent writer.
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_rejects_a_server_that_checks_and_then_writes() {
    let moto = Moto::start_racy();
    moto.create_bucket("logmill-proof").await;
    loses_races(&S3Blobs::connect(settings(moto.endpoint())).expect("a store")).await;
}
