//! `nft_item_metadata_worker`: fetches the metadata of NFT items.
//!
//! ```text
//!   range ── items of its transfers ──▶ a job each ──▶ tokenURI / uri ──▶ document ──▶ row
//!                                                        (a node)         (the web)
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`uri`] | location of a metadata document |
//! | `document` | parsing of a document |
//! | `rows` | the table `nft_items` |
//!
//! Guarantees: the answers of contracts and servers are stored as observations before they become rows, so
//! [`NftItems::rebuild`] makes the same rows without a node and without the web. Servers named by a contract are only
//! reached through the guarded client, and images are never fetched. A failure is stored with the row and retried at
//! growing intervals; after too many attempts the job is a dead letter. Leaves to others: documents that change after
//! they were read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::wire::{GuardedClient, Limits};
use logmill_io::{Sql, Timestamp, params};
use logmill_work::{
    Backoff, Failure, Handler, Heights, NewJob, Outcome, Retry, Runner, RunnerSettings, RunningJob,
};
use serde::{Deserialize, Serialize};

use super::RangeWork;
use super::derived;
use crate::derive::rows::amount;
use crate::derive::store::chain_param;
use crate::derive::{Reader, Table, Tables};
use crate::error::Result;
use crate::observe::plain::{NAME_CHARS_MAX, plain};
use crate::observe::{
    AnswerStatus, Call, LIST_MAX, Observation, Observations, Question, StateAnswer, StateReader,
    VALUE_BYTES_MAX, answer, height,
};
use crate::processors::token::NFT_TRANSFERS;
use rows::{ItemRow, ItemTable};
use uri::{DocumentLocation, Gateways};

mod document;
mod rows;
pub mod uri;

pub const NAME: &str = "nft_item_metadata_worker";
/// Kind of observations of document URIs; the subject is a contract (20 bytes) and an item (32 bytes).
pub(crate) const NFT_URI: &str = "nft_uri";
/// Kind of observations of documents, with the same subjects.
pub(crate) const NFT_DOCUMENT: &str = "nft_document";

pub(super) const TOKEN_URI: [u8; 4] = [0xc8, 0x7b, 0x56, 0xdd];
pub(super) const URI: [u8; 4] = [0x0e, 0x89, 0x34, 0x1c];
/// Items per page.
const PAGE: usize = 1_000;
const ACCEPT: &str = "application/json, */*;q=0.1";

pub fn item_kind(chain_id: u64) -> String {
    format!("nft_item_metadata-{chain_id}")
}

#[derive(Clone, Debug)]
pub struct ItemSettings {
    /// Gateways to content-addressed networks.
    pub gateways: Gateways,
    /// Maximum time to fetch a document.
    pub timeout: Duration,
    /// Attempts of an item before it is a dead letter.
    pub attempts: u32,
    /// Items that this process fetches concurrently.
    pub slots: usize,
    pub backoff: Backoff,
}

impl Default for ItemSettings {
    fn default() -> Self {
        Self {
            gateways: Gateways::default(),
            timeout: Duration::from_secs(30),
            attempts: 20,
            slots: 4,
            backoff: Backoff::Exponential {
                first: Duration::from_secs(60),
                max: Duration::from_secs(86_400),
                jitter_percent: 20,
            },
        }
    }
}

/// HTTP clients that fetch documents.
#[derive(Clone, Debug)]
pub struct Clients {
    /// For servers named by contracts.
    pub web: GuardedClient,
    /// For gateways, which the operator names and which may use addresses that are forbidden for `web`.
    pub gateways: GuardedClient,
}

/// An NFT, as its job names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub contract: Address,
    pub id: U256,
    /// 721 or 1155.
    pub standard: u64,
    /// A block with a transfer of it: before that it may not exist.
    #[serde(default)]
    pub seen: u64,
}

impl Item {
    fn id_word(&self) -> B256 {
        B256::from(self.id)
    }

    fn question(&self, kind: &'static str) -> Question {
        Question::new(kind, &[self.contract.as_slice(), self.id_word().as_slice()])
    }

    fn of_subject(subject: &[u8]) -> Option<(Address, U256)> {
        let (contract, id) = subject.split_at_checked(20)?;
        Some((Address::from_slice(contract), U256::from_be_bytes::<32>(id.try_into().ok()?)))
    }

    fn call(&self) -> Call {
        let selector = if self.standard == 1155 { URI } else { TOKEN_URI };
        Call::new(self.contract, selector, &[self.id_word()])
    }
}

