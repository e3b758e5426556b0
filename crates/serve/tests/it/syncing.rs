//! Sync status of a chain: by request and by subscription.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use logmill_serve::rpc::ChainStatus;
use serde_json::{Value, json};

use super::test_server::{CHAIN_ID, TestServer, small};

/// A status with the head that a test sets; 0 means none.
#[derive(Debug, Default)]
struct ReportedHead(AtomicU64);

impl ChainStatus for ReportedHead {
    fn status_json(&self) -> Value {
        Value::Null
    }

    fn reported_head(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst)).filter(|head| *head > 0)
    }
}

async fn server() -> (TestServer, Arc<ReportedHead>) {
    let reported = Arc::new(ReportedHead::default());
    let (last, tip) = small();
    let status = Arc::clone(&reported);
    let server = TestServer::with(last, tip, |state| {
        state.chains.get_mut(&CHAIN_ID).expect("it").status = status;
    })
    .await;
    (server, reported)
}

fn behind(highest: &str) -> Value {
    json!({"startingBlock": "0x0", "currentBlock": "0xc", "highestBlock": highest})
}

#[tokio::test]
async fn a_chain_that_is_behind_its_nodes_is_syncing() {
    let (server, reported) = server().await;
    for (head, expected) in [
        (0, json!(false)),
        (5, json!(false)),
        (12, json!(false)),
        // The largest lag that readiness allows.
        (14, json!(false)),
        (15, behind("0xf")),
        (1_000, behind("0x3e8")),
    ] {
        reported.0.store(head, Ordering::SeqCst);
        assert_eq!(server.call("eth_syncing", json!([])).await, expected, "{head}");
    }
}

#[tokio::test]
async fn a_subscriber_of_syncing_gets_the_state_and_every_change() {
    let (server, reported) = server().await;
    reported.0.store(100, Ordering::SeqCst);
    let mut client = server.connect("/").await;
    let id = client.call("eth_subscribe", json!(["syncing"])).await;
    let said = json!({"syncing": true, "status": behind("0x64")});
    assert_eq!(client.notice().await, (id.clone(), said));
    reported.0.store(12, Ordering::SeqCst);
    assert_eq!(client.notice().await, (id.clone(), json!(false)));
    reported.0.store(50, Ordering::SeqCst);
    assert_eq!(client.notice().await.1["status"]["highestBlock"], "0x32");
    // A new subscription is notified of the current status at once, and the first one is not notified again.
    let other = client.call("eth_subscribe", json!(["syncing"])).await;
    assert_eq!(client.notice().await.0, other);
    assert_eq!(client.call("eth_unsubscribe", json!([id])).await, json!(true));
}
