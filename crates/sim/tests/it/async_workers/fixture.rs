//! Derived tables filled by hand, a node with scripted answers, and jobs that are run one by one.

use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use logmill_chain::NodeSource;
use logmill_io::sql::Execute;
use logmill_io::{Sql, params};
use logmill_pipeline::cells;
use logmill_pipeline::derive::{Cell, Generation, Processor, RangeRows, Rows, Tables};
use logmill_pipeline::observe::{StateReader, StateSettings};
use logmill_pipeline::processors::evm::{EVM_TRANSACTIONS, Evm};
use logmill_pipeline::processors::ft_holdings::{FT_HOLDINGS, FtHoldings};
use logmill_pipeline::processors::nft_ownership::{NFT_BALANCES, NFT_OWNERSHIP, NftOwnership};
use logmill_pipeline::processors::token::{FT_TRANSFERS, NFT_TRANSFERS, Token};
use logmill_sim::Database;
use logmill_sim::scripted_node::ScriptedNode;
use logmill_work::queue::FailedClaim;
use logmill_work::{Handler, Heights, Outcome, Queue, Retry, RunningJob};

pub(crate) const CHAIN: u64 = 1;
/// Lease of the claims in these tests.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// Longer than any backoff, and than any lease.
pub(crate) const LONG: Duration = Duration::from_secs(200_000);
/// Maximum number of jobs that a test runs in one go.
const JOBS_MAX: usize = 10_000;

/// A transfer in a block, or the creation of a contract.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Ft { token: Address, to: Address, amount: u64 },
    Nft { contract: Address, id: U256, to: Address },
    Batch { contract: Address, id: U256, to: Address, quantity: u64 },
    Create { contract: Address },
}

pub(crate) fn account(number: u8) -> Address {
    Address::repeat_byte(number)
}

/// The stores and the node, which outlive processes.
pub(crate) struct WorkerFixture {
    pub(crate) database: Database,
    pub(crate) tables: Tables,
    pub(crate) node: Arc<ScriptedNode>,
}

impl WorkerFixture {
    pub(crate) async fn new(database: Database) -> Self {
        let tables = Tables::open(database.open().await).await.expect("tables");
        Self { database, tables, node: ScriptedNode::new(100_000) }
    }

    pub(crate) fn sql(&self) -> &Sql {
        self.tables.sql()
    }

    pub(crate) fn queue(&self) -> &Queue {
        self.tables.queue()
    }

    pub(crate) fn state(&self) -> StateReader {
        let source = Arc::clone(&self.node) as Arc<dyn NodeSource>;
        StateReader::new(source, Arc::clone(self.sql().clock()), StateSettings::default())
    }

    /// Advances the clock beyond any wait.
    pub(crate) fn pass_time(&self) {
        self.database.advance(LONG, &[self.sql()]);
    }

    /// Derives final blocks with these transfers, each from the zero address.
    pub(crate) async fn derive(&self, range: Heights, moves: &[(u64, Move)]) {
        let processors: Vec<Arc<dyn Processor>> = vec![
            Arc::new(Token::default()),
            Arc::new(NftOwnership::default()),
            Arc::new(FtHoldings::default()),
            Arc::new(Evm),
        ];
        let generations = self.tables.generations(CHAIN, &processors).await.expect("generations");
        let parts = generations.iter().map(|generation| part(generation, range.clone(), moves));
        self.tables.commit(None, parts.collect()).await.expect("tables");
    }

    /// The same into one generation of one processor.
    pub(crate) async fn derive_into(
        &self,
        generation: &Generation,
        range: Heights,
        moves: &[(u64, Move)],
    ) {
        self.tables.commit(None, vec![part(generation, range, moves)]).await.expect("tables");
    }

    /// All rows of a query, as text.
    pub(crate) async fn dump(&self, text: &str) -> Vec<String> {
        let answer = self.sql().query(text, params![]).await.expect(text);
        answer.rows.iter().map(|row| format!("{row:?}")).collect()
    }

    pub(crate) async fn run(&self, text: &str) {
        self.sql().execute(text, params![]).await.expect(text);
    }

    /// Runs the due jobs of a kind, including those that become due meanwhile; returns how many failed.
    pub(crate) async fn work(&self, kind: &str, handler: &dyn Handler) -> usize {
        let mut failed = 0;
        for _ in 0..JOBS_MAX {
            let claims = self.queue().claim(kind, 1, LEASE, "test").await.expect("a queue");
            let Some(claim) = claims.into_iter().next() else {
                return failed;
            };
            failed += usize::from(!run_one(self.queue(), claim, handler).await);
        }
        panic!("more jobs of {kind} than there can be");
    }
}