/// A failure after which an item is retried.
#[derive(Debug)]
struct FetchFailure {
    why: String,
    after: Option<Duration>,
}

impl FetchFailure {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self { why: logmill_io::error_chain(error), after: None }
    }
}

/// What the observations of an item allow.
enum ItemProgress {
    /// The row can be built.
    Complete(ItemRow),
    /// The document must be fetched first.
    NeedsDocument { uri: String, location: DocumentLocation },
}

#[derive(Clone)]
pub struct NftItems {
    reader: Reader,
    observations: Observations,
    state: StateReader,
    clients: Clients,
    settings: ItemSettings,
    rows: ItemTable,
}

impl NftItems {
    /// Creates its tables if they do not exist.
    pub async fn open(
        tables: Tables,
        chain_id: u64,
        state: StateReader,
        clients: Clients,
        settings: ItemSettings,
    ) -> Result<Self> {
        let sql = tables.sql().clone();
        let rows = ItemTable::open(sql.clone(), chain_id).await?;
        let observations = Observations::open(sql, chain_id).await?;
        let reader = Reader::new(tables, chain_id);
        Ok(Self { reader, observations, state, clients, settings, rows })
    }

    fn sql(&self) -> &Sql {
        self.reader.tables().sql()
    }

    /// The runner of item jobs. `owner` must be unique for every run of every process.
    pub fn runner(&self, owner: &str) -> Result<Runner> {
        let kind = item_kind(self.reader.chain_id());
        let settings = RunnerSettings {
            // The timeouts of a document and of a node, with a margin.
            lease: self.settings.timeout * 2 + Duration::from_secs(60),
            backoff: self.settings.backoff.clone(),
            stop_deadline: Duration::ZERO,
            ..RunnerSettings::new(&kind, owner, self.settings.slots.max(1))
        };
        let queue = self.reader.tables().queue().clone();
        Ok(Runner::new(queue, Arc::new(self.clone()), settings)?)
    }

    /// Items transferred in a range that have no row, after the given one.
    async fn unknown(&self, range: &Heights, after: Option<&Item>) -> Result<Vec<Item>> {
        let text = |name: &dyn Fn(&'static Table) -> String| {
            let transfers = name(&NFT_TRANSFERS);
            format!(
                "SELECT a.address, t.token_id, max(t.standard), min(t.block_height) FROM {transfers} AS t
                 JOIN address AS a ON a.id = t.contract_address
                 WHERE t.block_height >= $1 AND t.block_height < $2
                     AND (a.address, t.token_id) > ($4, $5)
                     AND NOT EXISTS (SELECT 1 FROM nft_items AS i WHERE i.chain_id = $3
                         AND i.contract_address = a.address AND i.nft_id = t.token_id)
                 GROUP BY a.address, t.token_id ORDER BY a.address, t.token_id LIMIT {PAGE}"
            )
        };
        let (contract, id) = match after {
            Some(item) => (item.contract.to_vec(), amount(item.id)),
            None => (Vec::new(), amount(U256::ZERO)),
        };
        let chain = chain_param(self.reader.chain_id())?;
        let params = params![height(range.start)?, height(range.end)?, chain, contract, id];
        let found = self.reader.query_final(text, params).await?;
        let item = |row: &logmill_io::Row| {
            let (contract, id) = (derived::address(row, 0)?, derived::number(row, 1)?);
            Ok(Item { contract, id, standard: row.count(2)?, seen: row.count(3)? })
        };
        found.rows.iter().map(item).collect()
    }

    fn job(&self, item: &Item) -> Result<NewJob> {
        let payload = serde_json::to_string(item)
            .map_err(|error| crate::Error::Invalid { what: error.to_string() })?;
        let key = format!("{:#x}/{:#x}", item.contract, item.id);
        let kind = item_kind(self.reader.chain_id());
        Ok(NewJob { attempts_max: self.settings.attempts, ..NewJob::new(kind, key, payload) })
    }

    /// The document URI that the contract returns.
    async fn uri(&self, item: &Item) -> Result<StateAnswer> {
        let question = item.question(NFT_URI);
        if let Some(found) = self.observations.latest(&question, u64::MAX).await? {
            return Ok(as_answer(found));
        }
        let block = self.state.final_block(item.seen).await?;
        let answer = self.state.call(&item.call(), block).await?;
        self.observations.put_in(self.sql(), &question, &answer).await?;
        Ok(answer)
    }

