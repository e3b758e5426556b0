//! Compressed responses: only for clients that accept them, only where worthwhile, and with the same content.

use std::io::Read;

use http_body_util::Full;
use serde_json::{Value, json};

use super::test_server::{TestServer, blocks, log};

async fn ask(
    server: &TestServer,
    accepted: &str,
    from: &str,
) -> (Option<String>, Option<String>, Vec<u8>) {
    let params = json!([{"fromBlock": from, "toBlock": "latest"}]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": params});
    let request = hyper::Request::post("/")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("accept-encoding", accepted)
        .body(Full::from(body.to_string()));
    let (status, headers, body) = server.ask(request.expect("a request")).await;
    assert_eq!(status, 200);
    let text = |name: &str| headers.get(name).map(|value| value.to_str().expect("text").to_owned());
    assert!(text("content-encoding").is_none() || text("content-length").is_none());
    (text("content-encoding"), text("vary"), body.to_vec())
}

#[tokio::test]
async fn large_answers_are_compressed_as_the_client_accepts() {
    let all = blocks(None, 4, 1, |number| {
        let logs = if number == 3 { 1 } else { 2_000 };
        vec![(0..logs).map(|_| log(1, &[1], 100)).collect()]
    });
    let server = TestServer::of(all, Vec::new()).await;
    let (none, vary, plain) = ask(&server, "identity", "0x0").await;
    assert_eq!((none, vary.as_deref()), (None, Some("Accept-Encoding")));
    let logs: Value = serde_json::from_slice(&plain).expect("JSON");
    assert_eq!(logs["result"].as_array().map(Vec::len), Some(6_001));
    let (gzip, _, body) = ask(&server, "gzip, deflate", "0x0").await;
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut text).expect("gzip");
    assert!(gzip.as_deref() == Some("gzip") && text == plain, "{gzip:?}");
    assert!(body.len() < plain.len() / 8, "{} of {} bytes", body.len(), plain.len());
    let (zstd, _, body) = ask(&server, "gzip, deflate, br, zstd", "0x0").await;
    let text = zstd::stream::decode_all(&body[..]).expect("zstd");
    assert!(zstd.as_deref() == Some("zstd") && text == plain, "{zstd:?}");
    assert!(body.len() < plain.len() / 8, "{} of {} bytes", body.len(), plain.len());
    // One log is too small to compress.
    let (none, vary, small) = ask(&server, "gzip, zstd", "0x3").await;
    assert_eq!((none, vary), (None, None));
    assert!(serde_json::from_slice::<Value>(&small).expect("JSON")["result"].is_array());
    let off = TestServer::with(
        blocks(None, 1, 1, |_| vec![vec![log(1, &[1], 9_000)]]),
        Vec::new(),
        |state| {
            state.limits.compress_min_bytes = 0;
        },
    );
    assert_eq!(ask(&off.await, "gzip", "0x0").await.0, None, "where nothing is to be compressed");
}
