//! Identity of the chain, its heads, and announcements of new ones.

use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::wire::{Feed, Limits, TextStream};
use tokio::sync::mpsc;

use super::*;
use crate::source::Finality;

fn finalized(number: u64) -> Quirks {
    Quirks { finalized: Some(number), ..Quirks::default() }
}

#[tokio::test(start_paused = true)]
async fn the_nodes_identify_the_chain() {
    let pool = pool(vec![finalized(3), Quirks { unreachable: true, ..Quirks::default() }]);
    let info = pool.source.info().await.expect("one is enough");
    assert_eq!((info.chain_id, info.finality), (1337, Finality::Tags));
    assert_eq!(info.client, "fake/1.0");
    assert_eq!(pool.status(0).head, Some(LENGTH - 1));
}

#[tokio::test(start_paused = true)]
async fn nodes_of_different_chains_are_refused() {
    let wrong = || Quirks { chain_id: Some(5), ..Quirks::default() };
    let mixed = pool(vec![Quirks::default(), wrong()]);
    let error = mixed.source.info().await.expect_err("two chains");
    assert_eq!(error.to_string(), "wrong RPC chain id: node1 serves chain 5, not 1337");
    let expected = |settings: &mut EvmSettings| settings.chain_id = Some(1337);
    let pool = pool_with(vec![wrong(), Quirks::default()], expected, |_, _| {});
    pool.all().await;
    assert_eq!(pool.nodes[0].calls_of("eth_getBlockByNumber"), 0, "it is asked for nothing");
}

#[tokio::test(start_paused = true)]
async fn finality_is_known_by_tags_or_by_depth_or_refused() {
    let young = pool(vec![Quirks::default()]);
    assert_eq!(young.source.info().await.expect("it will come").finality, Finality::Tags);
    assert_eq!(young.source.heads().await.expect("heads").finalized, None);

    let no_tags = || Quirks { no_tags: true, ..Quirks::default() };
    let error = pool(vec![no_tags()]).source.info().await.expect_err("unknown finality");
    assert!(error.to_string().contains("confirmations"), "{error}");

    let depth = |settings: &mut EvmSettings| settings.confirmations = Some(9);
    let deep = pool_with(vec![no_tags()], depth, |_, _| {});
    assert_eq!(deep.source.info().await.expect("set").finality, Finality::Depth(9));
    let heads = deep.source.heads().await.expect("heads");
    assert_eq!(heads.latest.number, LENGTH - 1);
    assert_eq!(heads.finalized.expect("one").number, LENGTH - 10);
}

/// A chain of 200 blocks with this id and one node with these tags.
fn of_chain(chain_id: u64, tags: Quirks) -> PoolFixture {
    let quirks = Quirks { chain_id: Some(chain_id), ..tags };
    let set = |settings: &mut EvmSettings| settings.chain_id = Some(chain_id);
    pool_of_chains(vec![(FakeChain::new(200, 0, 0), quirks)], set, |_, _| {})
}