    /// Builds the row of an item; also returns the document if it was fetched, to be stored.
    async fn learn(
        &self,
        item: &Item,
        attempt: i64,
    ) -> Result<(ItemRow, Option<StateAnswer>), FetchFailure> {
        let uri_answer = self.uri(item).await.map_err(|error| FetchFailure::of(&error))?;
        let question = item.question(NFT_DOCUMENT);
        let kept = self.observations.latest(&question, u64::MAX).await;
        let kept = kept.map_err(|error| FetchFailure::of(&error))?.map(as_answer);
        let (uri, location) = match self.item_progress(item.id, &uri_answer, kept.as_ref()) {
            ItemProgress::Complete(row) => return Ok((row, None)),
            ItemProgress::NeedsDocument { uri, location } => (uri, location),
        };
        let (status, value) = self.fetch(&location, attempt).await?;
        let document = StateAnswer { block: uri_answer.block, status, value };
        let row = ItemRow::of_document(&uri, &document);
        Ok((row, Some(document)))
    }

    /// Derives the row of an item from its observations, or the location of the missing document.
    fn item_progress(
        &self,
        id: U256,
        uri: &StateAnswer,
        document: Option<&StateAnswer>,
    ) -> ItemProgress {
        let text = match uri.status {
            AnswerStatus::Ok => answer::text(&uri.value).ok_or("the contract returns no text"),
            AnswerStatus::Reverted => Err("the contract reverts"),
            AnswerStatus::Empty => Err("the contract returns nothing"),
            AnswerStatus::TooLarge => Err("the contract returns too much data"),
        };
        let text = match text {
            Ok(text) => uri::with_id(&String::from_utf8_lossy(text), id).into_owned(),
            Err(why) => return ItemProgress::Complete(ItemRow::of_error("", uri.block, why)),
        };
        let location = uri::locate(&text, &self.settings.gateways);
        match (location, document) {
            (DocumentLocation::Inline(bytes), _) => {
                ItemProgress::Complete(ItemRow::of_bytes(&text, uri.block, &bytes))
            }
            // Even if the location is no longer supported.
            (_, Some(document)) => ItemProgress::Complete(ItemRow::of_document(&text, document)),
            (DocumentLocation::Unusable(why), _) => {
                ItemProgress::Complete(ItemRow::of_error(&text, uri.block, why))
            }
            (location, None) => ItemProgress::NeedsDocument { uri: text, location },
        }
    }

    /// Fetches a document; an answer that is no document is a failure and is not stored.
    async fn fetch(
        &self,
        location: &DocumentLocation,
        attempt: i64,
    ) -> Result<(AnswerStatus, Bytes), FetchFailure> {
        let (client, url) = match location {
            DocumentLocation::Web(url) => (&self.clients.web, url),
            DocumentLocation::Gateway(urls) => {
                // Each attempt uses the next gateway.
                let turn = usize::try_from(attempt.saturating_sub(1)).unwrap_or(0);
                let url = turn.checked_rem(urls.len()).and_then(|turn| urls.get(turn));
                let why =
                    || FetchFailure { why: "no gateway is configured".to_owned(), after: None };
                (&self.clients.gateways, url.ok_or_else(why)?)
            }
            DocumentLocation::Inline(_) | DocumentLocation::Unusable(_) => {
                return Err(FetchFailure {
                    why: "the document has no URL to fetch".to_owned(),
                    after: None,
                });
            }
        };
        let limits = Limits { bytes_max: VALUE_BYTES_MAX, timeout: self.settings.timeout };
        let fetched = match client.get(url, ACCEPT, limits).await {
            Err(logmill_io::Error::TooLarge { .. }) => {
                return Ok((AnswerStatus::TooLarge, Bytes::new()));
            }
            Err(error) => return Err(FetchFailure::of(&error)),
            Ok(fetched) => fetched,
        };
        if fetched.status != 200 {
            let why = format!("http status {}", fetched.status);
            return Err(FetchFailure { why, after: fetched.retry_after });
        }
        match document::read(&fetched.body) {
            Ok(_) => Ok((AnswerStatus::Ok, fetched.body)),
            // For example a gateway's "try again later" page, which is not the item's metadata.
            Err(why) => Err(FetchFailure { why, after: None }),
        }
    }

