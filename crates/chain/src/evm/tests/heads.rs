//! What the chain is, where it is, and news of it.

use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::wire::{Feed, Limits, Texts};
use tokio::sync::mpsc;

use super::*;
use crate::source::Finality;

fn finalized(number: u64) -> Quirks {
    Quirks { finalized: Some(number), ..Quirks::default() }
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_introduced_by_its_nodes() {
    let stage = stage(vec![finalized(3), Quirks { unreachable: true, ..Quirks::default() }]);
    let info = stage.source.info().await.expect("one is enough");
    assert_eq!((info.chain_id, info.finality), (1337, Finality::Tags));
    assert_eq!(info.client, "fake/1.0");
    assert_eq!(stage.status(0).head, Some(LENGTH - 1));
}

#[tokio::test(start_paused = true)]
async fn nodes_of_different_chains_are_refused() {
    let wrong = || Quirks { chain_id: Some(5), ..Quirks::default() };
    let mixed = stage(vec![Quirks::default(), wrong()]);
    let error = mixed.source.info().await.expect_err("two chains");
    assert_eq!(error.to_string(), "node1 is of chain 5, not 1337");
    let expected = |settings: &mut EvmSettings| settings.chain_id = Some(1337);
    let stage = stage_of(vec![wrong(), Quirks::default()], expected, |_, _| {});
    stage.all().await;
    assert_eq!(stage.nodes[0].calls_of("eth_getBlockByNumber"), 0, "it is asked for nothing");
}

#[tokio::test(start_paused = true)]
async fn finality_is_known_by_tags_or_by_depth_or_refused() {
    let young = stage(vec![Quirks::default()]);
    assert_eq!(young.source.info().await.expect("it will come").finality, Finality::Tags);
    assert_eq!(young.source.heads().await.expect("heads").finalized, None);

    let no_tags = || Quirks { no_tags: true, ..Quirks::default() };
    let error = stage(vec![no_tags()]).source.info().await.expect_err("unknown finality");
    assert!(error.to_string().contains("confirmations"), "{error}");

    let depth = |settings: &mut EvmSettings| settings.confirmations = Some(9);
    let deep = stage_of(vec![no_tags()], depth, |_, _| {});
    assert_eq!(deep.source.info().await.expect("set").finality, Finality::Depth(9));
    let heads = deep.source.heads().await.expect("heads");
    assert_eq!(heads.latest.number, LENGTH - 1);
    assert_eq!(heads.finalized.expect("one").number, LENGTH - 10);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lags_does_not_take_the_chain_back() {
    let chains = vec![
        (FakeChain::new(LENGTH, 0, 0), finalized(30)),
        (FakeChain::new(20, 0, 0), finalized(10)),
    ];
    let stage = stage_with(chains, |_| {}, |_, _| {});
    for _ in 0..10 {
        let heads = stage.source.heads().await.expect("heads");
        assert_eq!((heads.latest.number, heads.finalized.expect("one").number), (39, 30));
    }
    // Where it is all there is, that is how it is.
    stage.nodes[0].quirks.lock().unwrap().unreachable = true;
    let heads = stage.source.heads().await.expect("heads");
    assert_eq!(heads.latest.number, 19);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_newest_block_is_below_its_final_one_is_not_believed() {
    let backwards = tamper(|method, result| {
        if method == "eth_getBlockByNumber" && result["number"] == "0x27" {
            result["number"] = json!("0x1");
        }
    });
    let liar = Quirks { tamper: backwards, ..finalized(30) };
    let stage = stage(vec![liar, finalized(30)]);
    assert_eq!(stage.source.heads().await.expect("heads").latest.number, 39);
}

#[tokio::test(start_paused = true)]
async fn questions_of_others_are_passed_on() {
    let stage =
        stage(vec![Quirks { statuses: vec![(503, None)], ..Quirks::default() }, Quirks::default()]);
    assert_eq!(stage.source.pass("eth_blockNumber", "[]").await.expect("an answer"), "\"0x27\"");
    let error = stage.source.pass("eth_nothing", "[]").await.expect_err("no such method");
    assert!(matches!(error, Error::Rpc { code: -32_601, .. }), "{error}");
    for params in ["", "1", "[1", "[],\"id\":2"] {
        let error = stage.source.pass("eth_blockNumber", params).await.expect_err(params);
        assert!(matches!(error, Error::Rpc { code: -32_602, .. }), "{error}");
    }
}

/// Connections that say what a test tells them to.
#[derive(Debug)]
struct FakeFeed {
    connections: Mutex<Vec<mpsc::Receiver<Bytes>>>,
}

struct FakeTexts(mpsc::Receiver<Bytes>);

#[async_trait]
impl Feed for FakeFeed {
    async fn open(&self, hello: String, _limits: Limits) -> logmill_io::Result<Box<dyn Texts>> {
        assert!(hello.contains("newHeads"));
        let next = self.connections.lock().unwrap().pop();
        let source = || "refused".into();
        let refused = || logmill_io::Error::Socket {
            doing: "connect to",
            place: "x".to_owned(),
            source: source(),
        };
        Ok(Box::new(FakeTexts(next.ok_or_else(refused)?)))
    }
}

#[async_trait]
impl Texts for FakeTexts {
    async fn next(&mut self) -> logmill_io::Result<Option<Bytes>> {
        Ok(self.0.recv().await)
    }
}

#[tokio::test(start_paused = true)]
async fn news_wake_and_a_broken_socket_only_means_waiting_longer() {
    let clock: Arc<dyn Clock> = SimClock::at(Timestamp(0));
    let (first, first_texts) = mpsc::channel(4);
    let (second, second_texts) = mpsc::channel(4);
    let feed = Arc::new(FakeFeed { connections: Mutex::new(vec![second_texts, first_texts]) });
    let fake = FakeNode::new(FakeChain::new(3, 0, 0), Quirks::default(), Arc::clone(&clock));
    let node = NodeSettings::new(Endpoint::parse("ws://node.example").expect("fine"));
    let reach = Reach { wire: fake, feed: Some(feed) };
    let (settings, entropy) = (EvmSettings::new("test"), SeededEntropy::shared(1));
    let source = EvmSource::reached_by(vec![(node, reach)], settings, Arc::clone(&clock), &entropy);
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