#[tokio::test(start_paused = true)]
async fn without_tags_finality_follows_the_profile_even_if_nodes_come_up_late() {
    let no_tags = || Quirks { no_tags: true, ..Quirks::default() };
    for (chain_id, depth) in [(4_242, 128), (31_337, 64)] {
        let pool = of_chain(chain_id, no_tags());
        let info = pool.source.info().await.expect("the profile says how");
        assert_eq!(info.finality, Finality::Depth(depth));
        let late = of_chain(chain_id, Quirks { unreachable: true, ..no_tags() });
        late.source.info().await.expect_err("no node is up");
        late.nodes[0].quirks.lock().unwrap().unreachable = false;
        for pool in [pool, late] {
            let heads = pool.source.heads().await.expect("heads");
            let numbers = (heads.latest.number, heads.finalized.expect("one").number);
            assert_eq!(numbers, (199, 199 - depth), "chain {chain_id}");
            assert_eq!(pool.source.checks().expect("some").confirmations, Some(depth));
        }
    }
    let known = of_chain(1, no_tags());
    let error = known.source.heads().await.expect_err("its profile says nothing");
    assert!(error.to_string().contains("set how many confirmations"), "{error}");
    // If one node knows the tag, the others do not decide.
    let unknown = |tags: Quirks| Quirks { chain_id: Some(4_242), ..tags };
    let mixed = pool(vec![unknown(finalized(3)), unknown(no_tags())]);
    for _ in 0..5 {
        let heads = mixed.source.heads().await.expect("heads");
        assert_eq!(heads.finalized.expect("one").number, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_development_node_that_calls_its_newest_block_final_can_take_blocks_back() {
    let at_head = |chain_id| of_chain(chain_id, finalized(199));
    let numbers = async |pool: &PoolFixture| {
        let heads = pool.source.heads().await.expect("heads");
        (heads.latest.number, heads.finalized.expect("one").number)
    };
    // Other chains may well be final at once.
    assert_eq!(numbers(&at_head(4_242)).await, (199, 199));
    let pool = at_head(31_337);
    assert_eq!(numbers(&pool).await, (199, 135));
    let revert = |length: u64| {
        *pool.nodes[0].chain.lock().unwrap() = FakeChain::new(length, 0, 0);
        pool.nodes[0].quirks.lock().unwrap().finalized = Some(length - 1);
    };
    revert(181);
    assert_eq!(numbers(&pool).await, (180, 116));
    revert(20);
    assert_eq!(numbers(&pool).await, (19, 0));
    // Anvil's own tag is trusted.
    assert_eq!(numbers(&of_chain(31_337, finalized(191))).await, (199, 191));
}

#[tokio::test(start_paused = true)]
async fn an_unrelated_error_does_not_decide_about_finality() {
    let left = std::sync::atomic::AtomicUsize::new(1);
    let once = tamper(move |method, result| {
        if method == "eth_getBlockByNumber"
            && left.swap(0, std::sync::atomic::Ordering::Relaxed) == 1
        {
            *result = json!({fake::INSTEAD: "internal error"});
        }
    });
    let pool = pool(vec![Quirks { tamper: once, ..finalized(3) }]);
    let error = pool.source.info().await.expect_err("it failed");
    assert_eq!(error.kind(), logmill_io::ErrorKind::Transient, "{error}");
    assert_eq!(pool.source.info().await.expect("it answers").finality, Finality::Tags);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lags_does_not_take_the_chain_back() {
    let chains = vec![
        (FakeChain::new(LENGTH, 0, 0), finalized(30)),
        (FakeChain::new(20, 0, 0), finalized(10)),
    ];
    let pool = pool_of_chains(chains, |_| {}, |_, _| {});
    for _ in 0..10 {
        let heads = pool.source.heads().await.expect("heads");
        assert_eq!((heads.latest.number, heads.finalized.expect("one").number), (39, 30));
    }
    // If it is the only node, its head is used.
    pool.nodes[0].quirks.lock().unwrap().unreachable = true;
    let heads = pool.source.heads().await.expect("heads");
    assert_eq!(heads.latest.number, 19);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_newest_block_is_below_its_final_one_is_not_trusted() {
    let backwards = tamper(|method, result| {
        if method == "eth_getBlockByNumber" && result["number"] == "0x27" {
            result["number"] = json!("0x1");
        }
    });
    let liar = Quirks { tamper: backwards, ..finalized(30) };
    let pool = pool(vec![liar, finalized(30)]);
    assert_eq!(pool.source.heads().await.expect("heads").latest.number, 39);
}

#[tokio::test(start_paused = true)]
async fn client_requests_are_forwarded_to_a_node() {
    let pool =
        pool(vec![Quirks { statuses: vec![(503, None)], ..Quirks::default() }, Quirks::default()]);
    assert_eq!(pool.source.pass("eth_blockNumber", "[]").await.expect("an answer"), "\"0x27\"");
    let error = pool.source.pass("eth_nothing", "[]").await.expect_err("no such method");
    assert!(matches!(error, Error::Rpc { code: -32_601, .. }), "{error}");
    for params in ["", "1", "[1", "[],\"id\":2"] {
        let error = pool.source.pass("eth_blockNumber", params).await.expect_err(params);
        assert!(matches!(error, Error::Rpc { code: -32_602, .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_method_that_one_node_lacks_is_requested_from_another() {
    let lacking = Quirks { missing: ["eth_blockNumber"].into(), ..Quirks::default() };
    let pool = pool(vec![lacking, Quirks::default()]);
    for _ in 0..10 {
        let answer = pool.source.pass("eth_blockNumber", "[]").await;
        assert_eq!(answer.expect("an answer"), "\"0x27\"");
    }
    assert!(pool.nodes[0].calls_of("eth_blockNumber") > 0, "the first was asked as well");
    // If no node has it, that is the answer, rather than that no node could be asked.
    let error = pool.source.pass("eth_nothing", "[]").await.expect_err("no such method");
    assert!(matches!(error, Error::Rpc { code: -32_601, .. }), "{error}");
    assert!(pool.nodes.iter().all(|node| node.calls_of("eth_nothing") == 1));
}

#[tokio::test(start_paused = true)]
async fn after_a_broken_connection_the_chain_id_is_checked_again() {
    let pool = pool(vec![Quirks::default()]);
    pool.blocks(1..2).await.expect("a block");
    let change = |change: fn(&mut Quirks)| change(&mut pool.nodes[0].quirks.lock().unwrap());
    change(|quirks| quirks.unreachable = true);
    pool.blocks(2..3).await.expect_err("it is gone");
    // A node of another chain replaces it.
    change(|quirks| (quirks.unreachable, quirks.chain_id) = (false, Some(77)));
    let error = pool.blocks(2..3).await.expect_err("it is of another chain");
    assert!(logmill_io::error_chain(&error).contains("77"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_may_have_been_executed_is_not_repeated() {
    let pool = pool(vec![Quirks::default(), Quirks::default()]);
    for _ in 0..10 {
        pool.source.pass("eth_blockNumber", "[]").await.expect("an answer");
    }
    let requests = || {
        let each = pool.nodes.iter().map(|node| node.requests.lock().unwrap().len());
        each.sum::<usize>()
    };
    let lose_an_answer = || {
        for node in &pool.nodes {
            node.quirks.lock().unwrap().statuses = vec![(502, None)];
        }
    };
    lose_an_answer();
    let before = requests();
    let sent = pool.source.pass("eth_sendRawTransaction", "[\"0x01\"]").await;
    assert!(matches!(sent, Err(Error::Unavailable { .. })), "{sent:?}");
    assert_eq!(requests(), before + 1, "one node was asked, once");
    lose_an_answer();
    let read = pool.source.pass("eth_blockNumber", "[]").await;
    assert_eq!(read.expect("another node answers"), "\"0x27\"");
}

/// Connections that send what a test tells them to.
#[derive(Debug)]
struct FakeFeed {
    connections: Mutex<Vec<mpsc::Receiver<Bytes>>>,
}

struct FakeTextStream(mpsc::Receiver<Bytes>);

#[async_trait]
impl Feed for FakeFeed {
    async fn open(
        &self,
        hello: String,
        _limits: Limits,
    ) -> logmill_io::Result<Box<dyn TextStream>> {
        assert!(hello.contains("newHeads"));
        let next = self.connections.lock().unwrap().pop();
        let source = || "refused".into();
        let refused = || logmill_io::Error::Socket {
            doing: "connect to",
            place: "x".to_owned(),
            source: source(),
        };
        Ok(Box::new(FakeTextStream(next.ok_or_else(refused)?)))
    }
}

#[async_trait]
impl TextStream for FakeTextStream {
    async fn next(&mut self) -> logmill_io::Result<Option<Bytes>> {
        Ok(self.0.recv().await)
    }
}

#[tokio::test(start_paused = true)]
async fn announcements_wake_and_a_broken_socket_only_means_polling() {
    let clock: Arc<dyn Clock> = SimClock::at(Timestamp(0));
    let (first, first_texts) = mpsc::channel(4);
    let (second, second_texts) = mpsc::channel(4);
    let feed = Arc::new(FakeFeed { connections: Mutex::new(vec![second_texts, first_texts]) });
    let fake = FakeNode::new(FakeChain::new(3, 0, 0), Quirks::default(), Arc::clone(&clock));
    let node = NodeSettings::new(Endpoint::parse("ws://node.example").expect("fine"));
    let reach = NodeConnections { wire: fake, feed: Some(feed) };
    let (settings, entropy) = (EvmSettings::new("test"), SeededEntropy::shared(1));
    let source =
        EvmSource::with_connections(vec![(node, reach)], settings, Arc::clone(&clock), &entropy);
    let source = source.expect("fine");
    let minute = Duration::from_secs(60);
    let waited = async |at_most: Duration| {
        let before = clock.monotonic();
        source.changed(at_most).await;
        clock.monotonic() - before
    };

    let news = Bytes::from_static(
        br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"result":{}}}"#,
    );
    first.send(Bytes::from_static(br#"{"id":1,"result":"0xabc"}"#)).await.expect("open");
    assert_eq!(waited(minute).await, minute, "the answer to the subscription is no news");
    first.send(news.clone()).await.expect("open");
    assert_eq!(waited(minute).await, Duration::ZERO);
    first.send(Bytes::from_static(b"\xff\xfe{{{")).await.expect("open");
    assert_eq!(waited(minute).await, minute, "what can not be read is no news");
    drop(first);
    second.send(news.clone()).await.expect("open");
    assert!(waited(minute).await < Duration::from_secs(2), "it connects again");
    drop(second);
    assert_eq!(waited(minute).await, minute, "polling goes on without it");
}
