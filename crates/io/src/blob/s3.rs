//! Blobs in a bucket of S3 or a compatible store.
//!
//! The blob `n` is the object `<prefix>/n`, or `n` without a prefix. A put is one request with `If-None-Match:
//! *`, regardless of size: a multipart upload could not carry the condition, and one request may have 5 GiB,
//! five times our largest blob.
//!
//! Guarantees: those of the trait, provided that the server publishes objects atomically, lets exactly one
//! conditional put win, and lists in byte order (checked here). [`super::conformance`] tests whether a server
//! does. A request whose answer was lost is retried, which is safe: if the first request was processed, the
//! second finds its own bytes.
//!
//! Leaves to others: creating the bucket, and keeping other objects out of the prefix.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, RetryConfig,
};

use super::{
    BlobMeta, BlobName, BlobStore, LIST_LIMIT_MAX, beyond_the_end, taken, validate_put,
    validate_range,
};
use crate::error::{Error, Result, error_chain};

/// Maximum retries of one request.
const RETRIES_MAX: usize = 5;
/// Time after the first try during which a request may be retried.
const RETRY_WINDOW: Duration = Duration::from_secs(30);
/// Delay before the first retry; it doubles up to `RETRY_WAIT_LAST`.
const RETRY_WAIT_FIRST: Duration = Duration::from_millis(50);
const RETRY_WAIT_LAST: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Enough for the largest blob at 2 MB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a put restarts because the existing object was deleted before it could be compared, or was still
/// being written.
const PUT_ATTEMPTS_MAX: u32 = 8;
/// Delay before the second attempt of a put; it doubles with each.
const PUT_WAIT_FIRST: Duration = Duration::from_millis(10);
/// Maximum pages of one list; more than one is needed only if the prefix contains foreign objects.
const LIST_PAGES_MAX: usize = 1_000;

#[derive(Clone)]
pub struct S3Settings {
    /// Must exist.
    pub bucket: String,
    /// URL of the server, such as `https://s3.example.com`; `None` for Amazon.
    pub endpoint: Option<String>,
    /// Region for which requests are signed.
    pub region: String,
    pub access_key: String,
    pub secret_key: String,
    /// Folder of the bucket that we use; empty for the whole bucket.
    pub prefix: String,
    /// Whether the endpoint may be plain `http`, which exposes the blobs to everyone on the network path.
    pub allow_http: bool,
}

impl fmt::Debug for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Settings")
            .field("bucket", &self.bucket)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("access_key", &self.access_key)
            .field("secret_key", &"***")
            .field("prefix", &self.prefix)
            .field("allow_http", &self.allow_http)
            .finish()
    }
}

impl S3Settings {
    /// Prefix of every key: empty, or a folder with its slash.
    fn key_prefix(&self) -> Result<String> {
        match self.prefix.trim_end_matches('/') {
            "" => Ok(String::new()),
            folder => Ok(format!("{}/", BlobName::new(folder)?)),
        }
    }

    fn validate_endpoint(&self) -> Result<()> {
        let Some(endpoint) = &self.endpoint else {
            return Ok(());
        };
        if endpoint.starts_with("https://") || endpoint.starts_with("http://") && self.allow_http {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the S3 endpoint {endpoint:?} must start with https://, or with http:// if that is allowed"
        )))
    }
}

pub struct S3Blobs {
    bucket: String,
    key_prefix: String,
    store: AmazonS3,
}