    /// Stores the row and the document and completes the job, in one transaction.
    async fn finish(
        &self,
        running: &RunningJob,
        item: &Item,
        row: &ItemRow,
        document: Option<&StateAnswer>,
    ) -> Result<()> {
        let done = self.sql().write(|tx| async move {
            if let Some(document) = document {
                self.observations.put_in(&tx, &item.question(NFT_DOCUMENT), document).await?;
            }
            self.rows.put_in(&tx, item.contract, item.id, row).await?;
            Ok(running.queue.complete_in(&tx, &running.claim).await?)
        });
        done.await
    }

    /// Stores the failure, and returns when to retry.
    async fn put_off(&self, running: &RunningJob, item: &Item, trouble: FetchFailure) -> Failure {
        let attempt = running.claim.attempt;
        let entropy = self.sql().entropy();
        let wait = self.settings.backoff.wait(attempt, &**entropy);
        let wait = wait.max(trouble.after.unwrap_or_default());
        let is_last = attempt >= i64::from(self.settings.attempts);
        let kept = async {
            let again: Option<Timestamp> =
                if is_last { None } else { Some(self.sql().now().await?.after(wait)) };
            let why = plain(&trouble.why, NAME_CHARS_MAX).unwrap_or_default();
            self.rows.put_failure(item.contract, item.id, &why, attempt, again).await
        };
        if let Err(error) = kept.await {
            let error = logmill_io::error_chain(&error);
            tracing::warn!(contract = %item.contract, id = %item.id, error, "cannot store a fetch failure");
        }
        Failure { error: trouble.why, retry: Retry::After(wait) }
    }

    /// Rebuilds all rows from observations alone; returns how many.
    pub async fn rebuild(&self) -> Result<u64> {
        let mut made = 0;
        let mut after: Option<(Bytes, u64)> = None;
        loop {
            let position = after.as_ref().map(|(subject, block)| (&subject[..], *block));
            let page = self.observations.list(NFT_URI, position, LIST_MAX).await?;
            after = page.last().map(|found| (found.subject.clone(), found.block));
            let is_last = page.len() < LIST_MAX;
            // In block order: the newest observation of an item comes last and wins.
            for found in page {
                made += self.rebuild_item(found).await?;
            }
            if is_last {
                return Ok(made);
            }
        }
    }

    async fn rebuild_item(&self, found: Observation) -> Result<u64> {
        let (contract, id) = Item::of_subject(&found.subject).ok_or_else(|| {
            crate::Error::corrupt("the subject of an NFT observation is too short")
        })?;
        let question = Question { kind: NFT_DOCUMENT, subject: found.subject.clone() };
        let document = self.observations.latest(&question, u64::MAX).await?.map(as_answer);
        match self.item_progress(id, &as_answer(found), document.as_ref()) {
            ItemProgress::Complete(row) => {
                self.rows.put_in(self.sql(), contract, id, &row).await?;
                Ok(1)
            }
            // Its job still exists and will make the row.
            ItemProgress::NeedsDocument { .. } => Ok(0),
        }
    }
}

fn as_answer(found: Observation) -> StateAnswer {
    StateAnswer { block: found.block, status: found.status, value: found.value }
}

#[async_trait]
impl RangeWork for NftItems {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn gates(&self) -> &'static [&'static str] {
        &["nft_ownership_worker", "token_worker"]
    }

    fn item_kind(&self) -> Option<String> {
        Some(item_kind(self.reader.chain_id()))
    }

    async fn run(&self, range: &Heights) -> Result<()> {
        let mut after: Option<Item> = None;
        loop {
            let items = self.unknown(range, after.as_ref()).await?;
            let jobs: Vec<NewJob> =
                items.iter().map(|item| self.job(item)).collect::<Result<_>>()?;
            self.reader.tables().queue().enqueue_many(&jobs).await?;
            after = items.last().cloned();
            if items.len() < PAGE {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Handler for NftItems {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let item: Item = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload is invalid: {error}")))?;
        let (row, document) = match self.learn(&item, running.claim.attempt).await {
            Ok(learnt) => learnt,
            Err(trouble) => return Err(self.put_off(&running, &item, trouble).await),
        };
        match self.finish(&running, &item, &row, document.as_ref()).await {
            Ok(()) => Ok(Outcome::Completed),
            Err(error) => Err(super::failure(&error)),
        }
    }
}

impl fmt::Debug for NftItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NftItems").field("settings", &self.settings).finish_non_exhaustive()
    }
}