/// Runs a job as a runner would, and returns whether it was done.
pub(crate) async fn run_one(
    queue: &Queue,
    claim: logmill_work::Claim,
    handler: &dyn Handler,
) -> bool {
    let running = RunningJob { claim: claim.clone(), queue: queue.clone() };
    match handler.run(running).await {
        Ok(Outcome::Completed) => true,
        Ok(Outcome::Done) => queue.complete(&claim).await.is_ok(),
        Err(failure) => {
            let retry_after = match failure.retry {
                Retry::Backoff => Some(Duration::from_secs(60)),
                Retry::After(wait) => Some(wait),
                Retry::Never => None,
            };
            let failed = FailedClaim { claim, error: failure.error, retry_after };
            // Fails if the store is gone.
            let _ = queue.fail(&failed).await;
            false
        }
    }
}

fn part(generation: &Generation, range: Heights, moves: &[(u64, Move)]) -> RangeRows {
    let mut rows = Rows::new(generation.processor.tables());
    for (index, (block, moved)) in moves.iter().enumerate() {
        rows.at_block(*block);
        push(&mut rows, generation.processor.name(), *block, index, moved);
    }
    rows.fold().expect("rows of one table");
    RangeRows { generation: generation.clone(), range, rows }
}

fn push(rows: &mut Rows, processor: &str, block: u64, index: usize, moved: &Move) {
    let none = Address::ZERO;
    let pushed = match (processor, moved) {
        ("token_worker", Move::Ft { token, to, amount }) => {
            let amount = U256::from(*amount);
            let cells = cells![block, index, 0_u32, *token, none, *to, amount, 1_u32, 0_u32];
            rows.push(&FT_TRANSFERS, index, cells)
        }
        ("token_worker", Move::Nft { contract, id, to }) => {
            let one = U256::ONE;
            let cells = cells![
                block, index, 0_u32, 0_u32, *contract, *id, none, *to, one, 721_u32, 1_u32, 0_u32
            ];
            rows.push(&NFT_TRANSFERS, index, cells)
        }
        ("token_worker", Move::Batch { contract, id, to, quantity }) => {
            let many = U256::from(*quantity);
            let cells = cells![
                block, index, 0_u32, 0_u32, *contract, *id, none, *to, many, 1155_u32, 1_u32, 0_u32
            ];
            rows.push(&NFT_TRANSFERS, index, cells)
        }
        ("nft_ownership_worker", Move::Nft { contract, id, to }) => {
            rows.push(&NFT_OWNERSHIP, index, cells![*contract, *id, *to, block, 1_u32])
        }
        ("nft_ownership_worker", Move::Batch { contract, id, to, quantity }) => {
            let many = U256::from(*quantity);
            rows.push(&NFT_BALANCES, index, cells![*contract, *id, *to, many, block])
        }
        ("ft_holdings_worker", Move::Ft { token, to, amount }) => {
            let amount = U256::from(*amount);
            rows.push(&FT_HOLDINGS, index, cells![*to, *token, amount, 1_u32, block])
        }
        ("evm_worker", Move::Create { contract }) => {
            let cells = created(block, index, *contract);
            rows.push(&EVM_TRANSACTIONS, index, cells)
        }
        _ => Ok(()),
    };
    pushed.expect("a row that fits");
}

/// The row of a transaction that creates a contract.
fn created(block: u64, index: usize, contract: Address) -> Vec<Cell> {
    let (hash, nobody) = (B256::with_last_byte(1), None::<Address>);
    let (nothing, selector) = (U256::ZERO, Cell::Null);
    cells![
        block,
        index,
        hash,
        2_u32,
        Address::ZERO,
        nobody,
        contract,
        0_u64,
        nothing,
        selector,
        3_usize,
        1_u32,
        0_u32
    ]
}

/// A number as a contract returns it.
pub(crate) fn word(number: u64) -> Vec<u8> {
    B256::left_padding_from(&number.to_be_bytes()).to_vec()
}

/// A string as a contract returns it.
pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    [word(32), word(text.len() as u64), text.to_vec()].concat()
}

/// Call data.
pub(crate) fn data(selector: [u8; 4], words: &[B256]) -> Vec<u8> {
    let mut data = selector.to_vec();
    words.iter().for_each(|word| data.extend_from_slice(word.as_slice()));
    data
}