impl S3Blobs {
    /// Creates a client for the bucket; sends no request yet.
    pub fn connect(settings: S3Settings) -> Result<Arc<dyn BlobStore>> {
        settings.validate_endpoint()?;
        let key_prefix = settings.key_prefix()?;
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&settings.bucket)
            .with_region(settings.region)
            .with_access_key_id(settings.access_key)
            .with_secret_access_key(settings.secret_key)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retries())
            .with_client_options(
                ClientOptions::new()
                    .with_allow_http(settings.allow_http)
                    .with_connect_timeout(CONNECT_TIMEOUT)
                    .with_timeout(REQUEST_TIMEOUT),
            );
        if let Some(endpoint) = settings.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let store = builder.build().map_err(at("open the bucket", &settings.bucket))?;
        Ok(Arc::new(Self { bucket: settings.bucket, key_prefix, store }))
    }

    fn key(&self, name: &BlobName) -> Path {
        Path::from(format!("{}{name}", self.key_prefix))
    }

    async fn head(&self, name: &BlobName) -> Result<Option<ObjectMeta>> {
        let head = self.store.head(&self.key(name)).await;
        unless_missing(head).map_err(at("read the metadata of", name))
    }

    async fn find(&self, name: &BlobName) -> Result<Option<GetResult>> {
        let found = self.store.get(&self.key(name)).await;
        unless_missing(found).map_err(at("get", name))
    }

    /// Whether the object has exactly these bytes; `None` if it does not exist.
    async fn holds(&self, name: &BlobName, bytes: &Bytes) -> Result<Option<bool>> {
        match self.find(name).await? {
            None => Ok(None),
            Some(found) if found.meta.size != bytes.len() as u64 => Ok(Some(false)),
            Some(found) => Ok(Some(found.bytes().await.map_err(at("get", name))? == *bytes)),
        }
    }

    /// The error for a range that the server refused; servers report a range beyond the end in many ways.
    async fn refused_range(
        &self,
        name: &BlobName,
        range: &Range<u64>,
        refusal: object_store::Error,
    ) -> Error {
        match self.head(name).await {
            Ok(Some(meta)) if range.end > meta.size => beyond_the_end(name, range, meta.size),
            _ => at("read a range of", name)(refusal),
        }
    }

    /// Reads pages until it has `limit` of our names, or there are no more.
    async fn list_ours(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>> {
        let mut options = PaginatedListOptions {
            offset: after.map(|after| self.key(after).into()),
            max_keys: Some(limit),
            ..PaginatedListOptions::default()
        };
        let mut found = Vec::new();
        for _ in 0..LIST_PAGES_MAX {
            let page = self.store.list_paginated(Some(prefix), options.clone()).await;
            let page = page.map_err(at("list", prefix))?;
            let ours = page.result.objects.iter().filter_map(|object| {
                Some(BlobMeta { name: self.name(object)?, bytes: object.size })
            });
            found.extend(ours);
            options.page_token = page.page_token;
            if found.len() >= limit || options.page_token.is_none() {
                return Ok(found);
            }
        }
        Err(Error::invalid(format!(
            "the bucket {} holds too many foreign objects under {prefix:?}: give Logmill its own prefix",
            self.bucket
        )))
    }

    /// The blob name of an object; `None` if it is not ours.
    fn name(&self, object: &ObjectMeta) -> Option<BlobName> {
        let name = object.location.as_ref().strip_prefix(&self.key_prefix)?;
        BlobName::new(name).ok()
    }
}

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: RETRY_WAIT_FIRST,
            max_backoff: RETRY_WAIT_LAST,
            base: 2.0,
        },
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_WINDOW,
    }
}

impl fmt::Debug for S3Blobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Blobs({}/{})", self.bucket, self.key_prefix)
    }
}

#[async_trait]
impl BlobStore for S3Blobs {
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()> {
        use object_store::Error::{AlreadyExists, Precondition};
        validate_put(name, &bytes)?;
        let key = self.key(name);
        for attempt in 0..PUT_ATTEMPTS_MAX {
            let put = self.store.put_opts(&key, bytes.clone().into(), PutMode::Create.into()).await;
            match put {
                // Amazon also answers this while another put or a delete is in progress.
                Err(AlreadyExists { .. } | Precondition { .. }) => {}
                put => return put.map(|_| ()).map_err(at("put", name)),
            }
            match self.holds(name, &bytes).await? {
                Some(true) => return Ok(()),
                Some(false) => return Err(taken(name)),
                None => tokio::time::sleep(PUT_WAIT_FIRST * 2_u32.pow(attempt)).await,
            }
        }
        Err(Error::Conflict { what: format!("the blob {name}") })
    }

    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>> {
        match self.find(name).await? {
            None => Ok(None),
            Some(found) => found.bytes().await.map(Some).map_err(at("get", name)),
        }
    }

    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>> {
        if validate_range(name, &range)? == 0 {
            // HTTP has no empty range.
            return match self.head(name).await? {
                Some(meta) if range.end > meta.size => Err(beyond_the_end(name, &range, meta.size)),
                found => Ok(found.map(|_| Bytes::new())),
            };
        }
        let options =
            GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        match unless_missing(self.store.get_opts(&self.key(name), options).await) {
            Ok(None) => Ok(None),
            Ok(Some(found)) if found.range != range => {
                Err(beyond_the_end(name, &range, found.meta.size))
            }
            Ok(Some(found)) => found.bytes().await.map(Some).map_err(at("read a range of", name)),
            Err(refusal) => Err(self.refused_range(name, &range, refusal).await),
        }
    }

    async fn delete(&self, name: &BlobName) -> Result<()> {
        let deleted = self.store.delete(&self.key(name)).await;
        unless_missing(deleted).map(|_| ()).map_err(at("delete", name))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>> {
        let limit = limit.min(LIST_LIMIT_MAX);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let prefix = format!("{}{prefix}", self.key_prefix);
        let mut found = self.list_ours(&prefix, after, limit).await?;
        found.truncate(limit);
        let before = after.into_iter().chain(found.iter().map(|meta| &meta.name));
        if before.is_sorted_by(|a, b| a < b) {
            return Ok(found);
        }
        Err(Error::corrupt(format!("the bucket {} lists {prefix} out of order", self.bucket)))
    }
}

fn unless_missing<T>(outcome: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match outcome {
        Err(object_store::Error::NotFound { source, .. }) if !names_the_bucket(&*source) => {
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// Whether the bucket is missing: the status is the same as for a missing object, and a mistyped bucket must
/// not look like an empty one.
fn names_the_bucket(error: &dyn std::error::Error) -> bool {
    error_chain(error).contains("NoSuchBucket")
}

fn at(doing: &'static str, name: impl fmt::Display) -> impl FnOnce(object_store::Error) -> Error {
    let name = name.to_string();
    move |source| Error::Object { doing, name, source }
}
